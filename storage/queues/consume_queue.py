"""One queue of one topic: where each of its messages lies in the commit log.

All integers big-endian. The message with queue offset n has its unit at byte 20·n of the queue.

    offset  size  type  field
    0       8     i64   physical_offset   first byte of the record in the commit log
    8       4     i32   record_bytes      0 where no unit was written yet
    12      8     i64   tags_code         hash of the tag; due time in ms for delayed messages

Files `<topic>/<queue id>/<first byte, 20 digits>`, of one size (300,000 units), sparse. The first
file of a queue that begins with a later message is filled with (0, 0x7FFFFFFF, 0) up to it.

Source: store/ConsumeQueue.java, MappedFileQueue.java.
"""

from collections.abc import Iterator
from typing import Final

from storage.errors import StoreError
from storage.files.disk import Disk
from storage.queues.consume_queue_ext import ExtUnit
from storage.queues.queue_files import QueueFiles
from storage.queues.queue_run import QueueRun, begins_with_filler, count_used, read_queue_run
from storage.queues.queue_units import (
    FILLER_BYTES,
    UNIT,
    UNIT_BYTES,
    Unit,
    UnitRun,
    first_behind,
    is_behind,
    is_damaged_copy,
    voted_first_behind,
)
from storage.queues.stored_units import StoredUnits

__all__ = ["FILLER_BYTES", "UNIT", "UNIT_BYTES", "ConsumeQueue", "Unit"]

_PACK: Final = UNIT.pack
QUEUE_OFFSET_MAX: Final = ((1 << 63) - 1) // UNIT_BYTES
"""Of a queue's first message: where its unit lies is an i64 for Java, and a file's name here."""
_LOOKED_AT_UNITS: Final = 8
"""At a file's beginning or a queue's end, to find one that can be believed."""
_SCAN_UNITS: Final = 3276
_RECORD_BYTES_MAX: Final = FILLER_BYTES - 1


