"""Reads the log without trusting it: which records are whole, where they end, what is damaged.

A record counts if its magic, its lengths, its own physical offset and (unless told otherwise) the
CRC of its body are right. BLANK leads to the next file. At anything else the next whole record is
looked for. Without one the log ends there. With one it is one of two things:

- torn: a page that a power cut has dropped, all zeros, where nothing vouches for the log. The log
  ends there, whatever lies behind it: what was written later must not survive what was earlier.
- damaged: a gap, which is reported and passed over. But where a torn record ends the log as well,
  the first gap in what nothing vouches for is its end.

After a clean stop nothing is torn. What lies behind a wrong place that no queue knows of is stale:
4.9.7 leaves there what it has cut off.

No checksum covers topic and properties. After a crash, a record whose text breaks off, with nothing
but zeros behind it in that page, is torn as well.

Source: store/CommitLog.java (recoverNormally, recoverAbnormally, checkMessageAndReturnSize).
"""

from collections.abc import Iterator, Sequence
from struct import error as StructError
from zlib import crc32

from protocol.message import (
    HOST_BITS,
    LENGTH_FIELDS_BYTES,
    RECORD_MAGIC,
    SCAN_HEADS,
    TOPIC_BYTES_MAX,
    RecordError,
    RecordHead,
    scan_head,
)
from protocol.properties import TAGS
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatch import DispatchEntry, entry_of, property_of, tags_code
from storage.mapped_file import MappedFile
from storage.mapped_file_queue import MappedFileQueue
from storage.resync import (
    body_is_intact,
    is_blank_at,
    is_sound_blank_at,
    next_record,
    whole_record_at,
)

PAGE_BYTES = 4096
"""What a disk writes whole or not at all, as far as we know."""

BATCH_RECORDS = 2048
"""Handed out at a time: large enough to be cheap, small enough to be little memory."""

_PROPERTIES_LENGTH_BYTES = 2
_TOPIC_END_MAX = 1 + TOPIC_BYTES_MAX
_ZEROS_OF_A_SIZE_BYTES = 3
_31_BITS = 0x7FFFFFFF
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TAGS = f"{TAGS}\x01".encode()
_TAGS_BYTES = len(_TAGS)


