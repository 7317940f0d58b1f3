"""The reader of queue units for whoever checks a store: through descriptors of its own, and copied.

As with NamedLogReader (storage/log/reader.py) nobody's map is touched, and a page that the disk
cannot give counts as zeros. Nothing is written.
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
"""Blocks of units that are kept, 16 MB; the oldest goes."""

_EXT_UNIT = Struct(
    ">h"  # unit_bytes
    "q"  # tags_code
    "q"  # store_timestamp, ms
)
_EXT_ADDRESS_MAX = -(1 << 31) - 1
"""A tags code up to here is not a hash, but says where the unit in ConsumeQueueExt lies."""
_EXT_ADDRESS_BASE = -(1 << 63)


class UnitReader:
    """Units of consume queues by (topic, queue id) and queue offset. One owner.

    Ask only for units below a queue's `written_offset`: those do not change but by a repair, which
    is to be told to `patch` as well.
    """

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self.directory = config.consume_queue_dir
        self.file_units = config.consume_queue_file_bytes // UNIT_BYTES
        self._ext_directory = config.consume_queue_ext_dir
        self._disk = disk
        self._open: dict[str, DiskFile | None] = {}
        self._blocks: dict[tuple[bytes, int, int], bytearray] = {}

    def raw(self, topic: bytes, queue_id: int, queue_offset: int) -> bytes | bytearray:
        """The 20 bytes of a unit; empty when no file holds it."""
        number = queue_offset // _BLOCK_UNITS
        block = self._blocks.get((topic, queue_id, number))
        if block is None:
            block = self._read_block(topic, queue_id, number)
        start = (queue_offset - number * _BLOCK_UNITS) * UNIT_BYTES
        return block[start : start + UNIT_BYTES]

    def unit(self, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, record size, tags code); None when no file holds it."""
        data = self.raw(topic, queue_id, queue_offset)
        return UNIT.unpack(data) if len(data) == UNIT_BYTES else None

    def patch(self, topic: bytes, queue_id: int, queue_offset: int, unit: bytes) -> None:
        """Takes note of a repair that somebody else will write."""
        number = queue_offset // _BLOCK_UNITS
        block = self._blocks.get((topic, queue_id, number))
        if block is not None:
            start = (queue_offset - number * _BLOCK_UNITS) * UNIT_BYTES
            block[start : start + UNIT_BYTES] = unit

    def forget(self) -> None:
        """Reads again what it reads next: queues may have grown."""
        self._blocks.clear()

    def ext_tags_code(self, topic: bytes, queue_id: int, code: int) -> int | None:
        """The tags code behind a code that is an address in ConsumeQueueExt; None if it is none."""
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
        """A block may span two files."""
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
            # A file that is not there holds nothing, and neither does what follows a short one.
            block += data.ljust(count * UNIT_BYTES, b"\0")
            start += count
        while len(self._blocks) >= _BLOCKS_MAX:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[topic, queue_id, number] = block
        return block

    def _file(self, folder: str, *names: str) -> DiskFile | None:
        """The file; None where there is none, or no topic has such a name."""
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
