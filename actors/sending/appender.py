"""The appender: gives records their queue offsets and writes them to the commit log.

This is a plain class, owned by PutMessage. It appends `Put`s: producers' sends
(actors/sending/admission.py) and internal appends (actors/sending/internal_append.py). Queue
offsets are given immediately before the write, so that refused or parked messages leave no hole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.engine.snapshot_ref import SnapshotRef
from actors.sending.records import Record
from actors.sending.send_rules import TopicState, new_state
from actors.statistics.counts import SMALL_BYTES, PutStats
from protocol.bodies import TopicConfig
from protocol.sysflag import TRANSACTION_PREPARED
from storage.log.append import CLOCK_TOPICS, PutBatch
from storage.log.commit_log import CommitLog
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, EntryRun, MixedEntries


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
