"""The appender: gives records their queue offsets and writes them to the commit log.

This is a plain class, owned by PutMessage. It appends `Put`s: producers' sends
(actors/sending/admission.py) and internal appends (actors/sending/internal_append.py). Queue
offsets are given immediately before the write, so that refused or parked messages leave no hole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

from actors.engine.interfaces import SnapshotRef
from actors.sending.send_rules import TopicState, new_state
from actors.statistics.counts import SMALL_BYTES, PutStats
from protocol.bodies_tables import TopicConfig
from protocol.codes import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED, ResponseCode
from protocol.host import HOST_V4_BYTES
from storage.log.commit_log import CLOCK_TOPICS, CommitLog, PutBatch, PutRecord
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, EntryRun, MixedEntries

NO_HOST_FLAGS = ~(BORN_HOST_V6 | STORE_HOST_V6)
"""Removes the flags for the lengths of the hosts in a record; the broker sets them itself."""

_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


@dataclass(slots=True, eq=False)
class Record(PutRecord):
    """One message from the check of its send to its answer; a stored one has a physical offset."""

    tags_code: int
    keys: tuple[bytes, ...]
    """Keys for the index: UNIQ_KEY, then the words of KEYS."""
    delay_ms: int = 0
    """If above 0, the tags code is the due time: the wall clock plus this delay."""
    physical_offset: int = -1
    record_bytes: int = 0
    due_ms: ClassVar[int] = 0
    """Due time of a pending timer; 0 for other messages, which need no room for it."""


class TimerRecord(Record):
    """A timer of a producer, which waits in a delay level."""

    __slots__ = ("due_ms",)
    due_ms: int  # type: ignore[misc]


class InternalRecord(Record):
    """One message as it is to be stored, then its result.

    Its physical offset is negative until it is stored. The store host is this broker's.
    """

    __slots__ = ("code", "due_ms", "topic_name")
    due_ms: int  # type: ignore[misc]

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        tags_code: int = 0,
        keys: tuple[bytes, ...] = (),
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = bytes(HOST_V4_BYTES),
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        delay_ms: int = 0,
        due_ms: int = 0,
    ) -> None:
        """`keys` are the keys for the index: UNIQ_KEY, then the words of KEYS.

        The bits of `sys_flag` that give the lengths of the hosts need not be right.
        """
        # The record itself is appended, not another one made from it: 0.5 µs less.
        self.topic_name = topic
        self.topic = topic.encode()
        self.queue_id = queue_id
        self.queue_offset = 0
        self.flag = flag
        host_flag = 0 if len(born_host) == HOST_V4_BYTES else BORN_HOST_V6
        self.sys_flag = sys_flag & NO_HOST_FLAGS | host_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.body = body
        self.properties = properties
        self.body_crc = crc32(body) & 0x7FFFFFFF
        self.tags_code = tags_code
        self.keys = keys
        self.delay_ms = delay_ms
        self.due_ms = due_ms
        self.physical_offset = -1
        self.record_bytes = 0
        self.code = int(ResponseCode.SUCCESS)

    @property
    def is_stored(self) -> bool:
        """Whether the record is in the log, durable or not; known with the code."""
        return self.code in _STORED


@dataclass(slots=True, eq=False)
class Put:
    """Message or batch that is appended as a whole or not at all."""

    state: TopicState
    group: Record | PutBatch


class Appender:
    """Appender that tracks the next offset of every queue. One owner."""

    def __init__(
        self,
        commit_log: CommitLog,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        stats: PutStats,
    ) -> None:
        self._log = commit_log
        self._topics = topics
        self._stats = stats
        self._states: dict[str, TopicState] = {}
        self._next_offsets: dict[str, dict[int, int]] = {}
        self.timers: list[Record] = []
        """Timers that were stored; the owner tells the delay levels of them and empties it."""
        self.group_bytes_max = commit_log.group_bytes_max
        """Maximum bytes of one put."""

    # --- topics and their numbers

    def start_at(self, next_offsets: Mapping[tuple[str, int], int]) -> None:
        for (topic, queue_id), offset in next_offsets.items():
            self._next_offsets.setdefault(topic, {})[queue_id] = offset

    def forget_queues(
        self,
        queues: Iterable[tuple[str, int, int]],
        begins_at: Callable[[str, int], int] = lambda *_: 0,
    ) -> None:
        """Reset the queues, given as (topic, queue id, offset), that are still at that offset."""
        for topic, queue_id, offset in queues:
            state = self._states.get(topic)
            known = self._next_offsets.get(topic, {}) if state is None else state.next_offsets
            if known.get(queue_id) == offset:
                del known[queue_id]
                if begins := begins_at(topic, queue_id):
                    known[queue_id] = begins

    def state_of(self, topic: str, config: TopicConfig) -> TopicState:
        state = self._states.get(topic)
        if state is None:
            state = self._states[topic] = new_state(topic, config, self._stats.of_topic(topic))
            state.next_offsets = self._next_offsets.pop(topic, {})
        elif state.config is not config:
            state.configure(config)
        return state

    def config_of(self, topic: str) -> TopicConfig | None:
        """Return the topic's configuration; None if it is in no table."""
        return self._topics.value.get(topic)

    def own_state_of(self, topic: str) -> TopicState:
        """Return the state of a topic of internal appends, which need not be in the table."""
        config = self.config_of(topic)
        if config is None:
            state = self._states.get(topic)
            return self.state_of(topic, TopicConfig(topic, 1, 1)) if state is None else state
        return self.state_of(topic, config)

    # --- the append

    def append(self, puts: Sequence[Put], now_ms: int) -> tuple[int, list[Dispatched]]:
        """Append as many of `puts` as find room; set offset and size in the stored records.

        Return the number of stored puts and the entries to dispatch. The number is smaller while
        the next file is missing. Raises OSError or StoreError when the disk fails; then nothing is
        stored.
        """
        groups = self._give_offsets(puts)
        try:
            placed = self._log.append(groups, now_ms)
        except BaseException:
            self._take_back(puts)
            raise
        store_timestamp, clock_ms = self._log.last_store_timestamp, self._log.last_clock_ms
        entries: list[Dispatched] = []
        done = stored_bytes = 0
        for put, (offset, size) in zip(puts, placed, strict=False):
            group, counts = put.group, put.state.puts
            group.physical_offset, group.record_bytes = offset, size
            if isinstance(group, PutBatch):
                count = len(group.parts)
                if not isinstance(entries, MixedEntries):
                    entries = MixedEntries(entries)
                entries.append(_run_of(group, store_timestamp))
            else:
                count = 1
                code = group.tags_code
                if group.delay_ms:
                    code = clock_ms + group.delay_ms
                    if group.due_ms:
                        self.timers.append(group)
                entries.append(
                    DispatchEntry(
                        group.topic,
                        group.queue_id,
                        group.queue_offset,
                        offset,
                        size,
                        code,
                        clock_ms if group.topic in CLOCK_TOPICS else store_timestamp,
                        group.sys_flag,
                        group.keys,
                    )
                )
            done += count
            stored_bytes += size
            counts.count += count
            counts.bytes += size
            counts.times += 1
            if size > SMALL_BYTES:
                counts.note_large(size)
        self._stats.put_count += done
        self._stats.put_bytes += stored_bytes
        if len(placed) < len(puts):
            self._take_back(puts[len(placed) :])
        return len(placed), entries

    @staticmethod
    def _give_offsets(puts: Sequence[Put]) -> list[Record | PutBatch]:
        groups = []
        for put in puts:
            group, next_offsets = put.group, put.state.next_offsets
            groups.append(group)
            if group.sys_flag & TRANSACTION_PREPARED:
                continue  # prepared or rolled back: in no queue, so without a queue offset
            offset = group.queue_offset = next_offsets.get(group.queue_id, 0)
            count = len(group.parts) if isinstance(group, PutBatch) else 1
            next_offsets[group.queue_id] = offset + count
        return groups

    @staticmethod
    def _take_back(puts: Sequence[Put]) -> None:
        """Release the queue offsets of puts that are not stored."""
        for put in puts:
            group = put.group
            if not group.sys_flag & TRANSACTION_PREPARED:
                count = len(group.parts) if isinstance(group, PutBatch) else 1
                put.state.next_offsets[group.queue_id] -= count


def _run_of(batch: PutBatch, store_timestamp: int) -> EntryRun:
    return EntryRun(
        batch.topic,
        batch.queue_id,
        batch.queue_offset,
        batch.physical_offset,
        batch.record_bytes,
        store_timestamp,
        batch.sys_flag,
        batch.offsets,
        batch.sizes,
        batch.codes,
        batch.keys,
    )
