"""Log of a slave: the master's bytes as received, published record by record.

Bytes arrive in order, cut anywhere, and are written to their offsets at once. For readers, the log
ends behind the last whole record, or behind a file that a BLANK ends. A partial record lies behind
that end; a stop removes it.

Source: store/ha/HAService.HAClient, CommitLog.appendData.

The fast scan looks at many records at a time. It accepts regular records and stops at the first
other one. `ReplicaLog` examines that place. protocol/message.py defines the layouts.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct

from protocol.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HOST_BITS,
    LENGTH_FIELDS_BYTES,
    PROPERTIES_LENGTH,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    SCAN_HEADS,
    SIZE_AND_MAGIC,
    TOPIC_BYTES_MAX,
    RecordError,
    RecordHead,
    scan_head,
)
from protocol.properties import KEYS, TAGS, UNIQ_KEY
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatching.dispatch import entry_of, index_keys, property_of, tags_code
from storage.errors import OffsetError, StoreError, store_error
from storage.files.mapped_file import MappedFile
from storage.log.commit_log import CommitLog
from storage.log.reader import RECORD_BYTES_MAX
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.dispatch_entry import DispatchEntry
from storage.replica.damage_search import DamageSearch

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_SEPARATOR = b"\x02"
_TAGS = f"\x02{TAGS}\x01".encode()
_UNIQ_KEY, _KEYS = (f"{name}\x01".encode() for name in (UNIQ_KEY, KEYS))
SHAPES_MAX = 1024
_Shape = tuple[bytes, int, int]
"""Topic, tags code, and bytes from the topic on, the UNIQ_KEY included."""


class RecordScanner:
    """Scanner of records that caches their shapes. One owner.

    Messages of one producer differ only in body and UNIQ_KEY. A shape is the text from the topic
    on, without the value of UNIQ_KEY. It determines all other results from topic and properties.
    """

    def __init__(self, delay_levels: Sequence[int]) -> None:
        """Initialize the scanner; `delay_levels` are in ms, level 1 first."""
        self._delay_levels = delay_levels
        self._shapes: dict[tuple[bytes, bytes], _Shape] = {}

    def scan(self, data: bytes, offset: int, entries: list[DispatchEntry]) -> int:
        """Add the entries of the records at the beginning of `data`; return their total bytes.

        `offset` is the offset of `data` in the log.
        """
        # A separate loop, because it runs beside the master's sends: 1 µs per record of 300 bytes,
        # instead of 3.5 µs with a RecordHead each (storage/log/reader.py).
        unpack, head_bytes = SCAN_HEADS[0].unpack_from, SCAN_HEADS[0].size
        shape_of, add = self._shapes.get, entries.append
        data_bytes, position = len(data), 0
        last = data_bytes - RECORD_BYTES_MIN
        while position <= last:
            size, magic, _, queue_id, number, physical, flag, stored_ms, body_bytes = unpack(
                data, position
            )
            tail_at, end = position + head_bytes + body_bytes, position + size
            if flag & HOST_BITS:
                head = SCAN_HEADS[flag >> 4 & 3]
                if position + head.size > data_bytes:
                    break
                *_, stored_ms, body_bytes = head.unpack_from(data, position)
                tail_at = position + head.size + body_bytes
            if (
                magic != RECORD_MAGIC
                or physical != offset + position
                or body_bytes < 0
                or tail_at + LENGTH_FIELDS_BYTES > end
                or end > data_bytes
            ):
                break
            tail = data[tail_at:end]
            before, _, after = tail.partition(_UNIQ_KEY)
            value, _, behind = after.partition(_SEPARATOR)
            shape = shape_of((before, behind))
            if shape is not None and value and len(tail) == shape[2]:
                topic, code, _ = shape
                keys: tuple[bytes, ...] = (value,)
            else:
                known = self._look_at(tail)
                if known is None:
                    break
                topic, code, keys = known
                if topic == _SCHEDULE_TOPIC:
                    code = entry_of(scan_head(data, position), self._delay_levels).tags_code
            add(DispatchEntry(topic, queue_id, number, physical, size, code, stored_ms, flag, keys))
            position = end
        return position

    def _look_at(self, tail: bytes) -> tuple[bytes, int, tuple[bytes, ...]] | None:
        """Return topic, tags code and keys of a record; None if they are invalid.

        `tail` begins with the topic's length. A delayed message needs another tags code.
        """
        topic_end = 1 + tail[0]
        text_at = topic_end + PROPERTIES_LENGTH.size
        if topic_end > 1 + TOPIC_BYTES_MAX or text_at > len(tail):
            return None
        if PROPERTIES_LENGTH.unpack_from(tail, topic_end)[0] != len(tail) - text_at:
            return None
        topic, text = tail[1:topic_end], tail[text_at:]
        code = tags_code(property_of(b"\x02" + text, _TAGS)) if _TAGS[1:] in text else 0
        keys = index_keys(text)
        if topic != _SCHEDULE_TOPIC and _KEYS not in text:
            self._remember(tail, text_at, (topic, code, len(tail)))
        return topic, code, keys

    def _remember(self, tail: bytes, text_at: int, shape: _Shape) -> None:
        """Cache the shape if UNIQ_KEY occurs once and is not part of a value."""
        before, found, after = tail.partition(_UNIQ_KEY)
        behind = after.partition(_SEPARATOR)[2]
        is_a_name = len(before) == text_at or (len(before) > text_at and before[-1:] == _SEPARATOR)
        if found and is_a_name and _UNIQ_KEY not in behind:
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            self._shapes[before, behind] = shape


_OTHER_SIZE = (
    "%s at %d does not fit a file of %d bytes: "
    "mappedFileSizeCommitLog must be the same as the master's."
)


_SIZE = Struct(">i")

STRETCH_BYTES = 64 << 10
"""Bytes of the log that one scan copies."""
PUBLISHED_BYTES = 128 << 10
"""Bytes after which `publish` ends: some 5 ms with records of 100 bytes."""

OVERLAP_BYTES_MIN = 4096
OVERLAP_BYTES_MAX = 16 << 20
"""More than the largest record; few records are newer than those in the queues."""


class ReplicaLog:
    """Writer of the master's bytes. One owner; `received_offset` and `is_empty` may be read."""

    def __init__(
        self,
        commit_log: CommitLog,
        delay_levels: Sequence[int],
        queues: Iterable[ConsumeQueue] = (),
    ) -> None:
        """Initialize the log.

        `delay_levels` are in ms, level 1 first; `queues` give the newest record.
        """
        self._log = commit_log
        self._newest_record = _newest_record(queues, commit_log.end_offset)
        self._delay_levels = delay_levels
        self._taker = RecordScanner(delay_levels)
        self.received_offset = commit_log.end_offset
        """Offset of the next byte from the master."""
        self.damaged_at = -1
        """Newest offset where a record should begin but none does, or -1."""
        self._search: DamageSearch | None = None
        self.has_more = False
        """Whether the last `publish` has left received bytes for the next one."""

    @property
    def is_empty(self) -> bool:
        """Whether the log may begin at any offset, because it has neither bytes nor an offset."""
        return self.received_offset == 0

    def overlap_start(self, end: int) -> int:
        """Return the start of the comparison that shows that both logs are equal up to `end`.

        Few bytes are not enough, because bodies may be equal. A record's head contains its offset
        and store timestamp, so the range includes one if it is not too far back.
        """
        newest = min(self._newest_record, end - OVERLAP_BYTES_MIN)
        return max(newest, end - OVERLAP_BYTES_MAX, self._log.min_offset(), 0)

    def read(self, offset: int, size: int) -> bytes:
        """Return received bytes, also of partial records. Raises OffsetError."""
        pieces: list[bytes] = []
        if offset + size > self.received_offset:
            raise OffsetError(f"{size} bytes at {offset} are behind {self.received_offset}")
        while size:
            file = self._log.queue.find(offset)
            if file is None:
                raise OffsetError(f"no file of {self._log.queue.directory} holds offset {offset}")
            count = min(size, file.end_offset - offset)
            pieces.append(file.file.pread(count, offset - file.first_offset))
            offset += count
            size -= count
        return b"".join(pieces)

    def check_begin(self, offset: int) -> None:
        """Raise StoreError for an offset at which no file of this size can begin."""
        file_bytes = self._log.queue.file_bytes
        if offset % file_bytes:
            raise StoreError(_OTHER_SIZE % ("A log that begins", offset, file_bytes))

    def begin_at(self, file: MappedFile) -> None:
        """Start an empty log with the file that begins at this offset."""
        assert self.is_empty, self.received_offset
        self._log.begin_at(file)
        self.received_offset = file.first_offset

    def write(self, data: bytes) -> int:
        """Write `data` behind the received bytes; return the bytes that existing files took.

        Raises StoreError when the disk fails; the failed piece does not count as received.
        """
        done = 0
        while done < len(data):
            file = self._log.queue.find(self.received_offset)
            if file is None:
                break
            position = self.received_offset - file.first_offset
            piece = data[done : done + file.size_bytes - position]
            try:
                file.write(piece, position)
            except OSError as error:
                raise store_error("cannot write to the commit log", error) from error
            done += len(piece)
            self.received_offset += len(piece)
        return done

    def publish(self) -> list[DispatchEntry]:
        """Publish records that are now whole, up to a share; return their entries in order.

        Damage in the master's log is skipped, as readers do. Raises StoreError when the master's
        files have another size.
        """
        entries: list[DispatchEntry] = []
        offset = self._log.end_offset
        share_end = offset + PUBLISHED_BYTES
        self.has_more = False
        try:
            while offset < self.received_offset:
                if offset >= share_end:
                    self.has_more = True
                    break
                sound_end = self._take_sound(offset, entries)
                if sound_end > offset:
                    offset = sound_end
                    continue
                head, following = self._next(offset)
                if following is None:
                    break
                if head is not None:
                    entries.append(entry_of(head, self._delay_levels))
                offset = following
        finally:
            if offset > self._log.end_offset:
                newest_ms = max([entry.store_timestamp for entry in entries], default=0)
                self._log.publish(offset, newest_ms)
            if entries:
                self._newest_record = entries[-1].physical_offset
        return entries

    def _take_sound(self, offset: int, entries: list[DispatchEntry]) -> int:
        """Add the entries of regular records; return the offset behind them."""
        file = self._log.queue.find(offset)
        if file is None:
            return offset
        position = offset - file.first_offset
        come = min(self.received_offset, file.end_offset) - offset
        (size,) = _SIZE.unpack_from(file.view, position) if come >= _SIZE.size else (0,)
        if not RECORD_BYTES_MIN <= size <= min(come, STRETCH_BYTES):
            return offset  # incomplete, long, or not a regular record
        stretch = file.view[position : position + min(come, STRETCH_BYTES)]
        return offset + self._taker.scan(bytes(stretch), offset, entries)

    def _next(self, offset: int) -> tuple[RecordHead | None, int | None]:
        """Return the record at `offset` and its end; the end is None while it is incomplete."""
        file = self._log.queue.find(offset)
        if file is None or self.received_offset - offset < BLANK_BYTES:
            return None, None
        search = self._search
        if search is None or search.offset != offset:
            position, left = offset - file.first_offset, file.end_offset - offset
            size, magic = left, 0
            if left >= BLANK_BYTES:
                size, magic = SIZE_AND_MAGIC.unpack_from(file.view, position)
            come = min(self.received_offset, file.end_offset) - offset
            if magic == BLANK_MAGIC and size != left:
                raise StoreError(_OTHER_SIZE % ("A BLANK", offset, file.size_bytes))
            if magic == RECORD_MAGIC and size >= RECORD_BYTES_MIN:
                if size > left:
                    raise StoreError(_OTHER_SIZE % ("The record", offset, file.size_bytes))
                if size > come:
                    return None, None
            if magic != RECORD_MAGIC and size == left:
                is_over = come == left and self._log.queue.find(file.end_offset) is not None
                return None, file.end_offset if is_over else None
            head = None
            if size <= RECORD_BYTES_MAX:
                with suppress(RecordError):
                    head = scan_head(file.view, position)
            if head is not None and head.physical_offset == offset:
                return head, offset + size
            self.damaged_at = offset  # continues when a whole record has arrived
            search = self._search = DamageSearch(offset, head)
        place = search.step(self._log.queue.find, self.received_offset)
        self.has_more = place is None and search.has_more
        return None, place

    def drop_partial(self) -> None:
        """Zero the bytes of a partial record behind the end.

        Raises StoreError.
        """
        end = self._log.end_offset
        try:
            for file in self._log.queue.spanning(end, self.received_offset):
                start = max(end, file.first_offset)
                stop = min(self.received_offset, file.end_offset)
                file.write(bytes(stop - start), start - file.first_offset)
        except OSError as error:
            raise store_error("cannot clear the log behind its last record", error) from error
        self.received_offset = end


def _newest_record(queues: Iterable[ConsumeQueue], end: int) -> int:
    """Return the physical offset of the newest record with a unit, or `end`."""
    newest = max(queues, key=lambda queue: queue.max_physical_offset, default=None)
    unit = None if newest is None else newest.unit(newest.max_offset - 1)
    return end if unit is None else min(unit[0], end)
