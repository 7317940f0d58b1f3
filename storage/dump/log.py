"""Readable output for a commit log file: every record, and what is between them."""

from collections.abc import Iterator

from protocol.codes import (
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
from protocol.compression import CompressionError, decompress
from protocol.host import host_text
from protocol.message import MessageRecord, RecordError, RecordHead, body_crc, decode_record
from protocol.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from storage.dump.item import Item, first_nonzero, opened, plain, shortened, utc
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import MappedFile, first_offset_of
from storage.log.reader import (
    WINDOW_BYTES,
    Fault,
    LogReader,
    is_sound_blank,
    next_whole,
    record_at,
)

_SHOWN_BODY_BYTES_MAX = 1 << 20
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
    """Yield the file's items from the record at or behind `from_offset` on."""
    file = opened(disk, path)
    try:
        yield from _LogFile(file, path).items(from_offset)
    finally:
        file.close()


class _LogFile:
    """One file, read through a window of constant size."""

    def __init__(self, file: DiskFile, path: str) -> None:
        named = first_offset_of(path.rpartition("/")[2])
        self._first = _told_by_first_record(file) if named is None else named
        self._size = file.size()
        self._end = self._first + self._size
        self._file = MappedFile(file, self._first, self._size)
        self._reader = LogReader(lambda _: self._file, self._end)

    def items(self, from_offset: int | None) -> Iterator[Item]:
        yield Item(
            "commit log file",
            {"first_offset": self._first, "end_offset": self._end, "bytes": self._size},
        )
        reader, end = self._reader, self._end
        offset = min(end, max(self._first, from_offset or 0))
        if offset > self._first and self._record(offset) is None:
            offset = next_whole(reader, offset - 1, Fault(""), end) or end
        count = 0
        while offset < end:
            record = self._record(offset)
            if record is not None:
                yield Item("record", record_fields(record, offset), counted=True)
                offset += record.record_bytes
                count += 1
            elif is_sound_blank(reader, offset):
                yield Item("blank", {"offset": offset, "bytes": end - offset}, counted=True)
                offset = end
            else:
                fault = self._fault(offset)
                found = next_whole(reader, offset, fault, end)
                if found is None:
                    break
                fields = {"offset": offset, "end_offset": found, "bytes": found - offset}
                reason = fault.reason.replace(f" at {offset}", "")
                yield Item("damage", {**fields, "reason": reason}, counted=True)
                offset = found
        yield self._last(offset, count)

    def _last(self, offset: int, count: int) -> Item:
        found = first_nonzero(self._file.file, offset - self._first, self._size)
        reason = "the file is full" if offset >= self._end else "zeros follow"
        if found is not None:
            reason = f"no whole record follows, but a nonzero byte at {self._first + found}"
        return Item("end", {"offset": offset, "records": count, "reason": reason})

    def _record(self, offset: int) -> MessageRecord | None:
        """Return the record at `offset`; of body and stored offset, one may be wrong."""
        found = record_at(self._reader, offset, check_crc=False)
        head = found.head if isinstance(found, Fault) else found
        if head is None:
            return None
        data, position = self._reader.at(offset, head.record_bytes)
        record = decode_record(data, position, check_crc=False)
        return record if isinstance(found, RecordHead) or _has_crc(record) else None

    def _fault(self, offset: int) -> Fault:
        """Return why no record or BLANK is at `offset`."""
        found = record_at(self._reader, offset)
        return found if isinstance(found, Fault) else Fault("one field of the BLANK is wrong")


def _told_by_first_record(file: DiskFile) -> int:
    """Return the offset of a file that has lost its name."""
    try:
        return decode_record(file.pread(WINDOW_BYTES, 0), check_crc=False).physical_offset
    except RecordError:
        return 0


def _has_crc(record: MessageRecord) -> bool:
    return not record.body or body_crc(record.body) == record.body_crc


def record_fields(record: MessageRecord, offset: int) -> dict[str, object]:
    """Return the fields of a record in readable form."""
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
    """Return the names of the bits in a record's sysFlag."""
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
        return host_text(packed)
    except ValueError:
        return packed.hex()
