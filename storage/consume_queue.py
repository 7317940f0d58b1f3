"""One queue of one topic: where each of its messages lies in the commit log.

All integers big-endian. The message with queue offset n has its unit at byte 20·n of the queue.

    offset  size  type  field
    0       8     i64   physical_offset   first byte of the record in the commit log
    8       4     i32   record_bytes      0 where no unit was written yet
    12      8     i64   tags_code         hash of the tag; due time in ms for delayed messages

Files `<topic>/<queue id>/<first byte, 20 digits>`, of one size (300,000 units), sparse. The first
file of a queue that begins with a later message is filled with (0, 0x7FFFFFFF, 0) up to it.

New units stay in memory (`tail`) until `write_out`; readers in this process see both. A crash loses
the tail, and the log rebuilds it.

Source: store/ConsumeQueue.java, MappedFileQueue.java.
"""

from struct import Struct
from typing import Final

from storage.disk import Disk
from storage.errors import StoreError, store_error
from storage.mapped_file import file_name, first_offset_of
from storage.queue_files import UNIT_BYTES, QueueFiles, valid_units
from storage.time_search import StoreTime, nearest_in_time

UNIT: Final = Struct(
    ">q"  # physical_offset
    "i"  # record_bytes
    "q"  # tags_code
)
assert UNIT.size == UNIT_BYTES == 20

FILLER_BYTES: Final = 0x7FFFFFFF
"""The size that a unit without a message has; its other fields are 0."""
_FILLER = UNIT.pack(0, FILLER_BYTES, 0)

_PACK = UNIT.pack
_TAIL_KEPT_UNITS = 256
"""Written units that stay in memory, so that consumers at the end of a queue touch no file."""
_PAGE_BYTES = 4096


