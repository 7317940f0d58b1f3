"""Log chunks: fast reads of whole records, as finished units for the consume queues.

A chunk begins with a record. It ends before the first irregular place: damage, a BLANK, the first
message of a queue, or a queue offset that does not continue its queue. With chunks, the scan
(log_scan.py) takes thousands of records at once and reads the places between them itself.

Chunks depend only on the log. Processes may therefore read them ahead, each its own stretches
(part_worker.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import error as StructError
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar
from zlib import crc32

from protocol.codes import TRANSACTION_PREPARED
from protocol.message import (
    LENGTH_FIELDS_BYTES,
    TOPIC_BYTES_MAX,
    scan_head,
)
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatching.dispatch import TAGS_NAME, entry_of, tags_code_of
from storage.log.reader import RECORD_BYTES_MAX, Fault, LogReader, next_whole, sound_heads
from storage.queues.queue_units import UNIT, UnitRun

UNITS = "units"
PART_BYTES = 4 << 20
"""Bytes of a stretch of a log file; the chunk of one stretch fits into a pipe."""
_WINDOW_BYTES = 1 << 20
_31_BITS = 0x7FFFFFFF
_PROPERTIES_LENGTH_BYTES = 2
_CODES_MAX = 4096
_NO_CODE = 1 << 63
"""Marker outside the range of tags codes, which are signed 64-bit."""
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class LogChunk(Protocol):
    """Consecutive whole records, as one dispatch target needs them."""

    def serves(self, offset: int) -> bool:
        """Return whether a consumer that has all records beginning below `offset` can take it."""

    def fields(self) -> tuple[Any, ...]:
        """Return the chunk's fields as values that marshal can write."""

    @classmethod
    def of_fields(cls, fields: Iterable[Any]) -> Self:
        """Return the chunk with these fields."""


P_co = TypeVar("P_co", bound=LogChunk, covariant=True)


class ReadPart(NamedTuple):
    """Units of consecutive whole records."""

    start: int
    end: int
    """Physical offset behind the last record."""
    record_count: int
    newest_ms: int
    last_ms: int
    runs: Sequence[UnitRun]

    def unit_count(self) -> int:
        return sum(len(run.units) for run in self.runs) // UNIT.size

    def serves(self, offset: int) -> bool:
        return self.start == offset

    def fields(self) -> tuple[Any, ...]:
        return (*self[:-1], [tuple(run) for run in self.runs])

    @classmethod
    def of_fields(cls, fields: Iterable[Any]) -> "ReadPart":
        *plain, runs = fields
        return cls._make((*plain, [UnitRun(*run) for run in runs]))


@dataclass(frozen=True, slots=True)
class PartOrder:
    directory: str
    file_bytes: int
    start: int
    end: int
    """Physical offset at which the read ends."""
    check_crc: bool
    text_from: int
    """Offset from which a text that ends in zeros may be incomplete."""
    delay_levels: Sequence[int] = field(default=())
    """Delays in ms, level 1 first."""
    part_bytes: int = PART_BYTES
    kind: str = UNITS
    """Kind of chunks; part_worker.py maps it to a reader."""

    def border(self, offset: int) -> int:
        """Return the end of the stretch that contains `offset`, if its file is long enough."""
        return offset - offset % self.part_bytes + self.part_bytes

    def stretches(self, offset: int) -> Iterator[int]:
        """Yield the offset of the stretch that contains `offset`, and of all later ones."""
        offset = max(offset - offset % self.part_bytes, offset - offset % self.file_bytes)
        while offset < self.end:
            yield offset
            file_end = offset - offset % self.file_bytes + self.file_bytes
            offset = min(self.border(offset), file_end)


class ChunkSource(Protocol[P_co]):
    """Interface of readers that yield the log in chunks, in process or by workers."""

    order: PartOrder

    def at(self, offset: int) -> P_co | None:
        """Return the chunk that serves `offset` and ends in its stretch, or None.

        Offsets rise from call to call. None means that there is no chunk or that it is unknown.
        """

    def close(self) -> None:
        """Release files and processes."""


OpenParts = Callable[[PartOrder, LogReader], ChunkSource[ReadPart]]
"""Factory of a source; the LogReader is for sources that read in this process."""


class ChunkBuilder(Protocol[P_co]):
    wants_care: bool
    """Whether the next record cannot be part of a chunk."""

    def take(self, data: bytes, shift: int, border: int) -> int:
        """Add the whole records of `data`, at offset `shift`, that begin before `border`.

        Return the offset of the next record. Raises StructError.
        """

    def part(self) -> P_co | None:
        """Return the chunk, or None without records."""


