"""Writes the JSON files of a server's tables, off the loop.

Owns: every file below the config directory while the server runs.
Told by: the table actors (`WriteFile`).   Tells: them (`FileWritten`).

Of several texts for one file only the last is written, at the end of the batch.  What the disk
refuses is kept and tried again, with one log line when it starts to fail and one when it is over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.engine.actor import Actor, BatchEnd, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from storage.errors import StoreError
from storage.tables.json_config import save
from storage.tables.skipped_entry import SkippedEntry

log = get_logger(__name__)

RETRY_MS = 5000
"""Between tries of a file that could not be written: as often as offsets are saved anyway."""


@dataclass(frozen=True, slots=True)
class FileWritten:
    """The text with this number, or a later one, is on disk; or it is not, and is tried again:
    nobody has to wait for a broken disk."""

    path: str
    serial: int
    refusal: str = ""
    """Why it is not on disk."""


@dataclass(frozen=True, slots=True)
class WriteFile(Message):
    """Bring the file at `path` to `text`; a function is called on the writer's thread.

    `serial` grows with every text that one owner has for its file.
    """

    path: str
    text: str | Callable[[], str]
    serial: int = 0
    reply_to: ActorAddress | None = None
    broken: tuple[str, ...] = ()
    """What was found unusable when the file was read: kept aside, not as its .bak."""
    left_out: tuple[SkippedEntry, ...] = ()
    """Entries that were found unusable: kept in its side file."""

    def on_undelivered(self, remark: str) -> None:
        """The writer is gone."""
        self.done(remark)

    def done(self, refusal: str = "") -> None:
        """Tells the owner."""
        if self.reply_to is not None:
            self.reply_to.tell(FileWritten(self.path, self.serial, refusal))


@dataclass(frozen=True, slots=True)
class _Retry:
    """Try again what could not be written."""


class ConfigWriter(Actor):
    """Runs on a thread, for a write waits for the disk twice."""

    where: ClassVar[Where] = "thread"

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, WriteFile] = {}
        self._failing = False
        self._will_retry = False

    @handles(WriteFile)
    def on_write(self, message: WriteFile) -> None:
        """Remembers the text until the batch ends."""
        self._waiting[message.path] = message

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Writes everything that is waiting."""
        self._write_all()

    @handles(_Retry)
    def on_retry(self, _: _Retry) -> None:
        """The disk may have room again: the end of this batch tries."""
        self._will_retry = False

    def on_stop(self) -> None:
        self._write_all()

    def on_failure(self, *_: object) -> None:
        """What it had taken and not written yet goes with it: nobody may wait for that."""
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