class LogScan:
    """One pass over the records from an offset on. Take all `batches`, then read the results."""

    def __init__(
        self,
        queue: MappedFileQueue,
        start_offset: int,
        *,
        check_crc: bool,
        after_crash: bool = False,
        vouched_offset: int = 0,
        trusted_until_ms: int = 0,
        delay_levels: Sequence[int] = (),
        stop_at: int | None = None,
    ) -> None:
        """Below `vouched_offset` the log is known to have been whole on disk, and damage is passed

        over; after a crash this holds as well for what was stored by `trusted_until_ms`. `stop_at`
        is where the log is known to end. `delay_levels` in ms, level 1 first.
        """
        self.start_offset = start_offset
        self.end_offset = start_offset
        """Behind the last whole record (and the BLANK behind it, when a file follows)."""
        self.last_store_timestamp = 0
        """The newest of all records seen, ms."""
        self.record_count = 0
        self.end_reason = "there is no file"
        """Why the record at `end_offset` does not count, in words."""
        self.gaps: list[tuple[int, int, str]] = []
        """(start, end, reason) of damage that was passed over."""
        self.damaged_blanks: list[int] = []
        """Where a BLANK has a field that is not right."""
        self._queue = queue
        self._check_crc = check_crc
        self._after_crash = after_crash
        self._vouched_offset = vouched_offset if stop_at is None else stop_at
        self._text_from = self._vouched_offset if after_crash else 1 << 63
        self._trusted_until_ms = trusted_until_ms
        self._delay_levels = delay_levels
        self._end_is_known = stop_at is not None
        self._stop_at = queue.capacity_end if stop_at is None else stop_at
        self._offset = start_offset

    def batches(self) -> Iterator[list[DispatchEntry]]:
        """The records in order, some at a time. Their keys are left out: only queues want these.

        A gap is in `gaps` before the batch behind it. A record whose body alone is damaged is in
        `gaps` and in the batch: its queue and number are right.
        """
        file = self._queue.find(self._offset)
        while file is not None and self._offset < self._stop_at:
            self.end_offset = self._offset
            position = self._offset - file.first_offset
            while position < file.size_bytes:
                entries, position, fault = self._some_records(file, position)
                self._note(entries, file.first_offset + position)
                if entries:
                    yield entries
                if fault:
                    found = self._behind_fault(file, position, fault)
                    if found is None:
                        return
                    if damaged := self._readable_entry(file, position, found):
                        yield [damaged]
                    position = found - file.first_offset
            self._offset = max(file.end_offset, file.first_offset + position)
            file = self._queue.find(self._offset)
            if file is None:
                self.end_reason = f"the file before {self._offset} is full and no file follows it"
        self.end_reason = self.end_reason or "the log is known to end there"

    def _note(self, entries: list[DispatchEntry], offset: int) -> None:
        """Keeps count; `offset` is where these records end."""
        if not entries:
            return
        self.record_count += len(entries)
        self.end_offset = entries[-1][3] + entries[-1][4]
        newest = max([entry[6] for entry in entries])
        self.last_store_timestamp = max(self.last_store_timestamp, newest)

    def _some_records(
        self, file: MappedFile, position: int
    ) -> tuple[list[DispatchEntry], int, str]:
        """Up to a batch of records from `position` on; the position behind them; what is wrong.

        At a BLANK, and where the log is known to end, the position is the file's end.
        """
        # One loop with local names: 2.1 µs a record of 250 bytes; with a RecordHead each, 6.
        view, shift, size_bytes = file.view, file.first_offset, file.size_bytes
        stop = min(self._stop_at - shift, size_bytes)
        unpack, check_crc, text_from = SCAN_HEADS[0].unpack_from, self._check_crc, self._text_from
        head_bytes = SCAN_HEADS[0].size
        entries: list[DispatchEntry] = []
        add = entries.append
        for _ in range(BATCH_RECORDS):
            if position >= stop:
                return entries, size_bytes, ""
            try:
                size, magic, crc, queue_id, number, physical, flag, stored_ms, body_bytes = unpack(
                    view, position
                )
                body_at = position + head_bytes
                if flag & HOST_BITS:
                    head = SCAN_HEADS[flag >> 4 & 3]
                    size, magic, crc, queue_id, number, physical, flag, stored_ms, body_bytes = (
                        head.unpack_from(view, position)
                    )
                    body_at = position + head.size
            except StructError:
                break
            topic_at, end = body_at + body_bytes, position + size
            if (
                magic != RECORD_MAGIC
                or physical != shift + position
                or body_bytes < 0
                or topic_at + LENGTH_FIELDS_BYTES > end
                or end > size_bytes
            ):
                break
            tail = bytes(view[topic_at:end])
            topic_end = 1 + tail[0]
            text_at = topic_end + _PROPERTIES_LENGTH_BYTES
            text_bytes = len(tail) - text_at
            if topic_end > _TOPIC_END_MAX or int.from_bytes(tail[topic_end:text_at]) != text_bytes:
                break
            if check_crc and body_bytes and crc32(view[body_at:topic_at]) & _31_BITS != crc:
                break
            topic = tail[1:topic_end]
            at = tail.find(_TAGS, text_at)
            code = 0 if at < 0 else _tags_code_of(tail, text_at, at)
            if topic == _SCHEDULE_TOPIC:
                code = entry_of(scan_head(view, position), self._delay_levels)[5]
            if not tail[-1] and shift + position >= text_from and _breaks_off(view, position):
                break
            add((topic, queue_id, number, physical, size, code, stored_ms, flag, ()))
            position = end
        else:
            return entries, position, ""
        return (entries, *self._at_fault(file, position))

    def _at_fault(self, file: MappedFile, position: int) -> tuple[int, str]:
        """What lies at a place that holds no record that counts: a BLANK, or something wrong."""
        if is_blank_at(file, position):
            if not is_sound_blank_at(file, position):
                self.damaged_blanks.append(file.first_offset + position)
            self.end_reason = ""
            if self._queue.find(file.end_offset) is None:
                return position, "no file follows a BLANK"
            return file.size_bytes, ""
        return position, self._fault_at(file, position)

    def _fault_at(self, file: MappedFile, position: int) -> str:
        """Why the record there does not count, in words."""
        offset = file.first_offset + position
        try:
            head = scan_head(file.view, position)
        except RecordError as error:
            return f"{file.path}: {error}"
        if head.physical_offset != offset:
            return f"the record at {offset} says it lies at {head.physical_offset}"
        if self._check_crc and not body_is_intact(file.view, position, head):
            return f"the body of the record at {offset} does not have its CRC"
        return f"the record at {offset} breaks off"

    def _behind_fault(self, file: MappedFile, position: int, fault: str) -> int | None:
        """Where the log goes on behind damage; None if it ends there, with `end_reason` set."""
        offset = file.first_offset + position
        self.end_offset = offset
        self.end_reason = fault
        found = next_record(self._queue, offset, self._stop_at)
        if found is None:
            if not self._end_is_known:
                if self._after_crash and not _is_zero(file, position, _page_end(position)):
                    self._retreat()
                return None
            found = self._stop_at
        if offset >= self._vouched_offset:
            if not self._after_crash:
                return None
            if self._is_torn(file, offset, found):
                self.end_reason = f"{fault}; a page was lost there"
                return None
        self.gaps.append((offset, found, fault))
        self.end_offset = found
        self.end_reason = ""
        return found

    def _retreat(self) -> None:
        """A record is torn where the log ends, so power was cut while it was written.

        Then damage before it, in what nothing vouches for, was done by the same: the log ends
        there.
        """
        for number, (start, end, reason) in enumerate(self.gaps):
            if start >= self._vouched_offset and not self._is_trusted(end):
                self.end_offset = start
                self.end_reason = f"{reason}; what follows was torn when power was cut"
                del self.gaps[number:]
                return

    def _is_trusted(self, offset: int) -> bool:
        """Whether the record there is old enough to have been on disk."""
        stored_ms = self._stored_ms(offset)
        return 0 < stored_ms <= self._trusted_until_ms

    def _stored_ms(self, offset: int) -> int:
        """When the record there was stored; 0 if none begins there."""
        file = self._queue.find(offset)
        head = None if file is None else whole_record_at(file, offset - file.first_offset)
        return 0 if head is None else head.store_timestamp

    def _is_torn(self, file: MappedFile, offset: int, found: int) -> bool:
        """Whether a lost page explains what is wrong at `offset`; `found` is the next record."""
        if self._is_trusted(found):
            return False
        if 0 < self._stored_ms(found) < self.last_store_timestamp:
            return True  # It is older: left over from before an end that the official broker set.
        position = offset - file.first_offset
        if _is_zero(file, position, _page_end(position)):
            return True
        head = whole_record_at(file, position)
        if head is not None and text_breaks_off(file.view, position, head):
            return True
        # A page may reach into the size of the record behind it, which begins with zeros.
        end = found + _ZEROS_OF_A_SIZE_BYTES
        return any(
            _has_zero_page(each, offset - each.first_offset, end - each.first_offset)
            for each in self._queue.spanning(offset, found)
        )

    def _readable_entry(self, file: MappedFile, position: int, found: int) -> DispatchEntry | None:
        """The entry of a damaged record of which the body alone is wrong."""
        try:
            head = scan_head(file.view, position)
        except RecordError:
            return None
        offset = file.first_offset + position
        end = offset + head.record_bytes
        if head.magic != RECORD_MAGIC or head.physical_offset != offset or end != found:
            return None
        return entry_of(head, self._delay_levels)


