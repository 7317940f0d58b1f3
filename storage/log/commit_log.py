"""The commit log: every message of every topic, one record behind the other.

The log is one long run of bytes, cut into files of one size; a record never crosses a file's end.
What is left of a file that a record (with 8 bytes to spare) did not fit into is BLANK. Records are
laid out as in protocol/message.py. What lies behind the end of the log is zeros.

Source: store/CommitLog.java.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from protocol.message import MessageRecord, RecordHead, decode_record
from storage.clock import later_time
from storage.config import StoreConfig
from storage.errors import OffsetError, SyncFailed, store_error
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFile, create_mapped_file
from storage.files.mapped_file_queue import MappedFileQueue
from storage.log.append import (
    BLANK_BYTES,
    Group,
    Placed,
    PutRecord,
    blank,
    encode_groups,
    group_bytes_of,
)
from storage.log.damage import Damage
from storage.log.reader import ONE_RECORD_BYTES, WINDOW_BYTES, LogReader, record_at, walk

__all__ = ["CommitLog", "Placed", "PutRecord", "prepare_file"]

_NO_HOST = bytes(8)
SET_BACK_STEP_MS = 1000
SET_BACK_COUNT_MAX = 4096
"""More than an hour of a clock that is behind."""


def prepare_file(offset: int, config: StoreConfig, disk: Disk) -> MappedFile:
    """Makes the log file that begins at `offset`, with real blocks, its name and size durable.

    Touches nothing of a CommitLog, so any thread may do it; the owner of the log then adopts the
    file. Raises StoreError when the disk has no room for it.
    """
    try:
        return create_mapped_file(
            disk,
            config.commit_log_dir,
            offset,
            config.commit_log_file_bytes,
            sparse=False,
            warm=config.warm_mapped_file_enable,
        )
    except OSError as error:
        raise store_error(f"cannot make the log file for offset {offset}", error) from error


class CommitLog:
    """The log of one store. One owner appends and adopts files.

    Another thread may call `sync`, and read `end_offset`, `flushed_offset`, `view` and
    `read_whole`: files are a tuple that is replaced as a whole, the watermark is set after the
    bytes are in place.
    """

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.config = config
        self.queue = MappedFileQueue(
            disk, config.commit_log_dir, config.commit_log_file_bytes, "mappedFileSizeCommitLog"
        )
        self.store_host = _NO_HOST
        """The broker's own address, packed; goes into every record. Set before the first append."""
        self.end_offset = 0
        """The published watermark: readers never look at or behind it."""
        self.flushed_offset = 0
        """Everything below is on disk."""
        self.last_store_timestamp = 0
        """Of the newest record, ms; the next one is not older (`later_time`)."""
        self.last_clock_ms = 0
        """The wall clock at the last append: the store timestamp of records of `CLOCK_TOPICS`."""
        self.flushed_store_timestamp = 0
        """Of the newest record known to be on disk, ms; for the checkpoint."""
        self.set_back: tuple[tuple[int, int], ...] = ()
        """By offset, how far the clock was behind `last_store_timestamp` from there on, ms."""
        self.next_file_needed: int | None = None
        """Set when `append` stopped for want of a file: where that file begins."""
        self._published = (0, 0)
        self._dirty_behind_end = False
        self._sync_error: OSError | None = None

    @property
    def sync_failure(self) -> str:
        """Why the disk refused a flush: from then on nothing is safe. Empty if it never did."""
        return "" if self._sync_error is None else str(self._sync_error)

    # -- the day's beginning and end ------------------------------------------------------------

    def load(self) -> list[str]:
        """Opens the files; returns what was removed (MappedFileQueue.load). Raises StoreError."""
        self.queue.disk.make_dirs(self.queue.directory)
        return self.queue.load()

    def start_at(self, end_offset: int, last_store_timestamp: int) -> tuple[int, list[str]]:
        """Makes `end_offset` the end: zeros behind it, no file behind its own, all of it synced.

        The very first file is made here. Returns how many bytes were not zeros, and the files that
        were removed. Raises StoreError.
        """
        try:
            removed = self.queue.remove_from(end_offset + 1)
            file = self.queue.find(end_offset)
            zeroed = file.zero_from(end_offset - file.first_offset) if file is not None else 0
            for each in self.queue.files:
                each.sync()
        except OSError as error:
            raise store_error("cannot clear the log behind its last record", error) from error
        if not self.queue.files:
            self.queue.add(prepare_file(0, self.config, self.queue.disk))
        self.resume_at(end_offset, last_store_timestamp)
        return zeroed, removed

    def resume_at(self, end_offset: int, last_store_timestamp: int) -> None:
        """Makes `end_offset` the end, on the word of whoever stopped cleanly there."""
        self.end_offset = self.flushed_offset = end_offset
        self.last_store_timestamp = self.flushed_store_timestamp = last_store_timestamp
        self._published = (end_offset, last_store_timestamp)

    def close(self) -> None:
        """Closes the files, without syncing; views that others hold stay valid."""
        self.queue.close()

    # -- writing --------------------------------------------------------------------------------

    @property
    def group_bytes_max(self) -> int:
        """The largest group that fits into a file; callers refuse what is longer."""
        return self.config.commit_log_file_bytes - BLANK_BYTES

    def append(self, groups: Sequence[Group], now_ms: int) -> list[Placed]:
        """Writes groups; returns offset and size of each, in order, of those that fitted.

        A group is one message, or a batch that must lie in one file. Fewer than asked: the next
        file is not there yet, `next_file_needed` says where it begins, and the caller keeps the
        rest. All records of a call have the same store timestamp, `last_store_timestamp`: `now_ms`,
        or the log's newest if the clock has gone back by less than an hour. Records of
        `CLOCK_TOPICS` get `now_ms`.

        Raises StoreError when the disk fails: then nothing of this call is in the log.
        Raises ValueError for a group over `group_bytes_max`.
        """
        if self._dirty_behind_end:
            self._clear_behind_end()
        timestamp = later_time(self.last_store_timestamp, now_ms)
        placed: list[Placed] = []
        try:
            end = self._write(groups, timestamp, now_ms, placed)
        except BaseException as error:
            self._dirty_behind_end = True
            if isinstance(error, OSError):
                raise store_error("cannot write to the commit log", error) from error
            raise
        if placed:
            if timestamp != now_ms or (self.set_back and self.set_back[-1][1]):
                self._note_set_back(placed[0][0], timestamp - now_ms)
            self.last_store_timestamp, self.last_clock_ms = timestamp, now_ms
            self._published = (end, timestamp)
            self.end_offset = end
        return placed

    def _note_set_back(self, offset: int, ms: int) -> None:
        known_ms = self.set_back[-1][1] if self.set_back else 0
        if abs(ms - known_ms) >= SET_BACK_STEP_MS or not ms:
            self.set_back = (*self.set_back[1 - SET_BACK_COUNT_MAX :], (offset, ms))

    def came_at(self, offset: int, store_timestamp: int) -> int:
        """Return what the clock said when a record was stored, which may be before its time.

        It is known of records that this process has appended.
        """
        number = bisect_right(self.set_back, (offset, 1 << 63)) if self.set_back else 0
        return store_timestamp - self.set_back[number - 1][1] if number else store_timestamp

    def _write(
        self, groups: Sequence[Group], timestamp: int, now_ms: int, placed: list[Placed]
    ) -> int:
        """Writes one chunk per file and BLANK where it leaves one; returns the new end."""
        offset, number = self.end_offset, 0
        file = self.queue.find(offset)
        while file is not None:
            position = offset - file.first_offset
            pieces, number, end = encode_groups(
                groups, number, offset, file.end_offset, timestamp, self.store_host, placed, now_ms
            )
            if number == len(groups):
                file.write(b"".join(pieces), position)
                return end
            if group_bytes_of(groups[number], self.store_host) > self.group_bytes_max:
                raise ValueError(f"a group of messages is longer than {self.group_bytes_max}")
            following = self.queue.find(file.end_offset)
            if following is None:
                file.write(b"".join(pieces), position)
                self.next_file_needed = file.end_offset
                return end
            pieces.append(blank(file.end_offset - end))
            file.write(b"".join(pieces), position)
            file, offset = following, following.first_offset
        self.next_file_needed = offset
        return offset

    def begin_at(self, file: MappedFile) -> None:
        """Makes an empty log begin with this file; those that it had are for others to delete."""
        self.queue.files = (file,)
        self.resume_at(file.first_offset, self.last_store_timestamp)

    def publish(self, end_offset: int, store_timestamp: int) -> None:
        """Makes records that somebody else has written into the files a part of the log."""
        self.last_store_timestamp = max(self.last_store_timestamp, store_timestamp)
        self._published = (end_offset, self.last_store_timestamp)
        self.end_offset = end_offset

    def _clear_behind_end(self) -> None:
        """Takes away what a failed append left, or its records might come back after a crash."""
        try:
            for file in self.queue.spanning(self.end_offset, self.queue.capacity_end):
                if file.zero_from(max(0, self.end_offset - file.first_offset)):
                    file.sync()
        except OSError as error:
            raise store_error("cannot write to the commit log", error) from error
        self._dirty_behind_end = False

    def next_file_offset_to_prepare(self) -> int | None:
        """Where the file behind the current one begins, unless it is there already."""
        files = self.queue.files
        if not files:
            return 0
        last = files[-1]
        return last.end_offset if self.end_offset >= last.first_offset else None

    def adopt(self, file: MappedFile) -> None:
        """Takes a file that `prepare_file` made; it becomes the next one."""
        self.queue.add(file)
        self.next_file_needed = None

    def drop_before(self, offset: int) -> list[MappedFile]:
        """Takes whole files before `offset` out of the log, whose beginning moves behind them.

        Never the file in which the log ends. They are for somebody else to delete; views of them
        stay good.
        """
        return self.queue.drop_below(min(offset, self.end_offset))

    def sync(self, up_to: int) -> int:
        """Puts everything appended so far on disk if `up_to` is not there yet.

        Returns the new `flushed_offset`; one fdatasync per file that is concerned, so a range that
        spans a roll has two. Any one thread may call it beside the owner: it touches descriptors
        only. Once it has failed it raises SyncFailed until the store is opened anew.
        """
        flushed = self.flushed_offset
        if up_to <= flushed:
            return flushed
        if self._sync_error is not None:
            raise SyncFailed(
                f"an earlier flush of the commit log failed ({self._sync_error}): what was written "
                "since is not safe; restart the broker once the disk is well."
            )
        end, timestamp = self._published
        for file in self.queue.spanning(flushed, end):
            try:
                file.sync()
            except OSError as error:
                self._sync_error = error
                raise SyncFailed(
                    f"cannot flush {file.path} ({error}): what was written since is not safe; "
                    "restart the broker once the disk is well."
                ) from error
        self.flushed_store_timestamp = timestamp
        self.flushed_offset = end
        return end

    # -- reading --------------------------------------------------------------------------------

    def min_offset(self) -> int:
        """The first byte that is still there."""
        return self.queue.min_offset

    def view(self, offset: int, size: int) -> memoryview:
        """`size` bytes at `offset`, uncopied. Keeps the file mapped, even when it is deleted.

        Raises OffsetError if they are not all below the end of the log and in one file.
        """
        if offset + size > self.end_offset:
            raise OffsetError(f"{size} bytes at {offset} lie behind the end {self.end_offset}")
        return self.queue.slice(offset, size)

    def reader(self, window_bytes: int = WINDOW_BYTES) -> LogReader:
        """Reads what is in the log now, for one owner."""
        return LogReader(self.queue.find, self.end_offset, window_bytes=window_bytes)

    def read_whole(self, offset: int, damage: Damage | None = None) -> bytes | None:
        """The bytes of the record at any offset; None if no whole one begins there (any more).

        Damaged ones do not count: those that are known to be, and those whose CRC is wrong. It
        waits for the disk: call it on a thread. Any thread; a file that is deleted meanwhile has
        nothing.
        """
        reader = self.reader(ONE_RECORD_BYTES)
        try:
            head = record_at(reader, offset)
            if not isinstance(head, RecordHead):
                return None
            end = offset + head.record_bytes
            if damage is not None and damage.overlaps(offset, end):
                return None
            data, position = reader.at(offset, head.record_bytes)
        except OSError:
            return None
        return data[position : position + head.record_bytes]

    def read_record(self, offset: int, damage: Damage | None = None) -> MessageRecord | None:
        """The same, taken apart."""
        data = self.read_whole(offset, damage)
        return None if data is None else decode_record(data, check_crc=False)

    def walk(self, from_offset: int) -> Iterator[RecordHead]:
        """The heads of all records from `from_offset`, where one must begin, to the end.

        From the log's beginning where that is behind it, as in a slave that was empty. Damaged
        places, which hold no record, are passed over; a damaged body is not looked at.
        """
        reader, start = self.reader(), max(from_offset, self.queue.min_offset)
        for item in walk(reader, start, reader.end_offset, check_crc=False):
            if isinstance(item, RecordHead):
                yield item
