"""Consume queue of one topic and queue id: positions of its messages in the commit log.

All integers are big-endian. The unit of the message with queue offset n begins at byte 20·n.

    offset  size  type  field
    0       8     i64   physical_offset   first byte of the record in the commit log
    8       4     i32   record_bytes      0 in an unwritten unit
    12      8     i64   tags_code         hash of the tag; due time in ms for delayed messages

Files are `<topic>/<queue id>/<first byte, 20 digits>`, sparse and of one size (300,000 units). If a
queue begins with a later message, fillers (0, 0x7FFFFFFF, 0) precede it in its first file.

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
"""Maximum first queue offset: Java keeps its byte position as an i64, and files are named by it."""
_LOOKED_AT_UNITS: Final = 8
"""Units examined at the beginning of a file or the end of a queue, to find a valid one."""
_SCAN_UNITS: Final = 3276
_RECORD_BYTES_MAX: Final = FILLER_BYTES - 1


class ConsumeQueue(StoredUnits):
    """Units of one queue. One owner; offsets count units unless a name says otherwise."""

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
        """Queue offset from which readers need no unit checks."""
        self.misfit = ""
        """Reason why `load` found the files incomplete; the queue needs a rebuild from the log."""
        self.misplaced_count = 0
        """Units appended although their message names another queue offset."""
        self._run: QueueRun | None = None

    def ext(self, address: int) -> ExtUnit | None:
        """Return the unit of the queue's extension at `address`, or None."""
        return None

    @property
    def directories(self) -> tuple[str, ...]:
        return (self.directory,)

    def takes(self, queue_offset: int) -> bool:
        """Return whether a message with this queue offset can be appended.

        An empty queue accepts only offsets up to `QUEUE_OFFSET_MAX`.
        """
        return not self.is_empty or 0 <= queue_offset <= QUEUE_OFFSET_MAX

    # -- adding -------------------------------------------------------------------------------

    def append(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> bool:
        """Append the unit of a message; return False if the queue already has it."""
        end = physical_offset + record_bytes
        if queue_offset != self.max_offset or end <= self.max_physical_offset:
            return self._append_out_of_order(queue_offset, physical_offset, record_bytes, tags_code)
        self.tail += _PACK(physical_offset, record_bytes, tags_code)
        self.max_offset = queue_offset + 1
        self.max_physical_offset = end
        return True

    def is_continued_by(self, run: UnitRun) -> bool:
        first, record_bytes, _ = UNIT.unpack_from(run.units)
        end = first + record_bytes
        return run.queue_offset == self.max_offset and bool(end > self.max_physical_offset)

    def append_run(self, run: UnitRun) -> None:
        last, record_bytes, _ = UNIT.unpack_from(run.units, len(run.units) - UNIT_BYTES)
        self.tail += run.units
        self.max_offset += len(run.units) // UNIT_BYTES
        self.max_physical_offset = last + record_bytes
        self.note_unwritten()

    def _append_out_of_order(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> bool:
        """Append a unit that is a duplicate, begins the queue late, or follows a hole.

        As in RocketMQ, a unit behind a hole goes to the end of the queue instead of its own
        position. Raises StoreError for a queue offset at which no queue can begin.
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
        """Return whether the queue has this unit; overwrite a damaged copy of it."""
        found = bytes(self.units(queue_offset, 1))
        if found == unit:
            return True
        if found and is_damaged_copy(found, unit, queue_offset % self._file_units * UNIT_BYTES):
            self.repair(queue_offset, *UNIT.unpack(unit))
            return True
        return False

    def fill_gap(self, up_to: int, physical_offset: int, gap_bytes: int) -> None:
        """Append units that point at a damaged range, up to queue offset `up_to`."""
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
        """Overwrite the unit of a message, in memory and in its file.

        A missing unit is ignored. Raises DiskFull or StoreError; memory is already updated then.
        """
        if not self.first_offset <= queue_offset < self.max_offset:
            return
        if queue_offset == self.max_offset - 1:
            self.max_physical_offset = physical_offset + record_bytes
        self._overwrite(queue_offset, _PACK(physical_offset, record_bytes, tags_code))

    # -- start-up -----------------------------------------------------------------------------

    def load(self, min_physical: int = -1, run: QueueRun | None = None) -> None:
        """Read the queue's directory and find the end of the queue, from the back.

        No file changes; `mend` changes them, once the next start would detect a crash. Holes and
        damaged units in the middle stay. `misfit` is set when files are missing or unusable.
        `min_physical` is the log's first offset, or -1 if unknown.
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
        """Load the queue from the offsets of a clean stop, without reading its files.

        Return False and load nothing if the files do not match the offsets.
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
        """Delete the unusable files and zero what follows the end. Raises OSError.

        Call it only when the next start would detect a crash.
        """
        run, self._run = self._run, None
        if run is None:
            return
        for path in run.unfit:
            self._files.remove(path)
        self._zero_behind_end()

    def _begin_at(self, end: int) -> None:
        """Set the next queue offset to `end` and clear the memory."""
        self.tail.clear()
        self.max_offset = self.tail_first = self.written_offset = self.synced_offset = end

    def _set_end(self, end: int) -> None:
        """Set the end of the queue, delete files behind it and find the end of the last record."""
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
        """Zero stale units behind the end, which would otherwise count once the queue grows."""
        if self._file_firsts:
            file_first = self._file_firsts[-1]
            position = (self.max_offset - file_first) * UNIT_BYTES
            self._files.zero_from(self._path(file_first), position)

    def truncate_behind(self, physical_end: int) -> None:
        """Drop the units of records at or behind `physical_end`, in memory and in files.

        Units before them that a power failure left empty are dropped, too.
        """
        if self.is_empty:
            return
        self.mend()  # First, so that new writes are not taken for loaded content.
        self.write_out()
        end = self._first_behind(physical_end) if physical_end > 0 else 0
        while end > self.first_offset and (unit := self.unit(end - 1)) and not any(unit):
            end -= 1
        if end < self.max_offset:
            self._set_end(end)
            self._zero_behind_end()
        # A flipped bit in the last unit must not block new units.
        self.max_physical_offset = min(self.max_physical_offset, physical_end)

    def _first_behind(self, border: int) -> int:
        """Return the first queue offset with a record at or behind `border`, else the end.

        Single damaged units are tolerated.
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
        while first < self.max_offset:
            part = self.units(first, _SCAN_UNITS)
            yield from UNIT.iter_unpack(part)
            first += max(len(part) // UNIT_BYTES, 1)

    # -- cleaning -----------------------------------------------------------------------------

    def correct_min_offset(self, min_physical: int) -> None:
        """Set `min_offset` to the first message in a log that begins at `min_physical`.

        Without such a message, `min_offset` stays.
        """
        first = self._first_behind(min_physical)
        if first < self.max_offset:
            self.min_offset = first

    def trim_before(self, min_physical: int) -> list[str]:
        """Release the files of which all records are deleted, except the last file.

        Return their paths, oldest first, for the caller to delete. `min_offset` is raised
        accordingly.
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
        self.forget_files()
        disk.remove_tree(self.directory)
        self._file_firsts = []
        self._run = None
        self._set_end(0)
