"""Log of a slave: the master's bytes as received, published record by record.

Bytes arrive in order, cut anywhere, and are written to their offsets at once. For readers, the log
ends behind the last whole record, or behind a file that a BLANK ends. A partial record lies behind
that end; a stop removes it.

Source: store/ha/HAService.HAClient, CommitLog.appendData.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

from protocol.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    RecordHead,
)
from storage.dispatching.dispatch import entry_of
from storage.errors import OffsetError, StoreError, store_error
from storage.files.mapped_file import MappedFile
from storage.log.commit_log import CommitLog
from storage.log.reader import LogReader, next_whole, record_at
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.dispatch_entry import DispatchEntry
from storage.replica.replica_scan import RecordScanner

_OTHER_SIZE = (
    "%s at %d does not fit a file of %d bytes: "
    "mappedFileSizeCommitLog must be the same as the master's."
)


_SIZE = Struct(">i")

STRETCH_BYTES = 64 << 10
"""Bytes of the log that one scan copies."""

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
        """Publish the records that are now whole; return their entries in order.

        Damage in the master's log is skipped, as readers do. Raises StoreError when the master's
        files have another size.
        """
        entries: list[DispatchEntry] = []
        offset = self._log.end_offset
        try:
            while offset < self.received_offset:
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
        if not RECORD_BYTES_MIN <= size <= come:
            return offset  # incomplete, or not a regular record
        stretch = file.view[position : position + min(come, max(size, STRETCH_BYTES))]
        return offset + self._taker.scan(bytes(stretch), offset, entries)

    def _next(self, offset: int) -> tuple[RecordHead | None, int | None]:
        """Return the record at `offset` and its end; the end is None while it is incomplete."""
        file = self._log.queue.find(offset)
        if file is None or self.received_offset - offset < BLANK_BYTES:
            return None, None
        position, left = offset - file.first_offset, file.end_offset - offset
        size, magic = SIZE_AND_MAGIC.unpack_from(file.view, position)
        come = min(self.received_offset, file.end_offset) - offset
        if magic == BLANK_MAGIC and size != left:
            raise StoreError(_OTHER_SIZE % ("A BLANK", offset, file.size_bytes))
        if magic == RECORD_MAGIC and size >= RECORD_BYTES_MIN:
            if size > left:
                raise StoreError(_OTHER_SIZE % ("The record", offset, file.size_bytes))
            if size > come:
                return None, None
        reader = LogReader(self._log.queue.find, self.received_offset)
        found = record_at(reader, offset, check_crc=False)
        if isinstance(found, RecordHead):
            return found, offset + size
        if found is None:
            is_over = come == left and self._log.queue.find(file.end_offset) is not None
            return None, file.end_offset if is_over else None
        self.damaged_at = offset  # continues when a whole record has arrived
        return None, next_whole(reader, offset, found, self.received_offset)

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
