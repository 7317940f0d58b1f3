"""A reader of queue units for checks, through its own descriptors; it returns copies.

Like NamedLogReader (storage/log/reader.py), it touches no map, and an unreadable page counts as
zeros. It only reads.
"""

from struct import Struct

from storage.config import StoreConfig
from storage.files.below import below, name_fault
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import file_name, first_offset_of
from storage.log.reader import pread_or_zeros
from storage.queues.consume_queue import UNIT
from storage.queues.queue_files import UNIT_BYTES

_OPEN_QUEUE_FILES_MAX = 16
_BLOCK_UNITS = 200
"""Units read at a time: most of a page."""
_BLOCKS_MAX = 4096
"""Cached blocks of units, 16 MB; the oldest is dropped."""

_EXT_UNIT = Struct(
    ">h"  # unit_bytes
    "q"  # tags_code
    "q"  # store_timestamp, ms
)
_EXT_ADDRESS_MAX = -(1 << 31) - 1
"""Largest tags code that is not a hash but an address in ConsumeQueueExt."""
_EXT_ADDRESS_BASE = -(1 << 63)


class UnitReader:
    """Reader of consume queue units by (topic, queue id) and queue offset. One owner.

    Only units below a queue's `written_offset` may be read. They change by a repair only, which
    must also be passed to `patch`.
    """

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self.directory = config.consume_queue_dir
        self.file_units = config.consume_queue_file_bytes // UNIT_BYTES
        self._ext_directory = config.consume_queue_ext_dir
        self._disk = disk
        self._open: dict[str, DiskFile | None] = {}
        self._blocks: dict[tuple[bytes, int, int], bytearray] = {}

    def raw(self, topic: bytes, queue_id: int, queue_offset: int) -> bytes | bytearray:
        """Return the 20 bytes of a unit; empty if no file has it."""
        number = queue_offset // _BLOCK_UNITS
        block = self._blocks.get((topic, queue_id, number))
        if block is None:
            block = self._read_block(topic, queue_id, number)
        start = (queue_offset - number * _BLOCK_UNITS) * UNIT_BYTES
        return block[start : start + UNIT_BYTES]

    def unit(self, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """Return (physical offset, record size, tags code); None if no file has it."""
        data = self.raw(topic, queue_id, queue_offset)
        return UNIT.unpack(data) if len(data) == UNIT_BYTES else None

    def patch(self, topic: bytes, queue_id: int, queue_offset: int, unit: bytes) -> None:
        """Update the cache for a repair that another component will write."""
        number = queue_offset // _BLOCK_UNITS
        block = self._blocks.get((topic, queue_id, number))
        if block is not None:
            start = (queue_offset - number * _BLOCK_UNITS) * UNIT_BYTES
            block[start : start + UNIT_BYTES] = unit

    def forget(self) -> None:
        """Clear the cache, because queues may have grown."""
        self._blocks.clear()

    def ext_tags_code(self, topic: bytes, queue_id: int, code: int) -> int | None:
        """Return the tags code behind an address in ConsumeQueueExt; None for another code."""
        if code > _EXT_ADDRESS_MAX:
            return None
        position = code - _EXT_ADDRESS_BASE
        names = _name(topic), str(queue_id)
        if any(map(name_fault, names)):
            return None
        directory = below(self._ext_directory, *names)
        firsts = [first_offset_of(name) for name in self._disk.listdir(directory)]
        held = max((each for each in firsts if each is not None and each <= position), default=None)
        file = None if held is None else self._file(directory, file_name(held))
        if file is None or held is None:
            return None
        data = pread_or_zeros(file, _EXT_UNIT.size, position - held)
        if len(data) < _EXT_UNIT.size:
            return None
        unit_bytes, tags_code, _ = _EXT_UNIT.unpack(data)
        return int(tags_code) if unit_bytes >= _EXT_UNIT.size else None

    def close(self) -> None:
        while self._open:
            file = self._open.popitem()[1]
            if file is not None:
                file.close()

    def _read_block(self, topic: bytes, queue_id: int, number: int) -> bytearray:
        """Return a block, which may span two files."""
        start, end = number * _BLOCK_UNITS, (number + 1) * _BLOCK_UNITS
        block = bytearray()
        while start < end:
            file_first = start - start % self.file_units
            count = min(end, file_first + self.file_units) - start
            file = self._file(
                self.directory, _name(topic), str(queue_id), file_name(file_first * UNIT_BYTES)
            )
            data = b""
            if file is not None:
                data = pread_or_zeros(file, count * UNIT_BYTES, (start - file_first) * UNIT_BYTES)
            # A missing file counts as zeros, and so does the part behind a short one.
            block += data.ljust(count * UNIT_BYTES, b"\0")
            start += count
        while len(self._blocks) >= _BLOCKS_MAX:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[topic, queue_id, number] = block
        return block

    def _file(self, folder: str, *names: str) -> DiskFile | None:
        """Return the file; None if it is missing or the name is invalid."""
        if any(map(name_fault, names)):
            return None
        path = below(folder, *names)
        if path in self._open:
            return self._open[path]
        while len(self._open) >= _OPEN_QUEUE_FILES_MAX:
            oldest = self._open.pop(next(iter(self._open)))
            if oldest is not None:
                oldest.close()
        try:
            file = self._disk.open(path, read_only=True)
        except FileNotFoundError:
            file = None
        self._open[path] = file
        return file


def _name(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