class ConsumeQueue(StoredUnits):
    """The units of one queue. One owner; offsets without a unit of measure count units."""

    __slots__ = (
        "_run",
        "misfit",
        "misplaced_count",
        "queue_id",
        "topic",
        "verified_from",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: str,
        files: QueueFiles,
        unwritten: list[StoredUnits] | None = None,
    ) -> None:
        super().__init__(directory, files, unwritten)
        self.topic = topic
        self.queue_id = queue_id
        self.verified_from = 0
        """Readers need not check units at or above it."""
        self.misfit = ""
        """Why `load` could not find all units, in words: make the queue anew from the log."""
        self.misplaced_count = 0
        """Units appended although their message names another queue offset."""
        self._run: QueueRun | None = None

    def ext(self, address: int) -> ExtUnit | None:
        """What the queue's extension holds at an address; None without one, and if nothing."""
        return None

    @property
    def directories(self) -> tuple[str, ...]:
        """Where the queue's files lie."""
        return (self.directory,)

    def takes(self, queue_offset: int) -> bool:
        """Whether a message of this number can be added: a queue begins where a unit can lie."""
        return not self.is_empty or 0 <= queue_offset <= QUEUE_OFFSET_MAX

    # -- adding -------------------------------------------------------------------------------

    def append(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> bool:
        """Adds the unit of a message; False if the queue has it already."""
        end = physical_offset + record_bytes
        if queue_offset != self.max_offset or end <= self.max_physical_offset:
            return self._append_out_of_order(queue_offset, physical_offset, record_bytes, tags_code)
        self.tail += _PACK(physical_offset, record_bytes, tags_code)
        self.max_offset = queue_offset + 1
        self.max_physical_offset = end
        return True

    def is_continued_by(self, run: UnitRun) -> bool:
        """Whether units go on where the queue ends."""
        first, record_bytes, _ = UNIT.unpack_from(run.units)
        end = first + record_bytes
        return run.queue_offset == self.max_offset and bool(end > self.max_physical_offset)

    def append_run(self, run: UnitRun) -> None:
        """Adds units that continue the queue."""
        last, record_bytes, _ = UNIT.unpack_from(run.units, len(run.units) - UNIT_BYTES)
        self.tail += run.units
        self.max_offset += len(run.units) // UNIT_BYTES
        self.max_physical_offset = last + record_bytes
        self.note_unwritten()

    def _append_out_of_order(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> bool:
        """A duplicate, the first unit of a queue that begins late, or a hole in the numbering.

        As in RocketMQ, a unit after a hole goes to the end of the queue, not to its own place.
        Raises StoreError for a number that no queue can begin with.
        """
        if self.min_offset <= queue_offset < self.max_offset and self._mend_unit(
            queue_offset, _PACK(physical_offset, record_bytes, tags_code)
        ):
            return False
        if physical_offset + record_bytes <= self.max_physical_offset:
            return False
        if not self.takes(queue_offset):
            raise StoreError(
                f"the record at {physical_offset} of the commit log is message {queue_offset} of "
                f"queue {self.queue_id} of topic {self.topic!r}, which cannot be its first: the "
                "record is damaged or forged."
            )
        if self.is_empty:
            self.begin_at(queue_offset)
        elif 0 < queue_offset < self.max_offset:
            return False
        else:
            self.misplaced_count += 1
        return self.append(self.max_offset, physical_offset, record_bytes, tags_code)

    def _mend_unit(self, queue_offset: int, unit: bytes) -> bool:
        """Whether this unit is there; what is left of it after damage is overwritten."""
        found = bytes(self.units(queue_offset, 1))
        if found == unit:
            return True
        if found and is_damaged_copy(found, unit, queue_offset % self._file_units * UNIT_BYTES):
            self.repair(queue_offset, *UNIT.unpack(unit))
            return True
        return False

    def fill_gap(self, up_to: int, physical_offset: int, gap_bytes: int) -> None:
        """Gives every message from the end up to `up_to` a unit that points at a damaged range."""
        count = up_to - self.max_offset
        if count <= 0:
            return
        if self.is_empty:
            self.tail_first = self.written_offset = self.synced_offset = self.max_offset
        unit = _PACK(physical_offset, min(gap_bytes, _RECORD_BYTES_MAX), 0)
        self.tail += unit * count
        self.max_offset = up_to
        self.max_physical_offset = max(self.max_physical_offset, physical_offset + gap_bytes)
        self.note_unwritten()

    def repair(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> None:
        """Overwrites the unit of a message, in memory and in its file.

        Nothing happens where there is none. Raises DiskFull or StoreError; memory is right then.
        """
        if not self.first_offset <= queue_offset < self.max_offset:
            return
        if queue_offset == self.max_offset - 1:
            self.max_physical_offset = physical_offset + record_bytes
        self._overwrite(queue_offset, _PACK(physical_offset, record_bytes, tags_code))

    # -- start-up -----------------------------------------------------------------------------

    def load(self, min_physical: int = -1, run: QueueRun | None = None) -> None:
        """Reads what lies in the directory and finds the queue's end, from the back.

        Changes nothing on the disk: `mend` does, as soon as a crash would be noticed. Holes and
        damaged units in the middle stay. `misfit` tells when files are missing or cannot be used.
        `min_physical` is where the log begins; -1 if that is not known.
        """
        files = self._files
        if run is None:
            run = read_queue_run(files.disk, self.directory, files.file_bytes, min_physical)
        self._run = run
        firsts = [first // UNIT_BYTES for first in run.firsts]
        if (
            min_physical == 0
            and firsts
            and firsts[0]
            and not begins_with_filler(files.file(self._path(firsts[0])))
        ):
            run.blame(f"{self._path(0)} is missing")
            run.unfit += map(self._path, firsts)
            firsts = []
        end = 0
        while firsts:
            path = self._path(firsts[-1])
            if used := count_used(files.file(path), files.file_bytes):
                end = firsts[-1] + used
                break
            firsts.pop()
            files.forget(path)
            run.unfit.append(path)
            run.blame(f"{path} is empty")
        self._file_firsts = firsts
        self.min_offset = firsts[0] if firsts else 0
        self._set_end(end)
        self.verified_from = end
        self.misfit = run.fault

    def load_known(
        self,
        min_offset: int,
        max_offset: int,
        max_physical_offset: int,
        run: QueueRun | None = None,
    ) -> bool:
        """The same from what was noted at a clean stop, without reading a file.

        False, and nothing done, if the files are not those of these offsets.
        """
        files = self._files
        if run is None:
            run = read_queue_run(files.disk, self.directory, files.file_bytes, 0)
        firsts = [first // UNIT_BYTES for first in run.firsts]
        if run.fault or run.unfit or not min_offset <= max_offset:
            return False
        if firsts:
            fits = firsts[0] <= min_offset and 0 < max_offset - firsts[-1] <= self._file_units
        else:
            fits = max_offset == 0
        if fits:
            self._file_firsts = firsts
            self._begin_at(max_offset)
            self.min_offset, self.max_physical_offset = min_offset, max_physical_offset
            self.verified_from = max_offset
        return fits

    def mend(self) -> None:
        """Takes away the files that do not fit, and what lies behind the end. Raises OSError.

        Only to be called once a crash would be noticed at the next start.
        """
        run, self._run = self._run, None
        if run is None:
            return
        for path in run.unfit:
            self._files.remove(path)
        self._zero_behind_end()

    def _begin_at(self, end: int) -> None:
        """Makes `end` the next queue offset, with nothing in memory."""
        self.tail.clear()
        self.max_offset = self.tail_first = self.written_offset = self.synced_offset = end

    def _set_end(self, end: int) -> None:
        """The same; files that begin behind it go, and the last unit says where its record ends."""
        firsts = self._file_firsts
        while firsts and firsts[-1] >= end:
            self._files.remove(self._path(firsts.pop()))
        if not firsts:
            end = self.min_offset = 0
        self._begin_at(end)
        self.min_offset = min(self.min_offset, end)
        self.verified_from = min(self.verified_from, end)
        self.max_physical_offset = -1
        for offset in range(end - 1, max(self.first_offset, end - _LOOKED_AT_UNITS) - 1, -1):
            unit = self.unit(offset)
            if unit is not None and unit[0] >= 0 and 0 < unit[1] < FILLER_BYTES:
                self.max_physical_offset = unit[0] + unit[1]
                break

    def _zero_behind_end(self) -> None:
        """Stale units must not be taken for new ones once the queue has grown up to them."""
        if self._file_firsts:
            file_first = self._file_firsts[-1]
            position = (self.max_offset - file_first) * UNIT_BYTES
            self._files.zero_from(self._path(file_first), position)

    def truncate_behind(self, physical_end: int) -> None:
        """Drops the units of records at or behind `physical_end`, in memory and in the files.

        Units before them that a power cut left empty go, too.
        """
        if self.is_empty:
            return
        self.mend()  # before: what is written now must not be taken for what was found
        self.write_out()
        end = self._first_behind(physical_end) if physical_end > 0 else 0
        while end > self.first_offset and (unit := self.unit(end - 1)) and not any(unit):
            end -= 1
        if end < self.max_offset:
            self._set_end(end)
            self._zero_behind_end()
        # A flipped bit in the last unit must not keep new ones out.
        self.max_physical_offset = min(self.max_physical_offset, physical_end)

    def _first_behind(self, border: int) -> int:
        """The first queue offset whose record begins at or behind `border`, else the end.

        Single units may be wrong.
        """
        found, agrees = first_behind(self.unit, self.first_offset, self.max_offset, border)
        if agrees:
            return found
        first = self.first_offset
        for file_first in reversed(self.file_firsts()):
            looked_at = range(
                max(file_first, first), min(file_first + _LOOKED_AT_UNITS, self.max_offset)
            )
            if any(is_behind(self.unit(each), border) is False for each in looked_at):
                first = looked_at[0]
                break
        return voted_first_behind(self._scan(first), first, border)

    def _scan(self, first: int) -> Iterator[Unit]:
        """All units from `first` on."""
        while first < self.max_offset:
            part = self.units(first, _SCAN_UNITS)
            yield from UNIT.iter_unpack(part)
            first += max(len(part) // UNIT_BYTES, 1)

    # -- cleaning -----------------------------------------------------------------------------

    def correct_min_offset(self, min_physical: int) -> None:
        """Sets `min_offset` to the first message that is still in a log beginning there.

        If there is none, `min_offset` stays what it was.
        """
        first = self._first_behind(min_physical)
        if first < self.max_offset:
            self.min_offset = first

    def trim_before(self, min_physical: int) -> list[str]:
        """Takes the files, but never the last, whose records are all gone out of use.

        Gives their paths, oldest first, for somebody else to delete; `min_offset` follows.
        """
        if is_behind(self.unit(self.min_offset), min_physical):
            return []
        border = self._first_behind(min_physical)
        paths = []
        while len(self._file_firsts) > 1 and self._file_firsts[1] <= border:
            paths.append(self._path(self._file_firsts.pop(0)))
            self._files.forget(paths[-1])
        self.min_offset = max(self.min_offset, self.first_offset)
        if border < self.max_offset:
            self.min_offset = border
        return paths

    def remove(self, disk: Disk) -> None:
        """Deletes all files and forgets all units."""
        self.forget_files()
        disk.remove_tree(self.directory)
        self._file_firsts = []
        self._run = None
        self._set_end(0)
