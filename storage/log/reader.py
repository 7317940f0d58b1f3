"""Reader of the commit log: ranges of records, single records, and the search behind damage.

A record is whole if its magic, lengths, physical offset and body CRC are right. Where a record is
expected, a BLANK needs one right field and a magic that is not a record's. Where the search finds a
BLANK, both fields must be right.

Anything else begins a gap, which ends at the next whole record or BLANK. The search starts behind
the damaged record only if all its lengths agree. A single length is not trusted: among records of
one size, a flipped bit could lead past intact records.

Bytes are read by `pread`, which waits for uncached pages without the interpreter lock. A page fault
in a mapped file would stop every thread. Readers of many records check heads by `sound_heads`,
without building RecordHead objects.

For speed, two readers have their own loops: replica/replica_log.py and spark/decoding/log_walk.py.
Records that a unit or an index entry points at are read through the map (`head_of`).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from struct import error as StructError
from typing import NamedTuple, TypeAlias

from protocol.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    HOST_BITS,
    LENGTH_FIELDS_BYTES,
    PHYSICAL_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    SCAN_HEADS,
    SIZE_AND_MAGIC,
    Buffer,
    MessageRecord,
    RecordError,
    RecordHead,
    body_crc,
    decode_record,
    scan_head,
)
from storage.config import StoreConfig
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import MappedFile, file_name, first_offset_of

WINDOW_BYTES = 256 << 10
"""Read size for walks and searches."""
ONE_RECORD_BYTES = 4096
"""Read size for single records; most are shorter."""
RECORD_BYTES_MAX = 64 << 20
"""Upper bound of a record; protects memory from a damaged length."""
_PAGE_BYTES = 4096
_MAGIC_POSITION = 4
_BODY_CRC_POSITION = 8
_PHYSICAL_OFFSET_BYTES = 8
_MAGICS = RECORD_MAGIC.to_bytes(4), BLANK_MAGIC.to_bytes(4)

FindFile: TypeAlias = Callable[[int], MappedFile | None]
"""Lookup of the file that holds an offset of the log (MappedFileQueue.find)."""


_SoundHead: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]


def sound_heads(data: Buffer, position: int, stop: int, shift: int) -> Iterator[_SoundHead]:
    """Yield the heads from `position` on, up to the first that contradicts itself.

    `data` begins at offset `shift` of the log; records begin before `stop`. Body, topic and
    properties are not checked. Fields: position, size, CRC, queue id, queue offset, system flag,
    store timestamp, body position, and position behind the body.
    """
    unpack, head_bytes, data_bytes = SCAN_HEADS[0].unpack_from, SCAN_HEADS[0].size, len(data)
    while position < stop:
        try:
            size, magic, crc, queue_id, number, physical, flag, stored_ms, body_bytes = unpack(
                data, position
            )
            body_at = position + head_bytes
            if flag & HOST_BITS:
                head = SCAN_HEADS[flag >> 4 & 3]
                *_, stored_ms, body_bytes = head.unpack_from(data, position)
                body_at = position + head.size
        except StructError:
            return
        topic_at, end = body_at + body_bytes, position + size
        if (
            magic != RECORD_MAGIC
            or physical != shift + position
            or body_bytes < 0
            or topic_at + LENGTH_FIELDS_BYTES > end
            or end > data_bytes
        ):
            return
        yield position, size, crc, queue_id, number, flag, stored_ms, body_at, topic_at
        position = end


class LogReader:
    """Reader of the log below `end_offset`, by offset. One owner."""

    def __init__(
        self, find: FindFile, end_offset: int, *, window_bytes: int = WINDOW_BYTES
    ) -> None:
        self.end_offset = end_offset
        self.window_bytes = window_bytes
        self._find = find
        self._file: MappedFile | None = None
        self._data = b""
        self._data_start = 0

    def file_at(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, or None.

        The last file stays cached, so a reader can finish a file that the log has dropped.
        """
        file = self._file
        if file is None or not file.first_offset <= offset < file.end_offset:
            file = self._file = self._find(offset) if 0 <= offset < self.end_offset else None
        return file

    def at(self, offset: int, count: int) -> tuple[bytes, int]:
        """Return a buffer and the position of `offset` in it.

        At least `count` bytes follow, unless the file or the log ends. The buffer is empty where
        there is no file. Raises OSError.
        """
        position = offset - self._data_start
        if position < 0 or position + count > len(self._data):
            file = self.file_at(offset)
            if file is None:
                return b"", 0
            stop = min(offset + max(count, self.window_bytes), file.end_offset, self.end_offset)
            if position < 0 or self._data_start + len(self._data) < stop:
                self._data = self._pread(file.file, stop - offset, offset - file.first_offset)
                self._data_start, position = offset, 0
        return self._data, position

    def _pread(self, file: DiskFile, count: int, position: int) -> bytes:
        return file.pread(count, position)

    def forget(self) -> None:
        """Discard the buffer, so that the next read comes from the file."""
        self._data = b""


