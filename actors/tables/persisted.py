"""The base of actors whose table is a JSON file: they answer when a change is on disk.

A file that is damaged does not stop the start: the newest version that can be used is taken, one
log line says what was found, and the file is written again, the damaged one kept as .broken. An
entry that cannot be used is left out, with a line in the log, and kept in the file's side file.

The table is changed at once, its text goes to the ConfigWriter, and what depends on the change (a
snapshot for others, an answer) waits until the text is written. When the disk refuses it the change
holds all the same, whoever asked for it gets an error, and the ConfigWriter tries again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias, TypeVar

from structlog import get_logger

from actors.engine.actor import BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.network.request import Request, Responder
from actors.tables.config_writer import FileWritten, WriteFile
from protocol.codes import ResponseCode
from storage.tables.json_config import Loaded, left_out_path, load
from storage.tables.skipped_entry import Parse, SkippedEntry

log = get_logger(__name__)

T = TypeVar("T")
Then: TypeAlias = Callable[[str], None]
"""What is to be done when a change is on disk; it is told why it is not there, or nothing."""

LEFT_OUT_LINES_MAX = 50
"""Lines about entries of one file; what comes after is counted."""
_NOT_SAVED = "the change holds, but is not on the disk yet, which is tried again: %s"
_serials = count(1)
"""Numbers of texts, never used twice: news for an actor of before the restart means nothing."""


@dataclass(frozen=True, slots=True)
class Save:
    """Write the file if something has changed."""


class PersistedTable(Responder):
    """Base of the table actors."""

    def __init__(self, path: str, config_writer: ActorAddress) -> None:
        super().__init__()
        self._path = path
        self._config_writer = config_writer
        self._serial = 0
        self._written_serial = 0
        self._broken: tuple[str, ...] = ()
        self.damaged_files = 0
        """Of the two of this table, found so at the start."""
        self._left_out: tuple[SkippedEntry, ...] = ()
        """Until they are in the side file."""
        self._unwritten: deque[tuple[int, Then]] = deque()
        self._dropped_count = 0

    @property
    def path(self) -> str:
        """Of its file."""
        return self._path

    def load(self, parse: Parse[T]) -> Loaded[T]:
        """What can be used of the file; what is wrong with it is logged.

        When it `is_to_be_saved`, the caller saves what it makes of it. Raises StoreError when the
        operator does not let us read it. Reads the disk: for `on_start` only.
        """
        loaded = load(self.system.disk, self._path, parse)
        self.damaged_files = len(loaded.broken) or int(bool(loaded.findings))
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
        """Writes what `text` returns, in another thread: it may look at nothing that changes.

        `thens` are called here, one after another, when it is on disk or the disk has refused it.
        """
        self._serial = next(_serials)
        self._unwritten.extend((self._serial, then) for then in thens)
        serial, broken, left_out = self._serial, self._broken, self._left_out
        self._config_writer.tell(
            WriteFile(self._path, text, serial, self.address, broken, left_out)
        )

    def log_dropped(self, event: str, **about: Any) -> None:
        """One line a kind and minute for what is not taken and nobody waits for."""
        self._dropped_count += 1
        self.system.rarely.warn(event, **about, dropped_in_all=self._dropped_count)

    def on_refused_oneway(self, request: Request, remark: str) -> None:
        """A change that was asked for does not happen, and nobody is told."""
        code, peer = request.command.code, request.peer.remote
        self.log_dropped("one-way request refused", code=code, peer=peer, reason=remark)

    @handles(FileWritten)
    def on_file_written(self, message: FileWritten) -> None:
        """Does what waited for this text or an earlier one."""
        self._written_serial = max(self._written_serial, message.serial)
        if not message.refusal:
            self._left_out = ()
        while self._unwritten and self._unwritten[0][0] <= message.serial:
            self._unwritten.popleft()[1](message.refusal)

    @staticmethod
    def answer_saved(request: Request, refusal: str, *, remark: str | None = None) -> None:
        """Answers who asked for a change: done, or done but not on disk, which is an error."""
        if refusal:
            request.answer(ResponseCode.SYSTEM_ERROR, remark=_NOT_SAVED % refusal)
        else:
            request.answer(remark=remark)

    def on_failure(self, *_: object) -> None:
        """Who waits for the disk waits no longer; what was on its way there still is."""
        while self._unwritten:
            self._unwritten.popleft()[1](self.remark())

    def can_stop(self) -> bool:
        """Not before everything is written: what is told last may otherwise come too late."""
        return self._written_serial >= self._serial


class BatchedTable(PersistedTable):
    """Base of those whose file follows at the end of each batch: whoever brings a thousand changes
    at once has the whole table copied and written once."""

    def __init__(self, path: str, config_writer: ActorAddress) -> None:
        super().__init__(path, config_writer)
        self._is_changed = False
        self._thens: list[Then] = []
        """Of the changes that are not on their way to the disk yet."""

    def write(self, thens: Sequence[Then]) -> None:
        """Calls `save` with the text of the table as it is now, and these."""
        raise NotImplementedError

    def changed(self, *thens: Then) -> None:
        """The table is another one."""
        self._is_changed = True
        self._thens += thens

    def when_saved(self, then: Callable[[], None]) -> None:
        """At once, or when the changes that have been made until now are on disk."""
        if self._is_changed:
            self._thens.append(lambda _: then())
        elif self._unwritten:
            self._unwritten.append((self._serial, lambda _: then()))
        else:
            then()

    def save_changes(self) -> None:
        """Saves the table if something has changed."""
        if self._is_changed:
            thens, self._thens = self._thens, []
            self._is_changed = False
            self.write(thens)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """The file follows."""
        self.save_changes()

    def on_failure(self, *reason: object) -> None:
        """What had changed before goes to the disk, too."""
        self.save_changes()
        super().on_failure(*reason)

    def can_stop(self) -> bool:
        """Once the last changes are in the file."""
        self.save_changes()
        return super().can_stop()


class TickedTable(PersistedTable):
    """Base of those whose file follows every few seconds and at the stop; `on_start` says how."""

    def save_every(self, interval_ms: float) -> None:
        """From now on `save_changes` is called so often."""
        self.every(interval_ms, Save())

    def save_changes(self) -> None:
        """Saves the table if something has changed."""
        raise NotImplementedError

    @handles(Save)
    def on_save(self, _: Save) -> None:
        """The file follows."""
        self.save_changes()

    def can_stop(self) -> bool:
        """Once the last changes are in the file."""
        self.save_changes()
        return super().can_stop()
