"""Use of the journal of consumer offsets: which changes are in it, and when a new file begins.

    no receives so far         no journal, and consumerOffset.json as 4.9.7 writes it
    first progress             the table is saved with a generation; answers wait for that save
    progress of receives       one entry for each batch, then the answers
    other change of such a key one entry, at once: a replay never undoes a reset or a deletion
    each save of the table     a new file, which begins with the settled offsets above the table's
    save is on disk            older files are deleted
    write fails                no journal until the next save; answers do not wait

A key is journaled from its first progress to the end of the files that have it. Commits of pulls
are journaled for such keys only. A client that pulls continues at its own position after a kill.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from storage.errors import store_error
from storage.files.disk import Disk
from storage.tables.ahead_set import AheadSet
from storage.tables.offset_journal import (
    AHEAD_SPAN_MAX,
    FILE_BYTES_MAX,
    JournalFault,
    JournalFile,
    OffsetState,
    generations,
    replay,
)

log = get_logger(__name__)

FILES_MAX = 8
"""Files, each for a save that is not on disk; past it the journal pauses."""

Ahead = Mapping[tuple[str, int], AheadSet]
"""Settled offsets above the consumer offset, by `topic@group` and queue."""


class OffsetJournal:
    """Journal of one table. Used by ConsumerOffsets alone, on the loop."""

    def __init__(self, directory: str, published: SnapshotRef[Ahead]) -> None:
        """Publish the settled offsets themselves, which change."""
        self._directory, self._published = directory, published
        self._disk: Disk
        self._state = OffsetState()
        self._files: list[JournalFile] = []
        self._present: JournalFile | None = None
        """File that takes entries; None while there is no journal."""
        self._last = self._chain = 0
        """Latest generation, and the checksum behind the last replayed entry."""
        self._is_failing = False
        self.is_used = False
        self.is_waiting = False
        """Whether the first save with a generation is not on disk yet: answers wait for it."""

    # --- the start

    def begin(self, disk: Disk, generation: int | None, offsets: dict[str, dict[int, int]]) -> int:
        """Replay the journal over the saved table; return the number of entries.

        `generation` is the one that the table names. Raises StoreError if it must not be read.
        """
        self._disk = disk
        self._state = OffsetState(offsets)
        self._published.value = self._state.ahead
        if generation is None:
            return 0
        self.is_used, self._last = True, generation
        faults: list[JournalFault] = []
        try:
            count, self._chain = replay(disk, self._directory, generation, self._state, faults)
        except OSError as error:
            raise store_error("cannot read the journal of consumer offsets", error) from error
        for each in faults:
            if not each.is_at_end:  # which a power cut leaves
                log.warning("offset journal damaged", found=each.text)
        return count

    def limit(self, end: Callable[[str, int], int] | None) -> None:
        """Forget settled offsets at or above the end of their queue: others will have them.

        `end(key, queue_id)` is None on a slave, which forgets all.
        """
        ahead = self._state.ahead
        for (key, queue_id), found in ahead.copy().items():
            offset = self._state.offsets.get(key, {}).get(queue_id)
            if end is not None and offset is not None:
                found.forget_from(end(key, queue_id))
                if found.last >= offset:
                    continue
            del ahead[key, queue_id]

    # --- changes

    def advance(self, key: str, queue_id: int, offset: int, settled: Sequence[int]) -> None:
        """Note progress, to be written by `write`; the table has `offset` already."""
        if settled:
            settled = [each for each in settled if offset < each < offset + AHEAD_SPAN_MAX]
        if settled or (key, queue_id) in self._state.ahead:
            self._state.settle(key, queue_id, offset, settled)
        if self._present is not None:
            self._present.settle(key, queue_id, offset, settled)

    def move(self, key: str, queue_id: int, offset: int) -> None:
        """Note another change of an offset."""
        self._state.ahead.pop((key, queue_id), None)
        if self._present is not None and self._has(key):
            self._present.move(key, queue_id, offset)
            self.write()

    def replace(self, key: str, queues: Mapping[int, int], before: Iterable[int]) -> None:
        """Note that a key has these offsets now, or none at all; `before` are its former queues."""
        ahead = self._state.ahead
        for queue_id in before if ahead else ():  # a topic may have 65,536 queues
            ahead.pop((key, queue_id), None)
        if self._has(key):
            self.restate(key, queues)
            self.write()

    def restate(self, key: str, queues: Mapping[int, int]) -> None:
        """Note all offsets of a key, to be written by `write`; nothing above them is settled."""
        if self._present is not None:
            self._present.remove(key)
            for queue_id, offset in queues.items():
                self._present.move(key, queue_id, offset)

    def _has(self, key: str) -> bool:
        return any(key in each.keys for each in self._files)

    def write(self) -> None:
        """Write what has been noted, with one system call."""
        if self._present is None:
            return
        try:
            self._present.write()
        except OSError as error:
            self._fail(str(error))
        else:
            if self._present.size > 2 * FILE_BYTES_MAX:
                self._fail("the table is not saved")

    @property
    def is_paused(self) -> bool:
        """Whether nothing is written until the next save."""
        return self._present is None

    @property
    def is_long(self) -> bool:
        """Whether the table should be saved at once, so that a new file begins."""
        return self._present is not None and self._present.size > FILE_BYTES_MAX

    def _fail(self, reason: str) -> None:
        self._present = None
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "offset journal not written",
                reason=reason,
                hint="a kill of the broker repeats what was acknowledged since the last save",
            )

    # --- saves

    def use(self) -> bool:
        """Begin the journal; return whether it has begun already."""
        was_used, self.is_used = self.is_used, True
        self.is_waiting |= not was_used
        return was_used

    def next_generation(self, now_ms: int) -> int | None:
        """Begin a new file, for a save of the present table; return its generation.

        Return None before the first use of the journal.
        """
        if not self.is_used:
            return None
        former, self._present = self._present, None
        self._last = max(now_ms, self._last + 1)
        try:
            known = generations(self._disk, self._directory)
            self._last = max([self._last, *(each + 1 for each in known)])
            if len(self._files) >= FILES_MAX:
                raise OSError("the table is not saved")
            follows, self._chain = self._chain if former is None else former.chain, 0
            made = JournalFile(self._disk, self._directory, self._last, follows)
            self._files.append(made)
            self._present = made
            made.settled(self._state.ahead)
            made.write()
        except OSError as error:
            self._fail(str(error))
        return self._last

    def saved(self, generation: int, refusal: str) -> None:
        """Note the result of the save that names `generation`."""
        self.is_waiting = False
        if refusal:
            return
        kept = [each for each in self._files if each.generation >= generation]
        for each in self._files:
            if each.generation < generation:
                each.close()
        self._files = kept
        self._delete_before(generation)
        if self._is_failing and self._present is not None:
            self._is_failing = False
            log.info("offset journal written again")

    def _delete_before(self, generation: int) -> None:
        try:
            for each in generations(self._disk, self._directory):
                if each < generation:
                    self._disk.unlink(f"{self._directory}/{each}")
        except OSError as error:  # they are void all the same, and the next save tries again
            log.warning("offset journal not deleted", generation=generation, reason=str(error))

    def close(self) -> None:
        for each in self._files:
            each.close()
        self._files, self._present = [], None