class NamedLogReader(LogReader):
    """Reader without a CommitLog: opens files by name, one at a time.

    Unreadable pages read as zeros, so that they count as damage. The space of a deleted file is
    released when the reader moves to another file.
    """

    def __init__(
        self, disk: Disk, config: StoreConfig, end_offset: int, window_bytes: int = WINDOW_BYTES
    ) -> None:
        super().__init__(self._opened, end_offset, window_bytes=window_bytes)
        self.reads_zeros = True
        """Whether unreadable pages read as zeros; otherwise they raise OSError."""
        self.file_bytes = config.commit_log_file_bytes
        self._disk = disk
        self._directory = config.commit_log_dir

    def firsts(self) -> list[int]:
        """Return the first offsets of the files below the end, sorted."""
        found = [first_offset_of(name) for name in self._disk.listdir(self._directory)]
        return [first for first in found if first is not None and first < self.end_offset]

    def file_at(self, offset: int) -> MappedFile | None:
        file = self._file
        if file is not None and not file.first_offset <= offset < file.end_offset:
            self.close()
        return super().file_at(offset)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self, offset: int) -> MappedFile | None:
        first = offset - offset % self.file_bytes
        try:
            file = self._disk.open(f"{self._directory}/{file_name(first)}", read_only=True)
        except FileNotFoundError:
            return None
        return MappedFile(file, first, self.file_bytes)

    def _pread(self, file: DiskFile, count: int, position: int) -> bytes:
        if not self.reads_zeros:
            return file.pread(count, position)
        return pread_or_zeros(file, count, position)


def pread_or_zeros(file: DiskFile, count: int, position: int) -> bytes:
    """Read like `pread`, with zeros for unreadable pages."""
    try:
        return file.pread(count, position)
    except OSError:
        pass
    pieces = []
    end = position + count
    while position < end:
        size = min(end, position - position % _PAGE_BYTES + _PAGE_BYTES) - position
        try:
            pieces.append(file.pread(size, position))
        except OSError:
            pieces.append(bytes(size))
        position += size
    return b"".join(pieces)


# -- one record -------------------------------------------------------------------------------


class Fault(NamedTuple):
    """Reason why no whole record begins at an offset."""

    reason: str
    head: RecordHead | None = None
    """Head of the damaged record, if its lengths agree."""


def record_at(
    reader: LogReader, offset: int, *, check_crc: bool = True
) -> RecordHead | Fault | None:
    """Return the record at `offset`, a Fault, or None for a BLANK.

    Without `check_crc` the body is not checked. Raises OSError.
    """
    file = reader.file_at(offset)
    if file is None:
        return Fault(f"no file holds the record at {offset}")
    limit = min(file.end_offset, reader.end_offset)
    return _look(reader, offset, file.end_offset, limit, check_crc)


def _look(
    reader: LogReader, offset: int, file_end: int, limit: int, check_crc: bool
) -> RecordHead | Fault | None:
    """Check the record in a file that ends at `file_end`, within a range that ends at `limit`."""
    if file_end - offset < BLANK_BYTES:
        return None
    data, position = reader.at(offset, BLANK_BYTES)
    if position + BLANK_BYTES > len(data):
        return Fault(f"the record at {offset} is cut off")
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic == BLANK_MAGIC or (size == file_end - offset and magic != RECORD_MAGIC):
        return None
    if magic != RECORD_MAGIC:
        return Fault(f"no record at {offset}: magic {magic:08x}")
    if not RECORD_BYTES_MIN <= size <= min(limit - offset, RECORD_BYTES_MAX):
        return Fault(f"invalid lengths in the record at {offset}")
    data, position = reader.at(offset, size)
    try:
        head = scan_head(data, position)
    except RecordError as error:
        return Fault(str(error).replace(f"at {position}", f"at {offset}"))
    if head.physical_offset != offset:
        return Fault(f"the record at {offset} names the offset {head.physical_offset}", head)
    if check_crc and not body_is_intact(memoryview(data), position, head):
        return Fault(f"the body of the record at {offset} does not have its CRC", head)
    return head


def body_is_intact(view: memoryview, position: int, head: RecordHead) -> bool:
    """Return whether the body of the record at `position` matches its CRC."""
    start = position + HEADS[head.sys_flag >> 4 & 3].size
    tail_bytes = LENGTH_FIELDS_BYTES + len(head.topic) + len(head.properties)
    body = view[start : position + head.record_bytes - tail_bytes]
    crc_at = position + _BODY_CRC_POSITION
    return not body or body_crc(body) == int.from_bytes(view[crc_at : crc_at + 4], signed=True)


def is_sound_blank(reader: LogReader, offset: int) -> bool:
    """Return whether a BLANK with both fields right is at `offset`."""
    file = reader.file_at(offset)
    data, position = reader.at(offset, BLANK_BYTES)
    if file is None or position + BLANK_BYTES > len(data):
        return False
    wanted = file.end_offset - offset, BLANK_MAGIC
    return bool(SIZE_AND_MAGIC.unpack_from(data, position) == wanted)