class ConsumeQueue:
    """The units of one queue. One owner; offsets without a unit of measure count units."""

    __slots__ = (
        "_file_firsts",
        "_file_units",
        "_files",
        "_suspect",
        "directory",
        "dirty",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "misplaced_count",
        "queue_id",
        "synced_offset",
        "tail",
        "tail_first",
        "topic",
        "written_offset",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self.min_offset = 0
        """First queue offset that may be read."""
        self.max_offset = 0
        """The next message's queue offset."""
        self.max_physical_offset = -1
        """End of the last record that has a unit; what ends before it is not added again."""
        self.tail = bytearray()
        self.tail_first = 0
        """Queue offset of the first unit in `tail`; some of its units may be in a file already."""
        self.written_offset = 0
        self.synced_offset = 0
        self.dirty = False
        """Has units that are in no file yet; kept by whoever collects the queues to write out."""
        self.misplaced_count = 0
        """Units appended although their message names another queue offset."""
        self._files = files
        self._file_units = files.file_bytes // UNIT_BYTES
        self._file_firsts: list[int] = []
        self._suspect = -1

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

    def _append_out_of_order(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> bool:
        """A duplicate, the first unit of a queue that begins late, or a hole in the numbering.

        Like the original, a unit after a hole goes to the end of the queue, not to its own place.
        """
        if queue_offset == self._suspect:
            self._repair(_PACK(physical_offset, record_bytes, tags_code))
            self.max_physical_offset = physical_offset + record_bytes
            return False
        if physical_offset + record_bytes <= self.max_physical_offset:
            return False
        if self.is_empty:
            self.min_offset = self.max_offset = queue_offset
            self.tail_first = self.written_offset = self.synced_offset = queue_offset
        elif 0 < queue_offset < self.max_offset:
            return False
        else:
            self.misplaced_count += 1
        return self.append(self.max_offset, physical_offset, record_bytes, tags_code)

    @property
    def is_empty(self) -> bool:
        """Whether there is no unit, in memory or in a file."""
        return not self._file_firsts and not self.tail

    @property
    def is_written_out(self) -> bool:
        return self.written_offset == self.max_offset

    def write_out(self) -> None:
        """Puts the units that are only in memory into the files, one write per file.

        Raises DiskFull or StoreError; what could not be written stays in memory.
        """
        while self.written_offset < self.max_offset:
            start = self.written_offset
            file_first = start - start % self._file_units
            end = min(file_first + self._file_units, self.max_offset)
            base = self.tail_first
            data = self.tail[(start - base) * UNIT_BYTES : (end - base) * UNIT_BYTES]
            self._write(data, start, file_first)
            self.written_offset = end
        surplus = self.max_offset - self.tail_first - _TAIL_KEPT_UNITS
        if surplus >= _TAIL_KEPT_UNITS:
            del self.tail[: surplus * UNIT_BYTES]
            self.tail_first += surplus

    def _write(self, data: bytearray, start: int, file_first: int) -> None:
        path = self._path(file_first)
        try:
            if not self._file_firsts or file_first > self._file_firsts[-1]:
                self._files.create(self.directory, path, durable_names=bool(self._file_firsts))
                if not self._file_firsts and start > file_first:
                    self._files.write(path, _FILLER * (start - file_first), 0)
                self._file_firsts.append(file_first)
            self._files.write(path, data, (start - file_first) * UNIT_BYTES)
        except OSError as error:
            raise store_error("cannot write to a consume queue", error) from error

    def _repair(self, unit: bytes) -> None:
        """Writes a unit again that a power cut may have left half written."""
        queue_offset, self._suspect = self._suspect, -1
        file_first = queue_offset - queue_offset % self._file_units
        path = self._path(file_first)
        try:
            self._files.write(path, unit, (queue_offset - file_first) * UNIT_BYTES)
        except OSError as error:
            raise store_error("cannot write to a consume queue", error) from error
        self.synced_offset = min(self.synced_offset, queue_offset)

    # -- reading ------------------------------------------------------------------------------

    def units(self, first: int, count: int) -> bytes | bytearray | memoryview:
        """Up to `count` units from queue offset `first` on, 20 bytes each; at least one if it can.

        Never more than up to the end of the file that `first` lies in. Empty when no file holds
        `first`. Not to be kept: it may be a part of a mapped file.
        """
        file_first = first - first % self._file_units
        end = min(first + count, self.max_offset, file_first + self._file_units)
        base = self.tail_first
        if first >= base:
            return self.tail[(first - base) * UNIT_BYTES : max(end - base, 0) * UNIT_BYTES]
        if file_first not in self._file_firsts:
            return b""
        file_end = min(end, self.written_offset)
        view = self._files.view(self._path(file_first))
        part = view[(first - file_first) * UNIT_BYTES : (file_end - file_first) * UNIT_BYTES]
        if end <= file_end:
            return part
        return bytes(part) + self.tail[(file_end - base) * UNIT_BYTES : (end - base) * UNIT_BYTES]

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, record size, tags code); None if no file holds this queue offset."""
        data = self.units(queue_offset, 1)
        return UNIT.unpack(data) if data else None

    def next_file_offset(self, queue_offset: int) -> int:
        """The first queue offset of the file behind the one that `queue_offset` belongs to."""
        return queue_offset + self._file_units - queue_offset % self._file_units

    def file_firsts(self) -> list[int]:
        """The first queue offset of each file; the last may still be in memory alone."""
        firsts = list(self._file_firsts)
        for first in range(
            self.written_offset - self.written_offset % self._file_units,
            self.max_offset,
            self._file_units,
        ):
            if not firsts or first > firsts[-1]:
                firsts.append(first)
        return firsts

    def offset_by_time(self, timestamp: int, store_time: StoreTime, min_physical: int) -> int:
        """The queue offset whose message was stored nearest to `timestamp` (ms).

        Only the first file changed at or after `timestamp` is searched, the last one if none was:
        so times of change of files matter. 0 without units, and where a record cannot be read.
        """
        firsts = self.file_firsts()
        if not firsts:
            return 0
        chosen = firsts[-1]
        for first in firsts[:-1]:
            if first not in self._file_firsts:
                self.write_out()
            if self._files.disk.modified_ms(self._path(first)) >= timestamp:
                chosen = first
                break
        low = max(self.min_offset, chosen)
        high = min(chosen + self._file_units, self.max_offset) - 1
        found = nearest_in_time(self.unit, store_time, timestamp, min_physical, low, high)
        return self.min_offset if found is None else found

    # -- start-up and cleaning ----------------------------------------------------------------

    def load(self, clean: bool) -> None:
        """Reads what lies in the directory and finds the queue's end.

        After a crash (`clean` False) what lies behind the end is zeroed, files behind a missing one
        are removed, and files that are too short are given their size. There may still be holes
        before the last three files: cut them off with `truncate_behind` and what the checkpoint
        vouches for. Otherwise a wrong size or a missing file raises StoreError.
        """
        disk, size = self._files.disk, self._files.file_bytes
        firsts: list[int] = []
        for name in disk.listdir(self.directory):
            byte_offset = first_offset_of(name)
            if byte_offset is None:
                continue
            path = f"{self.directory}/{name}"
            expected = firsts[-1] * UNIT_BYTES + size if firsts else byte_offset
            if byte_offset != expected or byte_offset % size:
                if clean:
                    raise StoreError(
                        f"{self.directory}/{file_name(expected)} is missing before {path}: "
                        "bring it back, or remove the whole directory to have it rebuilt."
                    )
                self._files.remove(path)
                continue
            self._files.check_size(path, may_grow=not clean)
            firsts.append(byte_offset // UNIT_BYTES)
        self._file_firsts = firsts
        if firsts:
            self.min_offset = firsts[0]
            self._find_end(clean)

    def _find_end(self, clean: bool) -> None:
        firsts = self._file_firsts
        start = len(firsts) - 1
        if not clean or (start and not self._last_unit_is_valid(firsts[start - 1])):
            start = max(0, len(firsts) - 3)
        for number in range(start, len(firsts)):
            count = self._files.count_units(self._path(firsts[number]))
            end = firsts[number] + count
            if count < self._file_units:
                break
        self._set_end(end)
        if not clean:
            self._zero_behind(end)
            last_byte = (end - firsts[-1]) * UNIT_BYTES - 1 if firsts else -1
            if last_byte // _PAGE_BYTES > (last_byte - UNIT_BYTES + 1) // _PAGE_BYTES:
                self._suspect = end - 1

    def _last_unit_is_valid(self, file_first: int) -> bool:
        data = self._files.read(
            self._path(file_first), UNIT_BYTES, (self._file_units - 1) * UNIT_BYTES
        )
        return valid_units(data) == 1

    def _set_end(self, end: int) -> None:
        """Makes `end` the next queue offset; files that begin behind it go."""
        firsts = self._file_firsts
        while firsts and firsts[-1] >= end:
            self._files.remove(self._path(firsts.pop()))
        if not firsts:
            end = self.min_offset = 0
        self.tail.clear()
        self.max_offset = self.tail_first = self.written_offset = self.synced_offset = end
        self.min_offset = min(self.min_offset, end)
        self._suspect = -1
        self.max_physical_offset = -1
        last = self.unit(end - 1) if end else None
        if last is not None and 0 < last[1] < FILLER_BYTES:
            self.max_physical_offset = last[0] + last[1]

    def _zero_behind(self, end: int) -> None:
        """Stale units must not be taken for new ones once the queue has grown up to them."""
        if self._file_firsts:
            file_first = self._file_firsts[-1]
            self._files.zero_from(self._path(file_first), (end - file_first) * UNIT_BYTES)

    def truncate_behind(self, physical_end: int) -> None:
        """Drops the units of records at or behind `physical_end`, in memory and in the files.

        Units that a power cut left empty count as behind it.
        """
        if self.is_empty or 0 <= self.max_physical_offset <= physical_end:
            return
        self.write_out()
        low, high = self._file_firsts[0], self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and unit[1] > 0 and unit[0] < physical_end:
                low = middle + 1
            else:
                high = middle
        if low < self.max_offset:
            self._set_end(low)
            self._zero_behind(low)

    def correct_min_offset(self, min_physical: int) -> None:
        """Sets `min_offset` to the first message that is still in a log beginning there.

        If there is none, `min_offset` stays what it was.
        """
        low, high = (
            (self._file_firsts[0] if self._file_firsts else self.tail_first),
            self.max_offset,
        )
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is None or unit[0] < min_physical or unit[1] == FILLER_BYTES:
                low = middle + 1
            else:
                high = middle
        if low < self.max_offset:
            self.min_offset = low

    def delete_before(self, min_physical: int) -> int:
        """Removes the files, but never the last, whose records are all gone; returns how many."""
        count = 0
        while len(self._file_firsts) > 1:
            last = self.unit(self._file_firsts[0] + self._file_units - 1)
            if last is None or last[0] >= min_physical:
                break
            self._files.remove(self._path(self._file_firsts.pop(0)))
            count += 1
        self.correct_min_offset(min_physical)
        return count

    def unsynced_paths(self) -> list[str]:
        """The files that hold units which are written, but not known to be on disk."""
        return [
            self._path(first)
            for first in self._file_firsts
            if first + self._file_units > self.synced_offset and first < self.written_offset
        ]

    def remove(self, disk: Disk) -> None:
        """Deletes all files and forgets all units."""
        for first in self._file_firsts:
            self._files.forget(self._path(first))
        disk.remove_tree(self.directory)
        self._file_firsts = []
        self._set_end(0)

    def _path(self, file_first: int) -> str:
        return f"{self.directory}/{file_name(file_first * UNIT_BYTES)}"
