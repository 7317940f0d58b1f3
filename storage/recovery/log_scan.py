"""Scan of the log that trusts nothing: whole records, the end of the log, and damage.

A record counts if its magic, lengths and physical offset are right, and by default the CRC of its
body. BLANK leads to the next file. Anything else starts a search for the next whole record. Without
one, the log ends there. Otherwise, the place is one of two:

- Torn: a page of zeros, lost in a power failure, in the part of the log that is not known to be
  synced. The log ends there, because later writes must not survive earlier ones.
- Damaged: a gap, which is reported and skipped. But if a torn record also ends the log, the log
  ends at the first gap in the part that is not known to be synced.

After a clean stop nothing is torn. Content behind a wrong place, without units in any queue, is
stale: 4.9.7 leaves there what it has cut off.

No checksum covers topic and properties. After a crash, a record is therefore torn, too, if its text
breaks off and only zeros follow in that page.

Source: store/CommitLog.java (recoverNormally, recoverAbnormally, isMappedFileMatchedRecover,
checkMessageAndReturnSize).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from zlib import crc32

from protocol.message import (
    LENGTH_FIELDS_BYTES,
    TOPIC_BYTES_MAX,
    RecordHead,
    scan_head,
)
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatching.dispatch import TAGS_NAME, entry_of, tags_code_of
from storage.files.mapped_file import MappedFile, MappedFileQueue
from storage.log.reader import (
    ONE_RECORD_BYTES,
    Fault,
    LogReader,
    is_sound_blank,
    next_whole,
    record_at,
    sound_heads,
)
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.log_chunks import ChunkSource, OpenParts, PartOrder, ReadPart

PAGE_BYTES = 4096
"""Assumed unit that a disk writes completely or not at all."""

BATCH_RECORDS = 2048
"""Records per batch: large enough to be fast, small enough to save memory."""

_PROPERTIES_LENGTH_BYTES = 2
_TOPIC_END_MAX = 1 + TOPIC_BYTES_MAX
_ZEROS_OF_A_SIZE_BYTES = 3
_31_BITS = 0x7FFFFFFF
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


FILES_READ_AFTER_CLEAN_STOP = 3
"""Files read after a clean stop, as in 4.9.7."""


def start_after_clean_stop(queue: MappedFileQueue) -> int:
    """Return the offset to read from: the third last file, or the first."""
    files = queue.files
    return files[-FILES_READ_AFTER_CLEAN_STOP:][0].first_offset if files else 0


def start_after_crash(queue: MappedFileQueue, trusted_until_ms: int) -> int:
    """Return the offset to read from: the newest file with a trusted first record.

    Without such a file, it is the first file, for example if the checkpoint is empty.
    """
    reader = LogReader(queue.find, queue.capacity_end, window_bytes=ONE_RECORD_BYTES)
    for file in reversed(queue.files):
        head = record_at(reader, file.first_offset, check_crc=False)
        if isinstance(head, RecordHead) and 0 < head.store_timestamp <= trusted_until_ms:
            return file.first_offset
    return queue.min_offset


class LogScan:
    """One pass over the records from an offset on; consume `batches`, then read the results."""

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
        open_parts: OpenParts | None = None,
    ) -> None:
        """Initialize the scan.

        Below `vouched_offset`, the log was whole on disk, so damage is skipped. After a crash, this
        also holds for records stored by `trusted_until_ms`. `stop_at` is the known end of the log.
        `delay_levels` are in ms, level 1 first. With `open_parts`, chunks are offered to `take`.
        """
        self.start_offset = start_offset
        self.end_offset = start_offset
        """Offset behind the last whole record and, if a file follows, behind its BLANK."""
        self.last_store_timestamp = 0
        """Newest store timestamp of all records read, ms."""
        self.record_count = 0
        self.end_reason = "there is no file"
        """Reason why no record counts at `end_offset`."""
        self.gaps: list[tuple[int, int, str]] = []
        """(start, end, reason) of skipped damage."""
        self.damaged_blanks: list[int] = []
        """Offsets of BLANKs with a wrong field."""
        self._queue = queue
        self._reader = LogReader(queue.find, queue.capacity_end)
        """Reader for places that the loop over whole records cannot handle."""
        self._check_crc = check_crc
        self._after_crash = after_crash
        self._vouched_offset = vouched_offset if stop_at is None else stop_at
        self._text_from = self._vouched_offset if after_crash else 1 << 63
        self._trusted_until_ms = trusted_until_ms
        self._delay_levels = delay_levels
        self._before_ms = 0
        """Store timestamp of the last whole record; a single wrong timestamp has little effect."""
        self._end_is_known = stop_at is not None
        self._stop_at = queue.capacity_end if stop_at is None else stop_at
        self._offset = start_offset
        self._open_parts = open_parts
        self._parts: ChunkSource[ReadPart] | None = None
        self.take: Callable[[ReadPart], bool] = lambda _: False
        """Consumer of chunks; returns False to get the records one by one instead."""
        self._one_by_one_until = 0

    def batches(self) -> Iterator[list[DispatchEntry]]:
        """Yield the entries of the records in order, in batches, without keys.

        `gaps` has a gap before the batch behind it. A record with only a damaged body is in `gaps`
        and in the batch, because its queue and queue offset are right.
        """
        self._parts = self._opened_parts()
        file = self._queue.find(self._offset)
        while file is not None and self._offset < self._stop_at:
            self.end_offset = self._offset
            position = self._offset - file.first_offset
            while position < file.size_bytes:
                border = self._border(file.first_offset + position)
                part = self._part_taken(file.first_offset + position, border)
                if part is not None:
                    position = part.end - file.first_offset
                    continue
                entries, position, fault = self._some_records(file, position, border)
                self._note(entries)
                if entries:
                    yield entries
                if fault is not None:
                    offset = file.first_offset + position
                    found = self._behind_fault(file, offset, fault)
                    if found is None:
                        return
                    head = fault.head  # of a record with only a damaged body
                    if head and head.physical_offset == offset == found - head.record_bytes:
                        yield [entry_of(head, self._delay_levels)]
                    position = found - file.first_offset
            self._offset = max(file.end_offset, file.first_offset + position)
            file = self._queue.find(self._offset)
            if file is None:
                self.end_reason = f"the file before {self._offset} is full and no file follows it"
        self.end_reason = self.end_reason or "the log is known to end there"

    def _opened_parts(self) -> ChunkSource[ReadPart] | None:
        if self._open_parts is None:
            return None
        order = PartOrder(
            directory=self._queue.directory,
            file_bytes=self._queue.file_bytes,
            start=self._offset,
            end=self._stop_at,
            check_crc=self._check_crc,
            text_from=self._text_from,
            delay_levels=self._delay_levels,
        )
        return self._open_parts(order, self._reader)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._parts is not None:
            self._parts.close()

    def _border(self, offset: int) -> int:
        """Return the offset after `offset` at which prepared chunks are available again."""
        return 1 << 63 if self._parts is None else self._parts.order.border(offset)

    def _part_taken(self, offset: int, border: int) -> ReadPart | None:
        """Return the chunk at `offset` if there is one and `take` accepted it."""
        if self._parts is None or offset < self._one_by_one_until:
            return None
        part = self._parts.at(offset)
        if part is None or not self.take(part):
            self._one_by_one_until = border
            return None
        self.record_count += part.record_count
        self.end_offset, self._before_ms = part.end, part.last_ms
        self.last_store_timestamp = max(self.last_store_timestamp, part.newest_ms)
        return part

    def _note(self, entries: list[DispatchEntry]) -> None:
        if not entries:
            return
        self.record_count += len(entries)
        self.end_offset = entries[-1].end_offset
        self._before_ms = entries[-1].store_timestamp
        newest = max([entry.store_timestamp for entry in entries])
        self.last_store_timestamp = max(self.last_store_timestamp, newest)

    def _some_records(
        self, file: MappedFile, position: int, border: int
    ) -> tuple[list[DispatchEntry], int, Fault | None]:
        """Return records that begin before `border`, the position behind them, and a fault.

        At a BLANK or the known end of the log, the position is the end of the file.
        """
        view, shift, size_bytes = file.view, file.first_offset, file.size_bytes
        end_of_log = min(self._stop_at - shift, size_bytes)
        stop = min(end_of_log, border - shift)
        check_crc, text_from = self._check_crc, self._text_from
        entries: list[DispatchEntry] = []
        heads = sound_heads(view, position, stop, shift)
        for at, size, crc, queue_id, number, flag, stored_ms, body_at, topic_at in islice(
            heads, BATCH_RECORDS
        ):
            tail = bytes(view[topic_at : at + size])
            topic_end, text_at = 1 + tail[0], LENGTH_FIELDS_BYTES + tail[0]
            text_bytes = int.from_bytes(tail[topic_end:text_at])
            if topic_end > _TOPIC_END_MAX or text_bytes != len(tail) - text_at:
                break
            if check_crc and body_at < topic_at and crc32(view[body_at:topic_at]) & _31_BITS != crc:
                break
            topic = tail[1:topic_end]
            tags_at = tail.find(TAGS_NAME, text_at)
            code = 0 if tags_at < 0 else tags_code_of(tail, text_at, tags_at)
            if topic == _SCHEDULE_TOPIC:
                code = entry_of(scan_head(view, at), self._delay_levels).tags_code
            if not tail[-1] and shift + at >= text_from and _breaks_off(view, at):
                break
            entries.append(
                DispatchEntry(topic, queue_id, number, shift + at, size, code, stored_ms, flag, ())
            )
            position = at + size
        else:
            if len(entries) == BATCH_RECORDS:
                return entries, position, None
            if position >= stop:
                return entries, position if position < end_of_log else size_bytes, None
        return (entries, *self._at_fault(file, position))

    def _at_fault(self, file: MappedFile, position: int) -> tuple[int, Fault | None]:
        """Examine a place without a valid record: a BLANK or a fault."""
        offset = file.first_offset + position
        found = record_at(self._reader, offset, check_crc=self._check_crc)
        if isinstance(found, RecordHead):
            return position, Fault(f"the record at {offset} breaks off", found)
        if found is not None:
            return position, found
        if not is_sound_blank(self._reader, offset):
            self.damaged_blanks.append(offset)
        self.end_reason = ""
        if self._queue.find(file.end_offset) is None:
            return position, Fault("no file follows a BLANK")
        return file.size_bytes, None

    def _behind_fault(self, file: MappedFile, offset: int, fault: Fault) -> int | None:
        """Return the offset behind damage, or None if the log ends; `end_reason` is set then."""
        position = offset - file.first_offset
        self.end_offset = offset
        self.end_reason = fault.reason
        found = next_whole(self._reader, offset, fault, self._stop_at)
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
                self.end_reason = f"{fault.reason}; a page was lost there"
                return None
        self.gaps.append((offset, found, fault.reason))
        self.end_offset = found
        self.end_reason = ""
        return found

    def _retreat(self) -> None:
        """Move the end of the log back to the first gap that is not trusted.

        A torn record at the log's end shows a power failure during its write. Earlier damage in the
        part not known to be synced has the same cause.
        """
        for number, (start, end, reason) in enumerate(self.gaps):
            if start >= self._vouched_offset and not self._is_trusted(end):
                self.end_offset = start
                self.end_reason = f"{reason}; later records were torn by a power failure"
                del self.gaps[number:]
                return

    def _is_trusted(self, offset: int) -> bool:
        """Return whether the record at `offset` is old enough to have been synced."""
        stored_ms = self._stored_ms(offset)
        return 0 < stored_ms <= self._trusted_until_ms

    def _stored_ms(self, offset: int) -> int:
        """Return the store timestamp of the record at `offset`; 0 without a record."""
        head = record_at(self._reader, offset)
        return head.store_timestamp if isinstance(head, RecordHead) else 0

    def _is_torn(self, file: MappedFile, offset: int, found: int) -> bool:
        """Return whether a lost page explains a fault at `offset`; `found` is the next record."""
        if self._is_trusted(found):
            return False
        if 0 < self._stored_ms(found) < self._before_ms:
            return True  # Older: left behind an end that RocketMQ set.
        position = offset - file.first_offset
        if _is_zero(file, position, _page_end(position)):
            return True
        whole = record_at(self._reader, offset)
        if isinstance(whole, RecordHead) and text_breaks_off(file.view, position, whole):
            return True
        # A lost page may reach into the size of the next record, which begins with zeros.
        end = found + _ZEROS_OF_A_SIZE_BYTES
        return any(
            _has_zero_page(each, offset - each.first_offset, end - each.first_offset)
            for each in self._queue.spanning(offset, found)
        )


def _page_end(position: int) -> int:
    return position - position % PAGE_BYTES + PAGE_BYTES


def _is_zero(file: MappedFile, start: int, end: int) -> bool:
    data = bytes(file.view[start:end])
    return data == bytes(len(data))


def _has_zero_page(file: MappedFile, start: int, end: int) -> bool:
    start, end = max(start, 0), min(end, file.size_bytes)
    first = -(-start // PAGE_BYTES) * PAGE_BYTES
    return any(
        _is_zero(file, page, page + PAGE_BYTES)
        for page in range(first, end - PAGE_BYTES + 1, PAGE_BYTES)
    )


def _breaks_off(view: memoryview, position: int) -> bool:
    return text_breaks_off(view, position, scan_head(view, position))


def text_breaks_off(view: memoryview, position: int, head: RecordHead) -> bool:
    """Return whether the end of a record's topic or properties is lost, so that zeros replace it.

    Only zeros follow then in the page. In the last record of a log, a text that really ends in a
    zero counts as lost, too.
    """
    end = position + head.record_bytes
    text_end = end if head.properties else end - _PROPERTIES_LENGTH_BYTES
    if view[text_end - 1] or not (head.properties or head.topic):
        return False
    last_page = (end - 1) // PAGE_BYTES * PAGE_BYTES
    page_end = last_page + PAGE_BYTES if last_page > position else _page_end(end)
    return not any(view[end:page_end])
