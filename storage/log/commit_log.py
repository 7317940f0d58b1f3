"""Commit log: the records of all topics, in arrival order.

The log is a sequence of files of one size; a record never crosses the end of a file. A record must
leave 8 bytes free; if it does not fit, BLANK fills the rest of the file. protocol/message.py
defines the record layout. Behind the end of the log, all bytes are zeros.

Source: store/CommitLog.java.

Messages are encoded as one chunk of records per file.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import TypeAlias

from protocol.codes import BORN_HOST_V6, STORE_HOST_V6
from protocol.message import (
    BLANK_MAGIC,
    HEADS,
    PROPERTIES_LENGTH,
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    SYS_FLAG_POSITION,
    TOPIC_BYTES_MAX,
    MessageRecord,
    RecordHead,
    decode_record,
)
from protocol.properties import PROPERTIES_BYTES_MAX
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.clock import later_time
from storage.config import StoreConfig
from storage.errors import OffsetError, SyncFailed, store_error
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFile, MappedFileQueue, create_mapped_file
from storage.log.damage import Damage
from storage.log.reader import ONE_RECORD_BYTES, WINDOW_BYTES, LogReader, record_at, walk

CLOCK_TOPICS = frozenset((SCHEDULE_TOPIC.encode(), HALF_TOPIC.encode()))
"""Topics of waiting messages; the store timestamp of their records is the wall-clock time."""


@dataclass(slots=True, eq=False)
class PutRecord:
    """One message before its append; the log adds offset, store timestamp and store host."""

    topic: bytes
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    """System flag; the log sets the two host bits."""
    born_timestamp: int
    """Milliseconds since the epoch."""
    born_host: bytes
    """Packed address: 8 bytes for IPv4, 20 for IPv6."""
    reconsume_times: int
    prepared_offset: int
    body: bytes
    """Body in its stored form."""
    properties: bytes
    body_crc: int


BatchPart: TypeAlias = tuple[int, int, bytes, bytes, bytes]
"""Flag, body CRC, body, and properties in two pieces, of one message of a batch."""


@dataclass(slots=True, eq=False)
class PutBatch:
    """Consecutive messages of one queue that share all other fields."""

    topic: bytes
    queue_id: int
    queue_offset: int
    """Queue offset of the first message."""
    sys_flag: int
    """System flag; the log sets the two host bits."""
    born_timestamp: int
    """Milliseconds since the epoch."""
    born_host: bytes
    """Packed address: 8 bytes for IPv4, 20 for IPv6."""
    reconsume_times: int
    parts: list[BatchPart]
    parts_bytes: int
    codes: list[int]
    keys: list[tuple[bytes, ...]]
    offsets: list[int] = field(default_factory=list, init=False)
    """Physical offset of each record, set by the encoding."""
    sizes: list[int] = field(default_factory=list, init=False)
    """Bytes of each record, set by the encoding."""
    physical_offset: int = field(default=-1, init=False)
    record_bytes: int = field(default=0, init=False)
    """Total bytes of all records, set by the append."""


Group: TypeAlias = PutRecord | PutBatch
"""Unit of an append; all its records lie in one file."""

Placed: TypeAlias = tuple[int, int]
"""Physical offset and bytes of an appended group."""

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
BLANK_BYTES = SIZE_AND_MAGIC.size
"""Bytes that each record leaves free behind it, so that a BLANK always fits."""

_TOPIC_LENGTH_BYTES = 1
_CACHED_TOPICS = 4096
_LENGTHS = tuple(PROPERTIES_LENGTH.pack(n) for n in range(PROPERTIES_BYTES_MAX + 1))
"""Packed form of every properties length: a lookup takes 30 ns, packing 90 ns."""


def _batch_head(shared_bytes: int) -> Struct:
    return Struct(
        ">i"  # record_bytes
        "I"  # magic
        "i"  # body_crc
        "i"  # queue_id
        "i"  # flag
        "q"  # queue_offset
        "q"  # physical_offset
        f"{shared_bytes}s"  # sys_flag to prepared_offset
        "i"  # body length
    )


_BODY_LENGTH_BYTES = 4
_BATCH_HEADS = {
    head.size: _batch_head(head.size - SYS_FLAG_POSITION - _BODY_LENGTH_BYTES) for head in HEADS
}
"""Record heads by size, with the fields shared by a batch as one value: 9 values instead of 15."""
assert all(size == head.size for size, head in _BATCH_HEADS.items())


def group_bytes_of(group: Group, store_host: bytes) -> int:
    """Return the bytes that `group` takes in the log."""
    v6 = (len(group.born_host) == HOST_V6_BYTES) + 2 * (len(store_host) == HOST_V6_BYTES)
    fixed_bytes = HEADS[v6].size + _TOPIC_LENGTH_BYTES + len(group.topic) + PROPERTIES_LENGTH.size
    if isinstance(group, PutBatch):
        return len(group.parts) * fixed_bytes + group.parts_bytes
    return fixed_bytes + len(group.body) + len(group.properties)


def blank(remaining_bytes: int) -> bytes:
    """Return the filler for the last `remaining_bytes` of a file."""
    return SIZE_AND_MAGIC.pack(remaining_bytes, BLANK_MAGIC)


@lru_cache(maxsize=_CACHED_TOPICS)
def _with_length(topic: bytes) -> bytes:
    """Return the topic behind its length byte. Raise ValueError for a topic that is too long."""
    if len(topic) > TOPIC_BYTES_MAX:
        raise ValueError(f"a topic of {len(topic)} bytes; at most {TOPIC_BYTES_MAX}")
    return bytes((len(topic),)) + topic


@lru_cache(maxsize=2)
def _heads_of(store_host_bytes: int) -> tuple[int, Struct, int, Callable[..., bytes]]:
    """Return the parts of encoding that depend on the store host.

    They are its flag, the head for an IPv4 born host, the extra bytes of an IPv6 head, and the
    packer of the IPv6 head.
    """
    store_v6 = store_host_bytes == HOST_V6_BYTES
    head_v4, head_v6 = HEADS[2:] if store_v6 else HEADS[:2]
    flag = STORE_HOST_V6 if store_v6 else 0
    return flag, head_v4, head_v6.size - head_v4.size, head_v6.pack


def encode_groups(
    groups: Sequence[Group],
    first: int,
    offset: int,
    file_end: int,
    store_timestamp: int,
    store_host: bytes,
    placed: list[Placed],
    clock_ms: int = 0,
) -> tuple[list[bytes], int, int]:
    """Encode `groups[first:]`, as many as fit between `offset` and `file_end`.

    Return the pieces to join, the number of the first group that did not fit, and the end offset.
    Records of `CLOCK_TOPICS` get `clock_ms` as store timestamp if it is positive.

    Callers have checked the limits of topic and properties: a ValueError or IndexError is a bug.
    """
    # One loop with local names and one flat list of pieces: 0.5 µs per record of 300 bytes.
    store_flag, head_v4, v6_more_bytes, pack_v6 = _heads_of(len(store_host))
    pack_v4, fixed_bytes_v4 = head_v4.pack, head_v4.size + PROPERTIES_LENGTH.size
    lengths, limit = _LENGTHS, file_end - BLANK_BYTES
    topic, topic_piece, stored_ms = None, b"", store_timestamp
    pieces: list[bytes] = []
    add = pieces.append
    for number in range(first, len(groups)):
        record = groups[number]
        if isinstance(record, PutBatch):
            if offset + group_bytes_of(record, store_host) > limit:
                return pieces, number, offset
            offset = _add_batch(record, offset, store_timestamp, store_host, pieces, placed)
            continue
        if record.topic is not topic:
            topic = record.topic
            topic_piece = _with_length(topic)
            is_timed = clock_ms > 0 and topic in CLOCK_TOPICS
            stored_ms = clock_ms if is_timed else store_timestamp
        body, properties, born_host = record.body, record.properties, record.born_host
        body_bytes = len(body)
        size = fixed_bytes_v4 + body_bytes + len(topic_piece) + len(properties)
        pack = pack_v4
        sys_flag = record.sys_flag | store_flag
        if len(born_host) != HOST_V4_BYTES:
            size += v6_more_bytes
            pack = pack_v6
            sys_flag |= BORN_HOST_V6
        if offset + size > limit:
            return pieces, number, offset
        add(pack(
            size, RECORD_MAGIC, record.body_crc, record.queue_id, record.flag,
            record.queue_offset, offset, sys_flag, record.born_timestamp, born_host,
            stored_ms, store_host, record.reconsume_times, record.prepared_offset,
            body_bytes,
        ))  # fmt: skip
        add(body)
        add(topic_piece)
        add(lengths[len(properties)])
        add(properties)
        placed.append((offset, size))
        offset += size
    return pieces, len(groups), offset


def _add_batch(
    batch: PutBatch,
    offset: int,
    store_timestamp: int,
    store_host: bytes,
    pieces: list[bytes],
    placed: list[Placed],
) -> int:
    """Encode a batch that begins at `offset`; return the offset behind it."""
    born_v6 = len(batch.born_host) == HOST_V6_BYTES
    store_v6 = len(store_host) == HOST_V6_BYTES
    sys_flag = batch.sys_flag | BORN_HOST_V6 * born_v6 | STORE_HOST_V6 * store_v6
    head = HEADS[sys_flag >> 4 & 3]
    shared = head.pack(
        0, 0, 0, 0, 0, 0, 0, sys_flag, batch.born_timestamp, batch.born_host,
        store_timestamp, store_host, batch.reconsume_times, 0, 0,
    )[SYS_FLAG_POSITION:-_BODY_LENGTH_BYTES]  # fmt: skip
    topic_piece = _with_length(batch.topic)
    fixed_bytes = head.size + len(topic_piece) + PROPERTIES_LENGTH.size
    offsets, sizes = batch.offsets, batch.sizes = [], []
    pack = _BATCH_HEADS[head.size].pack
    lengths, queue_id, queue_offset = _LENGTHS, batch.queue_id, batch.queue_offset
    for flag, body_crc, body, own, behind in batch.parts:
        body_bytes, properties_bytes = len(body), len(own) + len(behind)
        size = fixed_bytes + body_bytes + properties_bytes
        pieces += (
            pack(
                size, RECORD_MAGIC, body_crc, queue_id, flag, queue_offset, offset, shared,
                body_bytes,
            ),
            body,
            topic_piece,
            lengths[properties_bytes],
            own,
            behind,
        )  # fmt: skip
        offsets.append(offset)
        sizes.append(size)
        queue_offset += 1
        offset += size
    placed.append((offsets[0], offset - offsets[0]))
    return offset


__all__ = ["CommitLog", "Placed", "PutRecord", "prepare_file"]

_NO_HOST = bytes(8)
SET_BACK_STEP_MS = 1000
SET_BACK_COUNT_MAX = 4096
"""Maximum set-back entries: more than an hour of a clock that runs behind."""


def prepare_file(offset: int, config: StoreConfig, disk: Disk) -> MappedFile:
    """Create the log file that begins at `offset`, fully allocated, with durable name and size.

    Any thread may call it, because it touches no CommitLog; the log's owner adopts the file later.
    Raises StoreError when the disk lacks space.
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
        raise store_error(f"cannot create the log file for offset {offset}", error) from error