View: TypeAlias = Callable[[int, int], memoryview]
"""Access to log bytes by offset and count; raises OffsetError (CommitLog.view)."""


def head_of(record: Buffer, offset: int) -> RecordHead:
    """Return the head of a record of known place and size, without checking its body.

    Raises only RecordError, if the bytes are not the record at `offset`.
    """
    head = scan_head(record, 0)
    if (head.record_bytes, head.magic, head.physical_offset) != (len(record), RECORD_MAGIC, offset):
        raise RecordError(f"another record lies at {offset}")
    return head


def message_of(record: Buffer, offset: int, *, check_crc: bool = True) -> MessageRecord:
    """Return the message of a record.

    Raises RecordError like `head_of`, and for a wrong body CRC.
    """
    message = decode_record(record, check_crc=check_crc)
    if (message.record_bytes, message.physical_offset) != (len(record), offset):
        raise RecordError(f"another record lies at {offset}")
    return message


# -- the records of a range -------------------------------------------------------------------


class Gap(NamedTuple):
    """Range of the log without a whole record."""

    start: int
    end: int
    reason: str


def walk(
    reader: LogReader, start: int, end: int, *, check_crc: bool = True
) -> Iterator[RecordHead | Gap | None]:
    """Yield records and gaps from `start`, where a record or a file begins, to `end`.

    None is yielded during long searches, so that the caller can check the clock. The walk ends
    early at a missing file. A gap never spans two files. Without `check_crc`, a record with only a
    damaged body counts as whole. Raises OSError.
    """
    offset = start
    while offset < end and (file := reader.file_at(offset)) is not None:
        file_end = file.end_offset
        limit = min(file_end, end, reader.end_offset)
        last = min(limit, file_end - BLANK_BYTES)
        while offset < limit:
            # Whole records of the window take few calls of our functions: 2.3 → 1.7 µs per record.
            data, position = reader.at(offset, RECORD_BYTES_MIN)
            view, shift = memoryview(data), offset - position
            with suppress(RecordError):
                while offset < limit:
                    head = scan_head(data, offset - shift)
                    end_of_record = offset + head.record_bytes
                    if head.magic != RECORD_MAGIC or head.physical_offset != offset:
                        break
                    if end_of_record > last:
                        break
                    if check_crc and not body_is_intact(view, offset - shift, head):
                        break
                    offset = end_of_record
                    yield head
            if offset >= limit:
                break
            found = _look(reader, offset, file_end, limit, check_crc)
            if isinstance(found, RecordHead):
                offset += found.record_bytes
                yield found
                continue
            if found is None:
                break
            following = limit
            for candidate in _whole_places(reader, _behind(offset, found), limit):
                if candidate is not None:
                    following = candidate
                    break
                yield None
            yield Gap(offset, following, found.reason)
            offset = following
        offset = max(offset, file_end)


# -- behind damage ----------------------------------------------------------------------------


def next_whole(reader: LogReader, offset: int, fault: Fault, end: int) -> int | None:
    """Return the next whole record or BLANK behind a fault at `offset` and below `end`, or None.

    Holes of the file are skipped, so the search is fast over space that was never written.
    """
    places = _whole_places(reader, _behind(offset, fault), end)
    return next((place for place in places if place is not None), None)


def _behind(offset: int, fault: Fault) -> int:
    return offset + (1 if fault.head is None else fault.head.record_bytes)


def _whole_places(reader: LogReader, offset: int, end: int) -> Iterator[int | None]:
    """Yield the offsets of whole records and BLANKs from `offset` on; None between windows."""
    while offset < end and (file := reader.file_at(offset)) is not None:
        limit = min(file.end_offset, end, reader.end_offset)
        while offset < limit:
            data_start = file.file.data_after(offset - file.first_offset)
            if data_start is None:
                break
            offset = max(offset, file.first_offset + data_start)
            window_end = min(offset + WINDOW_BYTES, limit)
            yield from _in_window(reader, offset, window_end, limit)
            yield None
            offset = window_end
        offset = file.end_offset


def _in_window(reader: LogReader, offset: int, window_end: int, limit: int) -> Iterator[int]:
    # A record that begins in the window may end behind it.
    data, base = reader.at(offset, min(window_end + RECORD_BYTES_MIN, limit) - offset)
    stop = base + window_end - offset
    found: list[int] = []
    for magic in _MAGICS:
        at = data.find(magic, base + _MAGIC_POSITION)
        while 0 <= at < stop + _MAGIC_POSITION:
            found.append(at - _MAGIC_POSITION)
            at = data.find(magic, at + 1)
    for position in sorted(found):
        candidate = offset + position - base
        own_at = position + PHYSICAL_OFFSET_POSITION
        own = data[own_at : own_at + _PHYSICAL_OFFSET_BYTES]
        names_itself = own == candidate.to_bytes(_PHYSICAL_OFFSET_BYTES)
        is_record = names_itself and isinstance(record_at(reader, candidate), RecordHead)
        if is_record or is_sound_blank(reader, candidate):
            yield candidate