class StretchReader(Generic[P_co]):
    """Reader of consecutive chunks of the log. One owner."""

    def __init__(self, order: PartOrder, reader: LogReader) -> None:
        self._order = order
        self._reader = reader

    part_type: type[P_co]

    def begun(self, start: int) -> ChunkBuilder[P_co]:
        """Return an empty chunk builder that begins at `start`."""
        raise NotImplementedError

    def first_in(self, offset: int) -> P_co | None:
        """Return the chunk that begins with the first whole record of the stretch at `offset`."""
        end = min(self._order.border(offset), self._order.end)
        found = next_whole(self._reader, offset - 1, Fault(""), end)
        return None if found is None else self.read(found)

    def read(self, start: int) -> P_co | None:
        """Return the chunk that begins at `start`, or None if it would be empty."""
        growing = self.begun(start)
        border = min(self._order.border(start), self._order.end)
        offset, wanted = start, _WINDOW_BYTES
        while offset < border:
            try:
                data = self._window(offset, wanted)
                found = growing.take(data, offset, border)
            except (OSError, StructError):
                break  # the sequential scan determines the fault
            if found == offset:
                size = int.from_bytes(data[:4])
                if not len(data) < size <= RECORD_BYTES_MAX or wanted >= size:
                    break
                wanted = size
            else:
                offset, wanted = found, _WINDOW_BYTES
            if growing.wants_care:
                break
        return growing.part()

    def _window(self, offset: int, wanted: int) -> bytes:
        file = self._reader.file_at(offset)
        if file is None:
            return b""
        count = min(wanted, file.end_offset - offset, self._order.end - offset)
        return file.file.pread(count, offset - file.first_offset)


class PartReader(StretchReader[ReadPart]):
    part_type = ReadPart

    def __init__(self, order: PartOrder, reader: LogReader) -> None:
        super().__init__(order, reader)
        self._codes: dict[bytes, int] = {}

    def begun(self, start: int) -> ChunkBuilder[ReadPart]:
        return _Building(self._order, start, self._codes)


class PartsHere:
    """Source that reads each chunk on request. A ChunkSource."""

    def __init__(self, order: PartOrder, reader: LogReader) -> None:
        self.order = order
        self._reader = PartReader(order, reader)

    def at(self, offset: int) -> ReadPart | None:
        return self._reader.read(offset)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Run:
    next_number: int
    units: bytearray


class _Building:
    """Queue chunk under construction. A ChunkBuilder."""

    def __init__(self, order: PartOrder, start: int, codes: dict[bytes, int]) -> None:
        self.wants_care = False
        self._order = order
        self._codes = codes
        self._start = self._end = start
        self._count = self._newest_ms = self._last_ms = 0
        self._topics: dict[bytes, tuple[dict[int, _Run], int]] = {}
        """Runs by queue id, and properties length, by the encoded topic and both lengths."""
        self._queues: dict[bytes, dict[int, _Run]] = {}

    def part(self) -> ReadPart | None:
        if not self._count:
            return None
        runs = [
            UnitRun(
                topic, queue_id, run.next_number - len(run.units) // UNIT.size, bytes(run.units)
            )
            for topic, queues in self._queues.items()
            for queue_id, run in queues.items()
            if run.units
        ]
        return ReadPart(self._start, self._end, self._count, self._newest_ms, self._last_ms, runs)

    def take(self, data: bytes, shift: int, border: int) -> int:
        order, codes, pack = self._order, self._codes, UNIT.pack
        check_crc, topics, find = order.check_crc, self._topics, data.find
        text_from = order.text_from
        schedule = self._queues.setdefault(_SCHEDULE_TOPIC, {})
        newest_ms, stored_ms, position, count = self._newest_ms, self._last_ms, 0, 0
        for _, size, crc, queue_id, number, flag, time_ms, body_at, topic_at in sound_heads(
            data, 0, border - shift, shift
        ):
            end = position + size
            if check_crc and body_at < topic_at and crc32(data[body_at:topic_at]) & _31_BITS != crc:
                break
            text_at = topic_at + LENGTH_FIELDS_BYTES + data[topic_at]
            lengths = data[topic_at:text_at]
            known = topics.get(lengths)
            if known is None:
                known = topics[lengths] = self._topic(lengths)
            queues, text_bytes = known
            if end - text_at != text_bytes:
                break
            if not data[end - 1] and shift + position >= text_from:
                self.wants_care = True
                break
            if not flag & TRANSACTION_PREPARED:
                run = queues.get(queue_id)
                if run is None:
                    run = queues[queue_id] = _Run(number, bytearray())
                if run.next_number != number or not number:
                    self.wants_care = True
                    break
                at = find(TAGS_NAME, text_at, end)
                code = 0
                if at >= 0:
                    rest = data[at - 1 : end]
                    code = codes.get(rest, _NO_CODE)
                    if code == _NO_CODE:
                        code = tags_code_of(data[topic_at:end], text_at - topic_at, at - topic_at)
                        if len(codes) < _CODES_MAX and rest[0] == 2:
                            codes[rest] = code
                if queues is schedule:
                    code = entry_of(scan_head(data, position), order.delay_levels).tags_code
                run.next_number = number + 1
                run.units += pack(shift + position, size, code)
            elif number:
                self.wants_care = True
                break
            if time_ms > newest_ms:
                newest_ms = time_ms
            stored_ms = time_ms
            position = end
            count += 1
        self._newest_ms, self._last_ms, self._end = newest_ms, stored_ms, shift + position
        self._count += count
        return shift + position

    def _topic(self, lengths: bytes) -> tuple[dict[int, _Run], int]:
        topic, text_bytes = topic_of(lengths)
        return self._queues.setdefault(topic, {}) if text_bytes >= 0 else {}, text_bytes


def topic_of(lengths: bytes) -> tuple[bytes, int]:
    """Return topic and properties length of a record.

    `lengths` are the record's bytes from the topic's length up to the properties. The length is
    negative if the topic is too long.
    """
    topic_end = len(lengths) - _PROPERTIES_LENGTH_BYTES
    if topic_end > 1 + TOPIC_BYTES_MAX:
        return b"", -1
    return lengths[1:topic_end], int.from_bytes(lengths[topic_end:])
