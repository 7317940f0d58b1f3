"""A commit log file for a human: every record, and what lies between them."""

from collections.abc import Iterator

from protocol.checksum import body_crc
from protocol.compression import CompressionError, decompress
from protocol.host import unpack_host
from protocol.message import (
    BLANK_MAGIC,
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    MessageRecord,
    RecordError,
    decode_record,
)
from protocol.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from protocol.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    MULTI_TAGS,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    transaction_type,
)
from storage.disk import Disk, DiskFile
from storage.dump.item import Item, first_nonzero, opened, plain, shortened, utc
from storage.mapped_file import first_offset_of

_WINDOW_BYTES = 1 << 18
_RECORD_BYTES_MAX = 64 << 20
"""Of a length field that is believed: what a damaged one says is not to fill the memory."""
_SHOWN_BODY_BYTES_MAX = 1 << 20
_MAGIC_AT = 4
_BITS = {
    MULTI_TAGS: "several tags",
    BORN_HOST_V6: "born host IPv6",
    STORE_HOST_V6: "store host IPv6",
    NEED_UNWRAP: "to unwrap",
    INNER_BATCH: "inner batch",
}
_TRANSACTION = {
    TRANSACTION_PREPARED: "transaction prepared",
    TRANSACTION_COMMIT: "transaction commit",
    TRANSACTION_ROLLBACK: "transaction rollback",
}
_CODECS = {COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD"}


def dump_log(disk: Disk, path: str, from_offset: int | None = None) -> Iterator[Item]:
    """The file's items, from the record at or behind an offset of the log on."""
    file = opened(disk, path)
    try:
        yield from _LogFile(file, path).items(from_offset)
    finally:
        file.close()


class _LogFile:
    """One file, read through a window: its memory does not grow with it."""

    def __init__(self, file: DiskFile, path: str) -> None:
        self._file = file
        self._size = file.size()
        self._window = b""
        self._window_at = 0
        named = first_offset_of(path.rpartition("/")[2])
        self._first = self._told_by_first_record() if named is None else named

    def _told_by_first_record(self) -> int:
        """The offset of a file that has lost its name."""
        try:
            return decode_record(self._bytes(0, _WINDOW_BYTES), check_crc=False).physical_offset
        except RecordError:
            return 0

    def items(self, from_offset: int | None) -> Iterator[Item]:
        first, end = self._first, self._first + self._size
        yield Item(
            "commit log file", {"first_offset": first, "end_offset": end, "bytes": self._size}
        )
        position = min(self._size, max(0, (from_offset or 0) - first))
        if position and self._record(position) is None:
            position = self._next_whole(position) or self._size
        count = 0
        while position < self._size:
            size, magic = self._size_and_magic(position)
            record = self._record(position)
            if record is not None:
                yield Item("record", record_fields(record, first + position), counted=True)
                position += record.record_bytes
                count += 1
            elif magic == BLANK_MAGIC and size == self._size - position:
                yield Item("blank", {"offset": first + position, "bytes": size}, counted=True)
                position = self._size
            else:
                found = self._next_whole(position + 1)
                if found is None:
                    break
                yield self._damage(position, found)
                position = found
        yield self._end(position, count)

    def _end(self, position: int, count: int) -> Item:
        found = first_nonzero(self._file, position, self._size)
        reason = "the file is full" if position >= self._size else "zeros follow"
        if found is not None:
            reason = f"no whole record follows, though not all is zero at {self._first + found}"
        fields = {"offset": self._first + position, "records": count, "reason": reason}
        return Item("end", fields)

    def _damage(self, start: int, end: int) -> Item:
        reason = self._fault(start)
        fields = {"offset": self._first + start, "end_offset": self._first + end}
        return Item("damage", {**fields, "bytes": end - start, "reason": reason}, counted=True)

    def _fault(self, position: int) -> str:
        try:
            decode_record(self._bytes(position, self._size_to_read(position)))
        except RecordError as error:
            return str(error).replace(" at 0", "")
        return "the record says that it lies elsewhere"

    def _record(self, position: int) -> MessageRecord | None:
        """The record there; one whose body or offset is wrong counts, one with both does not."""
        size, magic = self._size_and_magic(position)
        if magic != RECORD_MAGIC or not 0 < size <= min(_RECORD_BYTES_MAX, self._size - position):
            return None
        try:
            record = decode_record(self._bytes(position, size), check_crc=False)
        except RecordError:
            return None
        is_in_place = record.physical_offset == self._first + position
        return record if is_in_place or _has_crc(record) else None

    def _next_whole(self, position: int) -> int | None:
        """Where the next record begins whose offset and CRC are right, or a BLANK."""
        wanted = RECORD_MAGIC.to_bytes(4), BLANK_MAGIC.to_bytes(4)
        at = position
        while at < self._size:
            start = first_nonzero(self._file, at, self._size)
            if start is None:
                return None
            start = max(position, start - _MAGIC_AT)
            data = self._file.pread(_WINDOW_BYTES, start)
            places = sorted(_places(data, wanted[0]) | _places(data, wanted[1]))
            for place in places:
                candidate = start + place - _MAGIC_AT
                if candidate >= position and self._is_whole(candidate):
                    return candidate
            if start + len(data) >= self._size:
                return None
            at = start + len(data) - _MAGIC_AT * 2
        return None

    def _is_whole(self, position: int) -> bool:
        size, magic = self._size_and_magic(position)
        if magic == BLANK_MAGIC:
            return size == self._size - position
        record = self._record(position)
        return (
            record is not None
            and record.physical_offset == self._first + position
            and _has_crc(record)
        )

    def _size_to_read(self, position: int) -> int:
        size, _ = self._size_and_magic(position)
        return size if 0 < size <= _RECORD_BYTES_MAX else _WINDOW_BYTES

    def _size_and_magic(self, position: int) -> tuple[int, int]:
        data = self._bytes(position, SIZE_AND_MAGIC.size)
        if len(data) < SIZE_AND_MAGIC.size:
            return 0, 0
        size, magic = SIZE_AND_MAGIC.unpack(data)
        return size, magic

    def _bytes(self, position: int, count: int) -> bytes:
        inside = position - self._window_at
        if inside < 0 or inside + count > len(self._window):
            self._window_at, inside = position, 0
            self._window = self._file.pread(max(count, _WINDOW_BYTES), position)
        return self._window[inside : inside + count]


def _places(data: bytes, pattern: bytes) -> set[int]:
    found: set[int] = set()
    at = data.find(pattern)
    while at >= 0:
        found.add(at)
        at = data.find(pattern, at + 1)
    return found


def _has_crc(record: MessageRecord) -> bool:
    return not record.body or body_crc(record.body) == record.body_crc


def record_fields(record: MessageRecord, offset: int) -> dict[str, object]:
    """What a record says, in words."""
    fields: dict[str, object] = {
        "offset": offset,
        "bytes": record.record_bytes,
        "topic": plain(record.topic),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "stored": utc(record.store_timestamp),
        "store_host": _host(record.store_host),
        "born": utc(record.born_timestamp),
        "born_host": _host(record.born_host),
        "flags": flag_words(record.sys_flag),
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "properties": _properties(record.properties),
        "body_bytes": len(record.body),
        "crc": "ok" if _has_crc(record) else "wrong",
        "body": shortened(_body(record)),
    }
    if record.physical_offset != offset:
        fields["says_offset"] = record.physical_offset
    return fields


def flag_words(sys_flag: int) -> list[str]:
    """The bits of a record's sysFlag, each in words."""
    words = []
    if sys_flag & COMPRESSED:
        words.append(f"compressed {_CODECS.get(sys_flag & COMPRESSION_TYPE_MASK, 'ZLIB')}")
    if kind := _TRANSACTION.get(transaction_type(sys_flag)):
        words.append(kind)
    return words + [word for bit, word in _BITS.items() if sys_flag & bit]


def _body(record: MessageRecord) -> bytes:
    try:
        return decompress(record.body, record.sys_flag, _SHOWN_BODY_BYTES_MAX)
    except CompressionError:
        return record.body


def _properties(data: bytes) -> dict[str, str]:
    text = data.decode("utf-8", "replace")
    pairs = [pair for pair in text.split(PROPERTY_SEPARATOR) if pair]
    split = [pair.partition(NAME_VALUE_SEPARATOR) for pair in pairs]
    return {plain(name): plain(value) for name, _, value in split}


def _host(packed: bytes) -> str:
    try:
        address, port = unpack_host(packed)
    except ValueError:
        return packed.hex()
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
