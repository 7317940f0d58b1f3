"""Base classes of actors with a table in a JSON file, which answer when a change is on disk.

A damaged file does not prevent the start. The newest usable version is loaded, one log line reports
the damage, the damaged file is kept as .broken and the file is saved again. Unusable entries are
skipped, logged and kept in the side file.

The table changes at once and its text goes to ConfigWriter. Snapshots and answers wait until the
text is on disk. If the write fails, the change holds, its requester gets an error, and ConfigWriter
retries.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias, TypeVar

from actors.engine.actor import BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.network.messages import Request
from actors.network.request import Responder
from actors.tables.messages import FileDamaged, FileWritten, WriteFile
from protocol.codes import ResponseCode
from storage.tables.json_config import Loaded, left_out_path, load
from storage.tables.skipped_entry import Parse, SkippedEntry

log = get_logger(__name__)

T = TypeVar("T")
Then: TypeAlias = Callable[[str], None]
"""Function called when a change is on disk, with the reason why it is not, or an empty text."""

LEFT_OUT_LINES_MAX = 50
"""Log lines about skipped entries of one file; the rest is counted."""
_NOT_SAVED = "change made but not on disk yet, the write is retried: %s"
_serials = count(1)
"""Numbers of texts, never reused: results for the actor before a restart match none."""


@dataclass(frozen=True, slots=True)
class Save:
    """Timer tick: save changes."""


class PersistedTable(Responder):
    """Base class of the table actors."""

    def __init__(self, path: str, config_writer: ActorAddress) -> None:
        super().__init__()
        self._path = path
        self._config_writer = config_writer
        self._serial = 0
        self._written_serial = 0
        self._broken: tuple[str, ...] = ()
        self._left_out: tuple[SkippedEntry, ...] = ()
        """Skipped entries that are not yet in the side file."""
        self._unwritten: deque[tuple[int, Then]] = deque()
        self._dropped_count = 0

    def load(self, parse: Parse[T]) -> Loaded[T]:
        """Load the usable content of the file, and log what is wrong with it.

        If `is_to_be_saved`, the caller saves its table. Raises StoreError if the file must
        not be read. Reads the disk: only for `on_start`.
        """
        loaded = load(self.system.disk, self._path, parse)
        if versions := len(loaded.broken) or int(bool(loaded.findings)):
            self._config_writer.tell(FileDamaged(self._path, versions))
        if loaded.findings:
            log.warning("config file damaged", file=self._path, found=loaded.findings)
        for each in loaded.left_out[:LEFT_OUT_LINES_MAX]:
            log.warning("entry left out", file=self._path, entry=each.entry, reason=each.reason)
        if loaded.left_out:
            count, kept = len(loaded.left_out), left_out_path(self._path)
            log.warning("entries left out", file=self._path, count=count, kept_in=kept)
        self._broken, self._left_out = loaded.broken, loaded.left_out
        return loaded

    def save(self, text: Callable[[], str], *thens: Then) -> None:
        """Save what `text` returns; a thread calls it, so it must read nothing that changes.

        `thens` are called here in order, once it is on disk or the disk has refused it.
        """
        self._serial = next(_serials)
        self._unwritten.extend((self._serial, then) for then in thens)
        serial, broken, left_out = self._serial, self._broken, self._left_out
        self._config_writer.tell(
            WriteFile(self._path, text, serial, self.address, broken, left_out)
        )

    def log_dropped(self, event: str, **about: Any) -> None:
        """Warn of a dropped change that no requester waits for, once per kind and minute."""
        self._dropped_count += 1
        self.system.rarely.warn(event, **about, dropped_in_all=self._dropped_count)

    def on_refused_oneway(self, request: Request, remark: str) -> None:
        """Log a refused one-way request; its sender gets no answer."""
        code, peer = request.command.code, request.peer.remote
        self.log_dropped("one-way request refused", code=code, peer=peer, reason=remark)

    @handles(FileWritten)
    def on_file_written(self, message: FileWritten) -> None:
        """Call what waited for this text or an earlier one."""
        self._written_serial = max(self._written_serial, message.serial)
        if not message.refusal:
            self._left_out = ()
        while self._unwritten and self._unwritten[0][0] <= message.serial:
            self._unwritten.popleft()[1](message.refusal)

    @staticmethod
    def answer_saved(request: Request, refusal: str, *, remark: str | None = None) -> None:
        """Answer a change with success, or with an error if it is not on disk."""
        if refusal:
            request.answer(ResponseCode.SYSTEM_ERROR, remark=_NOT_SAVED % refusal)
        else:
            request.answer(remark=remark)

    def on_failure(self, *_: object) -> None:
        """Call all waiting functions with the failure; texts already sent are still written."""
        while self._unwritten:
            self._unwritten.popleft()[1](self.remark())

    def can_stop(self) -> bool:
        """Return whether all texts are written, as later results would be lost."""
        return self._written_serial >= self._serial


class BatchedTable(PersistedTable):
    """Base class of tables that are saved at the end of each batch.

    A client with a thousand changes at once thus has the table copied and written once.
    """

    def __init__(self, path: str, config_writer: ActorAddress) -> None:
        super().__init__(path, config_writer)
        self._is_changed = False
        self._thens: list[Then] = []
        """Functions of the changes that were not sent to ConfigWriter yet."""

    def write(self, thens: Sequence[Then]) -> None:
        """Call `save` with the text of the present table and `thens`."""
        raise NotImplementedError

    def changed(self, *thens: Then) -> None:
        """Note a change and the functions to call when it is saved."""
        self._is_changed = True
        self._thens += thens

    def when_saved(self, then: Callable[[], None]) -> None:
        """Call `then` at once, or when all changes so far are on disk."""
        if self._is_changed:
            self._thens.append(lambda _: then())
        elif self._unwritten:
            self._unwritten.append((self._serial, lambda _: then()))
        else:
            then()

    def save_changes(self) -> None:
        if self._is_changed:
            thens, self._thens = self._thens, []
            self._is_changed = False
            self.write(thens)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        self.save_changes()

    def on_failure(self, *reason: object) -> None:
        """Send earlier changes to ConfigWriter, too."""
        self.save_changes()
        super().on_failure(*reason)

    def can_stop(self) -> bool:
        """Save the last changes; return whether all are written."""
        self.save_changes()
        return super().can_stop()


class TickedTable(PersistedTable):
    """Base class of tables that are saved every few seconds and at the stop."""

    def save_every(self, interval_ms: float) -> None:
        self.every(interval_ms, Save())

    def save_in(self, delay_ms: float) -> None:
        """Save changes once more, earlier than the next interval ends."""
        self.after(delay_ms, Save())

    def save_changes(self) -> None:
        raise NotImplementedError

    @handles(Save)
    def on_save(self, _: Save) -> None:
        self.save_changes()

    def can_stop(self) -> bool:
        """Save the last changes; return whether all are written."""
        self.save_changes()
        return super().can_stop()