class CommitLog:
    """Commit log of one store. One owner appends and adopts files.

    Another thread may call `sync` and read `end_offset`, `flushed_offset`, `view` and `read_whole`.
    This is safe because the tuple of files is replaced as a whole, and the watermark is set last.
    """

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.config = config
        self.queue = MappedFileQueue(
            disk, config.commit_log_dir, config.commit_log_file_bytes, "mappedFileSizeCommitLog"
        )
        self.store_host = _NO_HOST
        """Packed address of this broker, part of every record; set before the first append."""
        self.end_offset = 0
        """Published watermark; readers stay below it."""
        self.flushed_offset = 0
        """End of the synced part of the log."""
        self.last_store_timestamp = 0
        """Store timestamp of the newest record, ms; it rises with each append (`later_time`)."""
        self.last_clock_ms = 0
        """Wall clock at the last append, ms; store timestamp of records of `CLOCK_TOPICS`."""
        self.flushed_store_timestamp = 0
        """Store timestamp of the newest synced record, ms, for the checkpoint."""
        self.set_back: tuple[tuple[int, int], ...] = ()
        """(offset, ms) pairs: from offset on, the clock was ms behind `last_store_timestamp`."""
        self.next_file_needed: int | None = None
        """Offset of the missing file that stopped `append`, or None."""
        self._published = (0, 0)
        self._dirty_behind_end = False
        self._sync_error: OSError | None = None

    @property
    def sync_failure(self) -> str:
        """Reason of the failed sync; empty if none failed. Later writes have no durability."""
        return "" if self._sync_error is None else str(self._sync_error)

    # -- opening and closing ---------------------------------------------------------------------

    def load(self) -> list[str]:
        """Open the files; return the removed ones (MappedFileQueue.load). Raises StoreError."""
        self.queue.disk.make_dirs(self.queue.directory)
        return self.queue.load()

    def start_at(self, end_offset: int, last_store_timestamp: int) -> tuple[int, list[str]]:
        """Set the end of the log: zero what follows, remove later files and sync.

        The first file of an empty log is created here. Return the count of non-zero bytes cleared,
        and the removed files. Raises StoreError.
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
        """Set the end of the log as a clean stop recorded it, without touching files."""
        self.end_offset = self.flushed_offset = end_offset
        self.last_store_timestamp = self.flushed_store_timestamp = last_store_timestamp
        self._published = (end_offset, last_store_timestamp)

    def close(self) -> None:
        """Close the files without a sync; existing views stay valid."""
        self.queue.close()

    # -- writing --------------------------------------------------------------------------------

    @property
    def group_bytes_max(self) -> int:
        """Maximum bytes of a group; callers reject larger ones."""
        return self.config.commit_log_file_bytes - BLANK_BYTES

    def append(self, groups: Sequence[Group], now_ms: int) -> list[Placed]:
        """Write `groups`; return offset and size of those that fitted, in order.

        A short result means that the next file is missing. `next_file_needed` then holds its
        offset, and the caller keeps the remaining groups. All records of a call share one store
        timestamp: `now_ms`, or the log's newest if the clock is set back by less than an hour.
        Records of `CLOCK_TOPICS` get `now_ms`.

        Raises StoreError when the disk fails; the log then has nothing of this call. Raises
        ValueError for a group over `group_bytes_max`.
        """
        if self._dirty_behind_end:
            self._clear_behind_end()
        timestamp = now_ms
        if now_ms < self.last_store_timestamp:
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
        """Return the wall clock at the append of a record, which may be before its store timestamp.

        The clock is known only for records that this process has appended.
        """
        number = bisect_right(self.set_back, (offset, 1 << 63)) if self.set_back else 0
        return store_timestamp - self.set_back[number - 1][1] if number else store_timestamp

    def _write(
        self, groups: Sequence[Group], timestamp: int, now_ms: int, placed: list[Placed]
    ) -> int:
        """Write one chunk per file, with BLANK at the end of a filled file; return the new end."""
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
        """Make an empty log begin with `file`; the caller deletes its former files."""
        self.queue.files = (file,)
        self.resume_at(file.first_offset, self.last_store_timestamp)

    def publish(self, end_offset: int, store_timestamp: int) -> None:
        """Publish records that another component has written into the files."""
        self.last_store_timestamp = max(self.last_store_timestamp, store_timestamp)
        self._published = (end_offset, self.last_store_timestamp)
        self.end_offset = end_offset

    def _clear_behind_end(self) -> None:
        """Zero the bytes of a failed append, so that a crash does not revive its records."""
        try:
            for file in self.queue.spanning(self.end_offset, self.queue.capacity_end):
                if file.zero_from(max(0, self.end_offset - file.first_offset)):
                    file.sync()
        except OSError as error:
            raise store_error("cannot write to the commit log", error) from error
        self._dirty_behind_end = False

    def next_file_offset_to_prepare(self) -> int | None:
        """Return the offset of the file behind the current one, or None if it exists."""
        files = self.queue.files
        if not files:
            return 0
        last = files[-1]
        return last.end_offset if self.end_offset >= last.first_offset else None

    def adopt(self, file: MappedFile) -> None:
        """Add a file created by `prepare_file` as the next one."""
        self.queue.add(file)
        self.next_file_needed = None

    def drop_before(self, offset: int) -> list[MappedFile]:
        """Remove whole files before `offset` from the log and return them.

        The file with the log's end always stays. The caller deletes the files; views of them stay
        valid.
        """
        return self.queue.drop_below(min(offset, self.end_offset))

    def sync(self, up_to: int) -> int:
        """Sync the log if `flushed_offset` is below `up_to`; return the new `flushed_offset`.

        Each file concerned takes one fdatasync, so a range across two files takes two. One thread
        may call it beside the owner, because it touches descriptors only. After a failure it raises
        SyncFailed until the store is reopened.
        """
        flushed = self.flushed_offset
        if up_to <= flushed:
            return flushed
        if self._sync_error is not None:
            raise SyncFailed(
                f"an earlier sync of the commit log failed ({self._sync_error}): later writes are "
                "not durable; restart the broker once the disk works."
            )
        end, timestamp = self._published
        for file in self.queue.spanning(flushed, end):
            try:
                file.sync()
            except OSError as error:
                self._sync_error = error
                raise SyncFailed(
                    f"cannot sync {file.path} ({error}): later writes are not durable; "
                    "restart the broker once the disk works."
                ) from error
        self.flushed_store_timestamp = timestamp
        self.flushed_offset = end
        return end

    # -- reading --------------------------------------------------------------------------------

    def min_offset(self) -> int:
        """Return the offset of the first retained byte."""
        return self.queue.min_offset

    def view(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset`, uncopied.

        The view keeps the file mapped, even after its deletion. Raises OffsetError unless all bytes
        lie below the end of the log and in one file.
        """
        if offset + size > self.end_offset:
            raise OffsetError(f"{size} bytes at {offset} are behind the end {self.end_offset}")
        return self.queue.slice(offset, size)

    def reader(self, window_bytes: int = WINDOW_BYTES) -> LogReader:
        """Return a reader of the current log, for one owner."""
        return LogReader(self.queue.find, self.end_offset, window_bytes=window_bytes)

    def read_whole(self, offset: int, damage: Damage | None = None) -> bytes | None:
        """Return the bytes of the whole, undamaged record at `offset`, or None.

        Known damage and a wrong CRC both count as damage. Any thread may call it; it blocks on the
        disk, so call it on a thread. A deleted file yields None.
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
        """Return the message of the whole, undamaged record at `offset`, or None."""
        data = self.read_whole(offset, damage)
        return None if data is None else decode_record(data, check_crc=False)

    def walk(self, from_offset: int) -> Iterator[RecordHead]:
        """Yield the heads of all records from `from_offset`, where one begins, to the end.

        The walk begins at the log's beginning if that is later, as in a slave that started empty.
        Damaged ranges are skipped; bodies are not checked.
        """
        reader, start = self.reader(), max(from_offset, self.queue.min_offset)
        for item in walk(reader, start, reader.end_offset, check_crc=False):
            if isinstance(item, RecordHead):
                yield item
