"""Reads the log without trusting it: which records are whole, and where and why they end.

A record counts if its magic, its lengths, its own physical offset and (unless told otherwise) the
CRC of its body are right. BLANK leads to the next file. Everything else is the end: so a page that
a power cut has dropped is never jumped over, whatever lies behind it.

No checksum covers topic and properties. After a crash, a record whose text breaks off at a page
border, with nothing but zeros behind it in that page, does not count either: that page was lost.

Source: store/CommitLog.java (recoverNormally, recoverAbnormally, checkMessageAndReturnSize).
"""

from collections.abc import Iterator
from struct import Struct

from protocol.checksum import body_crc
from protocol.message import BLANK_MAGIC, HEADS, RecordError, RecordHead, scan_head
from storage.mapped_file import MappedFile
from storage.mapped_file_queue import MappedFileQueue

PAGE_BYTES = 4096
"""What a disk writes whole or not at all, as far as we know."""

FILES_READ_AFTER_CLEAN_STOP = 3
"""The last three, as the original does."""

_BODY_CRC = Struct(
    ">8x"  # record_bytes, magic
    "i"  # body_crc
)
_PROPERTIES_LENGTH_BYTES = 2
_LENGTH_FIELDS_BYTES = 1 + _PROPERTIES_LENGTH_BYTES
"""Of topic and properties."""


class LogScan:
    """One pass over the records from an offset on. Iterate it to its end, then read the results."""

    def __init__(
        self,
        queue: MappedFileQueue,
        start_offset: int,
        *,
        check_crc: bool,
        after_crash: bool = False,
    ) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        """Behind the last whole record (and the BLANK behind it, when a file follows)."""
        self.last_store_timestamp = 0
        """The newest of all records seen, ms."""
        self.record_count = 0
        self.end_reason = "there is no file"
        """Why the record at `end_offset` does not count, in words."""
        self._queue = queue
        self._check_crc = check_crc
        self._after_crash = after_crash

    def __iter__(self) -> Iterator[RecordHead]:
        file = self._queue.find(self.start_offset)
        while file is not None:
            self.end_offset = max(self.start_offset, file.first_offset)
            yield from self._records_of(file)
            if self.end_reason:
                return
            following = self._queue.find(file.end_offset)
            if following is None:
                self.end_reason = f"{file.path} is full and no file follows it"
            file = following

    def _records_of(self, file: MappedFile) -> Iterator[RecordHead]:
        """The records of one file; `end_reason` is empty afterwards if a BLANK ended them."""
        view, first_offset = file.view, file.first_offset
        self.end_reason = ""
        offset = self.end_offset
        while True:
            position = offset - first_offset
            try:
                head = scan_head(view, position)
            except RecordError as error:
                self.end_reason = f"{file.path}: {error}"
                return
            if head.magic == BLANK_MAGIC:
                return
            if fault := self._fault_of(view, position, offset, head):
                self.end_reason = fault
                return
            offset += head.record_bytes
            self.end_offset = offset
            self.record_count += 1
            if head.store_timestamp > self.last_store_timestamp:
                self.last_store_timestamp = head.store_timestamp
            yield head

    def _fault_of(self, view: memoryview, position: int, offset: int, head: RecordHead) -> str:
        """Why a record whose lengths are right does not count; empty if it does."""
        if head.physical_offset != offset:
            return f"the record at {offset} says it lies at {head.physical_offset}"
        if self._check_crc and not body_is_intact(view, position, head):
            return f"the body of the record at {offset} does not have its CRC"
        if self._after_crash and text_breaks_off(view, position, head):
            return f"the record at {offset} breaks off at a page border"
        return ""


def body_is_intact(view: memoryview, position: int, head: RecordHead) -> bool:
    """Whether the body of the record at `position` has the CRC that the record says."""
    start = position + HEADS[head.sys_flag >> 4 & 3].size
    tail_bytes = _LENGTH_FIELDS_BYTES + len(head.topic) + len(head.properties)
    body = view[start : position + head.record_bytes - tail_bytes]
    return not body or body_crc(body) == _BODY_CRC.unpack_from(view, position)[0]


def text_breaks_off(view: memoryview, position: int, head: RecordHead) -> bool:
    """Whether the last page of a record has lost what belongs to its topic or properties.

    Then all of it that lies in this page is zeros, and so is what follows in the page. Text that
    really ends in zeros there, in the last record of a log, is taken for lost as well.
    """
    end = position + head.record_bytes
    if view[end - 1]:
        return False
    page_start = (end - 1) // PAGE_BYTES * PAGE_BYTES
    text_end, text = end, head.properties
    if not text:
        text_end, text = end - _PROPERTIES_LENGTH_BYTES, head.topic
    lost_from = max(page_start, text_end - len(text))
    if page_start <= position or lost_from >= text_end:
        return False
    return not any(view[lost_from:text_end]) and not any(view[end : page_start + PAGE_BYTES])


def start_after_clean_stop(queue: MappedFileQueue) -> int:
    """Where to begin reading: at the third last file, or the first."""
    files = queue.files
    return files[-FILES_READ_AFTER_CLEAN_STOP:][0].first_offset if files else 0


def start_after_crash(queue: MappedFileQueue, trusted_until_ms: int) -> int:
    """Where to begin reading: at the newest file whose first record is old enough to be trusted.

    Without one, as with a checkpoint that knows nothing, at the first file.
    """
    for file in reversed(queue.files):
        try:
            head = scan_head(file.view, 0)
        except RecordError:
            continue
        if head.magic != BLANK_MAGIC and 0 < head.store_timestamp <= trusted_until_ms:
            return file.first_offset
    return queue.min_offset