def _page_end(position: int) -> int:
    """The first page border behind a position."""
    return position - position % PAGE_BYTES + PAGE_BYTES


def _is_zero(file: MappedFile, start: int, end: int) -> bool:
    data = bytes(file.view[start:end])
    return data == bytes(len(data))


def _has_zero_page(file: MappedFile, start: int, end: int) -> bool:
    """Whether a whole page between two positions is zeros."""
    start, end = max(start, 0), min(end, file.size_bytes)
    first = -(-start // PAGE_BYTES) * PAGE_BYTES
    return any(
        _is_zero(file, page, page + PAGE_BYTES)
        for page in range(first, end - PAGE_BYTES + 1, PAGE_BYTES)
    )


def _tags_code_of(tail: bytes, text_at: int, at: int) -> int:
    """The code of the TAGS whose name may stand at `at`; the properties begin at `text_at`."""
    value_at = at + _TAGS_BYTES
    if (at == text_at or tail[at - 1] == 2) and tail.find(_TAGS, value_at) < 0:
        value_end = tail.find(b"\x02", value_at)
        value = tail[value_at:] if value_end < 0 else tail[value_at:value_end]
        return tags_code(value)
    return tags_code(property_of(b"\x02" + tail[text_at:], b"\x02" + _TAGS))


def _breaks_off(view: memoryview, position: int) -> bool:
    return text_breaks_off(view, position, scan_head(view, position))


def text_breaks_off(view: memoryview, position: int, head: RecordHead) -> bool:
    """Whether a record has lost the end of its topic or properties: zeros from there on.

    Nothing but zeros follows then in the page. Text that really ends in a zero, in the last record
    of a log, is taken for lost as well.
    """
    end = position + head.record_bytes
    text_end = end if head.properties else end - _PROPERTIES_LENGTH_BYTES
    if view[text_end - 1] or not (head.properties or head.topic):
        return False
    last_page = (end - 1) // PAGE_BYTES * PAGE_BYTES
    page_end = last_page + PAGE_BYTES if last_page > position else _page_end(end)
    return not any(view[end:page_end])
