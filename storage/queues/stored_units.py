"""Units of one queue in memory and in files: adding, writing out and reading.

New units stay in memory (`tail`) until `write_out`; readers in this process see both. After a
crash, the lost tail is rebuilt from the log.

Source: store/ConsumeQueue.java, MappedFileQueue.java.
"""

from functools import lru_cache
from typing import Final

from storage.errors import store_error
from storage.files.disk import DiskFile
from storage.files.mapped_file import file_name
from storage.queues.queue_files import QueueFiles
from storage.queues.queue_units import FILLER, UNIT, UNIT_BYTES, Unit

_TAIL_KEPT_UNITS: Final = 256
"""Written units kept in memory, so that consumers at the queue's end read no file."""


@lru_cache(1024)
def _path_of(directory: str, file_first: int) -> str:
    """Return the path of a queue file, cached: building it took 1.3 µs per pull."""
    return f"{directory}/{file_name(file_first * UNIT_BYTES)}"


class StoredUnits:
    """Byte storage of the units of one queue; subclasses decide which units to add."""

    __slots__ = (
        "_file_firsts",
        "_file_units",
        "_files",
        "_unwritten",
        "directory",
        "dirty",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "synced_offset",
        "tail",
        "tail_first",
        "written_offset",
    )

    def __init__(
        self, directory: str, files: QueueFiles, unwritten: "list[StoredUnits] | None" = None
    ) -> None:
        """Initialize the queue; `unwritten` collects queues that need writing out.

        `append` does not add the queue to it; its callers do.
        """
        self.directory = directory
        self.min_offset = 0
        """Minimum readable queue offset."""
        self.max_offset = 0
        """Queue offset of the next message."""
        self.max_physical_offset = -1
        """End of the last record with a unit; records that end there or earlier are ignored."""
        self.tail = bytearray()
        self.tail_first = 0
        """Queue offset of the first unit in `tail`; some of its units may already be in a file."""
        self.written_offset = 0
        self.synced_offset = 0
        self.dirty = False
        """Whether units are in no file yet; reset by the collector of unwritten queues."""
        self._files = files
        self._file_units = files.file_bytes // UNIT_BYTES
        self._file_firsts: list[int] = []
        self._unwritten = [] if unwritten is None else unwritten

    @property
    def file_units(self) -> int:
        return self._file_units

    @property
    def is_empty(self) -> bool:
        """Whether there is no unit, in memory or in a file."""
        return not self._file_firsts and not self.tail

    @property
    def has_no_file(self) -> bool:
        """Whether all units are only in memory."""
        return not self._file_firsts

    @property
    def first_offset(self) -> int:
        """First queue offset with a unit, even if its message is deleted."""
        return self._file_firsts[0] if self._file_firsts else self.tail_first

    # -- writing ------------------------------------------------------------------------------

    def begin_at(self, queue_offset: int) -> None:
        """Set the first queue offset of an empty queue."""
        self.min_offset = self.max_offset = queue_offset
        self.tail_first = self.written_offset = self.synced_offset = queue_offset

    def _overwrite(self, queue_offset: int, unit: bytes) -> None:
        """Overwrite one unit. Raises DiskFull or StoreError."""
        position = (queue_offset - self.tail_first) * UNIT_BYTES
        if position >= 0:
            self.tail[position : position + UNIT_BYTES] = unit
        if queue_offset < self.written_offset:
            file_first = queue_offset - queue_offset % self._file_units
            self._write(bytearray(unit), queue_offset, file_first)
            self.synced_offset = min(self.synced_offset, queue_offset)
            self.note_unwritten()

    def note_unwritten(self) -> None:
        """Add the queue to the unwritten ones."""
        if not self.dirty:
            self.dirty = True
            self._unwritten.append(self)

    def write_out(self) -> None:
        """Write the units that are only in memory to the files, one write per file.

        Raises DiskFull or StoreError; unwritten units stay in memory.
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
                    self._files.write(path, FILLER * (start - file_first), 0)
                self._file_firsts.append(file_first)
            self._files.write(path, data, (start - file_first) * UNIT_BYTES)
        except OSError as error:
            raise store_error("cannot write to a consume queue", error) from error

    def unsynced_paths(self) -> list[str]:
        """Return the files with written, unsynced units."""
        return [
            self._path(first)
            for first in self._file_firsts
            if first + self._file_units > self.synced_offset and first < self.written_offset
        ]

    def mark_synced(self, written_offset: int) -> None:
        """Record that `unsynced_paths`, taken at `written_offset`, are synced."""
        self.synced_offset = max(self.synced_offset, min(written_offset, self.max_offset))

    def forget_files(self) -> None:
        """Close the files before another component moves or deletes them."""
        for first in self._file_firsts:
            self._files.forget(self._path(first))

    # -- reading ------------------------------------------------------------------------------

    def units(self, first: int, count: int) -> bytes | bytearray | memoryview:
        """Return up to `count` units from queue offset `first` on, at least one if possible.

        The result ends with the file that contains `first`, and is empty without one. It may be
        part of a mapped file, so do not keep it.
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

    def unit(self, queue_offset: int) -> Unit | None:
        """Return (physical offset, record size, tags code), or None if no file has this offset."""
        data = self.units(queue_offset, 1)
        return UNIT.unpack(data) if data else None

    def file_part(self, first: int, count: int) -> tuple[str, int, int] | None:
        """Return (path, position, bytes) of these units, up to the end of the first file.

        None if they are only in memory, or missing.
        """
        file_first = first - first % self._file_units
        end = min(first + count, self.written_offset, file_first + self._file_units)
        if first >= end or file_first not in self._file_firsts:
            return None
        position = (first - file_first) * UNIT_BYTES
        return self._path(file_first), position, (end - first) * UNIT_BYTES

    def file_at(self, path: str) -> DiskFile:
        return self._files.file(path)

    def next_file_offset(self, queue_offset: int) -> int:
        """Return the first queue offset of the file behind that of `queue_offset`."""
        return queue_offset + self._file_units - queue_offset % self._file_units

    def file_firsts(self) -> list[int]:
        """Return the first queue offset of each file; the last may still be only in memory."""
        if self.is_empty:
            return []
        firsts = list(self._file_firsts)
        for first in range(
            self.written_offset - self.written_offset % self._file_units,
            self.max_offset,
            self._file_units,
        ):
            if not firsts or first > firsts[-1]:
                firsts.append(first)
        return firsts

    def _path(self, file_first: int) -> str:
        return _path_of(self.directory, file_first)
