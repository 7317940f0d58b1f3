"""Bulk reads of queues from TroupeMQ brokers over the network: units, and pieces of the log.

protocol/raw_records.py has the layout of an answer. Records are checked against their units as in a
store's files.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.own import RawResponseHeader, ReadRecordsHeader, ReadUnitsHeader
from protocol.raw_records import ANSWER_BYTES, PIECE, UNITS_ALONE_MAX
from remoting.sync_connection import Refused, RemotingFailed, SyncConnection
from spark.decoding.records import RECORD_BYTES_MIN, Places, Records, Scanned, whole_records
from spark.decoding.store_files import UNIT, UNIT_BYTES, LogBytes, NumpyArray
from spark.source.plan import QueueRange
from spark.source.reading import ended, gone
from storage.errors import StoreError

_PIECE = np.dtype([("physical_offset", ">i8"), ("piece_bytes", ">i4")])
assert _PIECE.itemsize == PIECE.size


class NotServed(Exception):
    """Refusal of a broker without these extensions."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a raw read: units of a queue, and the records they point at."""

    header: RawResponseHeader
    is_moved: bool
    """Nothing is at that offset; the header says where the queue has messages."""
    units: NumpyArray
    pieces: NumpyArray
    body: bytes
    log_at: int
    """Start of the pieces, one behind the other."""


def ask(line: SyncConnection, header: ReadUnitsHeader | ReadRecordsHeader) -> Answer:
    """Return one answer. Raises NotServed, or StoreError: refused, no connection or invalid."""
    is_records = isinstance(header, ReadRecordsHeader)
    code = RequestCode.READ_RECORDS if is_records else RequestCode.READ_UNITS
    try:
        answer = line.call(RemotingCommand(code, header.encode()), repeats=True)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotServed
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
            raise Refused(line.address, answer.code, answer.remark)
        found = RawResponseHeader.decode(answer.fields)
    except RemotingFailed as error:
        raise StoreError(str(error)) from None
    except RemoteError as error:
        raise _wrong(line, error.remark) from None
    body = bytes(answer.body or b"")
    table_at = found.unit_count * UNIT_BYTES
    log_at = table_at + found.piece_count * _PIECE.itemsize
    if min(found.unit_count, found.piece_count) < 0 or log_at > len(body):
        raise _wrong(line, f"{len(body)} bytes are too few")
    pieces = np.frombuffer(body, _PIECE, found.piece_count, table_at)
    lengths = pieces["piece_bytes"].astype(np.int64)
    if (lengths < 0).any() or log_at + int(lengths.sum()) != len(body):
        raise _wrong(line, "the pieces are longer or shorter than their table says")
    is_moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
    if not is_moved and found.next_offset <= header.queue_offset:
        raise _wrong(line, "it does not go on")
    units = np.frombuffer(body, UNIT, found.unit_count)
    return Answer(found, is_moved, units, pieces, body, log_at)


def units(line: SyncConnection, part: QueueRange) -> Iterator[tuple[int, NumpyArray]]:
    """Yield (queue offset of the first unit, units) for what exists of a range."""
    at = part.first
    while at < part.end:
        end = min(part.end, at + UNITS_ALONE_MAX)
        answer = ask(line, ReadUnitsHeader(part.topic, part.queue_id, at, end))
        if len(answer.units):
            yield at, answer.units
        if answer.is_moved and answer.header.next_offset <= at:
            return
        at = answer.header.next_offset


def scan(line: SyncConnection, part: QueueRange, *, fail_on_data_loss: bool) -> Iterator[Scanned]:
    """Yield the complete records of a range, one answer at a time.

    Raises NotServed, before anything else; StoreError: see `ask`, and where messages are gone, if
    that is an error.
    """
    at = part.first
    while at < part.end:
        wanted = ReadRecordsHeader(part.topic, part.queue_id, at, part.end, ANSWER_BYTES)
        answer = ask(line, wanted)
        following = min(answer.header.next_offset, part.end)
        if answer.is_moved and following <= at:
            if fail_on_data_loss:
                raise ended(part, at)
            return
        if not len(answer.units):  # they have expired, or their file is missing
            if fail_on_data_loss:
                raise gone(part, at, following)
            at = following
            continue
        scanned = _scanned(answer, part, at)
        yield scanned
        at += scanned.count


def _scanned(answer: Answer, part: QueueRange, first: int) -> Scanned:
    """Return the units up to the first one whose existing record is missing."""
    units = answer.units
    starts = units["physical_offset"].astype(np.int64)
    sizes = units["record_bytes"].astype(np.int64)
    header = answer.header
    # `starts` may be any number at all, and starts + sizes must not overflow.
    may_be = (sizes >= RECORD_BYTES_MIN) & (starts >= header.log_min_offset)
    may_be &= starts <= header.log_end_offset - sizes
    firsts = answer.pieces["physical_offset"].astype(np.int64)
    lengths = answer.pieces["piece_bytes"].astype(np.int64)
    if not len(firsts):
        return Scanned(first, _count_come(~may_be), None)
    piece = np.maximum(np.searchsorted(firsts, starts, side="right") - 1, 0)
    inside = starts - firsts[piece]
    has_come = may_be & (inside >= 0) & (inside <= lengths[piece] - sizes)
    count = _count_come(has_come | ~may_be)
    rows = np.flatnonzero(has_come[:count])
    positions = (answer.log_at + np.cumsum(lengths) - lengths)[piece] + inside
    backwards = np.flatnonzero(np.diff(positions[rows]) < 0)
    if len(backwards):  # the others are asked for again, from the one that points backwards
        count = int(rows[backwards[0] + 1])
        rows = rows[: backwards[0] + 1]
    if not len(rows):
        return Scanned(first, count, None)
    places = Places(positions, sizes, units["tags_code"]).take(rows)
    records = _own(LogBytes(0, answer.body), places, starts[rows], rows + first, part)
    return Scanned(first, count, records if len(records) else None)


def _count_come(come: NumpyArray) -> int:
    """Return the number of usable units: those before the first missing one, but at least one."""
    return len(come) if come.all() else max(1, int(np.argmin(come)))


def _own(
    log: LogBytes, places: Places, starts: NumpyArray, queue_offsets: NumpyArray, part: QueueRange
) -> Records:
    def is_own(heads: NumpyArray, rows: NumpyArray | slice) -> NumpyArray:
        own: NumpyArray = (
            (heads["queue_id"] == part.queue_id)
            & (heads["queue_offset"] == queue_offsets[rows])
            & (heads["physical_offset"] == starts[rows])
        )
        return own

    return whole_records(log, places, is_own, part.topic)


def _wrong(line: SyncConnection, why: str) -> StoreError:
    return StoreError(f"{line.address}: an answer with records is wrong: {why}")
