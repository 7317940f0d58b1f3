"""Writer of the JSON files of a server's tables, off the loop.

Owns: every file below the config directory while the server runs.
Receives: WriteFile, FileDamaged (table actors).
Sends: FileWritten (table actors).
Publishes: the damaged files, for BrokerInfo and metrics.

At the end of a batch, only the last text for each file is written. A failed write is kept and
retried. One log line reports the first failure and one the recovery.

TableEncoder encodes large table answers, off the loop: 60,000 topics take over half a second.

Owns: nothing.
Receives: EncodeAnswer (table actors, Clients); ReadBody (Clients, Receipts).
Sends: the answer to the client; a request whose body it has read, to the requesting actor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actors.engine.actor import Actor, BatchEnd, Where, handles
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.long_answers import answer_with
from actors.tables.messages import EncodeAnswer, FileDamaged, ReadBody, WriteFile
from protocol.errors import RemoteError
from storage.errors import StoreError
from storage.tables.json_config import save

log = get_logger(__name__)

RETRY_MS = 5000
"""Interval between retries of a failed write; offsets are saved as often."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """Timer tick: retry failed writes."""


class ConfigWriter(Actor):
    """Runs on a thread, because each write waits for the disk twice."""

    where: ClassVar[Where] = "thread"

    def __init__(self, damaged: SnapshotRef[Mapping[str, int]] | None = None) -> None:
        super().__init__()
        self._damaged = damaged or SnapshotRef({})
        self._waiting: dict[str, WriteFile] = {}
        self._failing = False
        self._will_retry = False

    @handles(WriteFile)
    def on_write(self, message: WriteFile) -> None:
        """Keep the text until the batch ends."""
        self._waiting[message.path] = message

    @handles(FileDamaged)
    def on_damaged(self, message: FileDamaged) -> None:
        """Publish the damage; it counts until the broker stops."""
        self._damaged.value = {**self._damaged.value, message.path: message.versions}

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        self._write_all()

    @handles(_Retry)
    def on_retry(self, _: _Retry) -> None:
        """Allow the next retry; the end of this batch makes this one."""
        self._will_retry = False

    def on_stop(self) -> None:
        self._write_all()

    def on_failure(self, *_: object) -> None:
        """Report unwritten texts as refused, so that no owner waits for them."""
        for message in self._waiting.values():
            message.on_undelivered("the writer of the files has failed")

    def _write_all(self) -> None:
        for path, message in self._waiting.copy().items():
            text = message.text if isinstance(message.text, str) else message.text()
            try:
                save(self.system.disk, path, text, message.broken, message.left_out)
            except (OSError, StoreError) as error:
                if not self._failing:
                    log.error("config file not written", file=path, reason=str(error))
                    self._failing = True
                message.done(str(error))
                continue
            del self._waiting[path]
            message.done()
        if self._failing and not self._waiting:
            log.info("config files written again")
            self._failing = False
        if self._waiting and not self._will_retry:
            self._will_retry = True
            self.after(RETRY_MS, _Retry())


class TableEncoder(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(EncodeAnswer, reads_only=True)
    def on_encode(self, message: EncodeAnswer) -> None:
        answer_with(message.request, message.body, message.fields)

    @handles(ReadBody, reads_only=True)
    def on_read(self, message: ReadBody) -> None:
        """Read a long body: 10,000 subscriptions of a heartbeat take 80 ms."""
        request = message.request
        try:
            request.read = message.kind.decode(request.command.body)
        except RemoteError as error:
            request.answer(error.code, remark=error.remark)
        else:
            message.reply_to.tell(request)
