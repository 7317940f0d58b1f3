"""Lag of each group in each topic: in messages, and in time.

    committed ─ in flight ─ pulled ─ ready ─ end of the queue        lag = in flight + ready

Counted over all queues, as `consumerProgress` does. In time it is the age of the oldest message
that is not consumed, of the queue where that is oldest.  Reading ages costs: of each queue that was
read before, and has not moved, it is known; of the others so many are read in one scrape that it
stays short, and what is left comes next time, until when the older age is shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from actors.metrics.selection import items_of
from actors.statistics.pull_stats import PullStats
from actors.tables.tables import Tables
from protocol.bodies import TopicConfig
from storage.files.disk import Disk
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.reading.page_probe import ColdPart, PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR

LOOKED_UP_S_MAX = 0.2
"""Of one scrape, for ages."""
ACTIVE_S = 86_400.0
"""A group that has committed and pulled nothing for so long is not shown."""
COLD_TRIES = 8
AHEAD_BYTES = 64 << 10


@dataclass(slots=True)
class TopicLag:
    """How far one group is behind in one topic."""

    topic: str
    group: str
    consumed: int = 0
    """Sum of the offsets."""
    lag: int = 0
    in_flight: int = 0
    ready: int = 0
    oldest_ms: float = 0.0
    """Age of the oldest message that is not consumed; 0: there is none."""
    oldest_ready_ms: float = 0.0
    """The same of what was not even pulled."""


@dataclass(slots=True)
class _Age:
    offset: int
    stored_ms: int
    round: int = 0
    """The last scrape that asked."""


@dataclass(slots=True)
class _Active:
    progress: tuple[int, int]
    since_s: float
    round: int = 0
    """The last scrape that found it."""


class Ages:
    """When messages were stored, without waiting for the disk with the interpreter's lock held."""

    def __init__(self, times: QueueTimes, probe: PageProbe, disk: Disk) -> None:
        """`times` asks `probe`."""
        self._times, self._probe, self._disk = times, probe, disk
        self._known: dict[tuple[ConsumeQueue, str, bool], _Age] = {}
        self._round = 0
        self._until_s = 0.0

    def begin(self) -> None:
        """A scrape begins."""
        self._probe.forget()
        self._until_s = monotonic() + LOOKED_UP_S_MAX
        self._round += 1

    def end(self) -> None:
        """Forgets the queues that nobody asked about."""
        for key, age in items_of(self._known):  # a difference of sets would be one step of 30 ms
            if age.round != self._round:
                del self._known[key]

    def age_ms(
        self, queue: ConsumeQueue, offset: int, group: str, now_ms: int, *, is_pulled: bool
    ) -> float:
        """Of the message at this offset, or of an older one that was asked about before."""
        key = queue, group, is_pulled
        known = self._known.get(key)
        offset = max(offset, queue.min_offset)
        if known is None or known.offset != offset:
            if monotonic() < self._until_s:
                stored_ms = self._stored_at(queue, offset)
                known = self._known[key] = _Age(offset, stored_ms)
            elif known is None:
                return 0.0
        known.round = self._round
        return float(max(0, now_ms - known.stored_ms)) if known.stored_ms > 0 else 0.0

    def _stored_at(self, queue: ConsumeQueue, offset: int) -> int:
        for _ in range(COLD_TRIES):
            try:
                return self._times.stored_at(queue, offset)
            except ColdPages as cold:
                for part in cold.parts:
                    if not self._warm(part):
                        return -1
        return -1

    def _warm(self, part: ColdPart) -> bool:
        try:
            file = self._disk.open(part.path, read_only=True)
        except OSError:
            return False
        try:
            return bool(file.pread(max(part.size, AHEAD_BYTES), part.position))
        except OSError:
            return False
        finally:
            file.close()


class Lags:
    """Owned by one thread."""

    def __init__(self, tables: Tables, queues: ConsumeQueues, pulls: PullStats, ages: Ages) -> None:
        self._tables, self._queues, self._pulls, self._ages = tables, queues, pulls, ages
        self._active: dict[str, _Active] = {}
        self._round = 0

    def all(self, now_ms: int, shows: Callable[[str, str], bool]) -> list[TopicLag]:
        """Of every group that is shown, by topic; what is deleted is not there any more."""
        topics, offsets = self._tables.topics.value, self._tables.live_offsets
        found: list[TopicLag] = []
        self._ages.begin()
        self._round += 1
        for key, queues in items_of(offsets.value):
            parts = key.split(TOPIC_GROUP_SEPARATOR)
            if len(parts) != 2:
                continue
            topic, group = parts
            config = topics.get(topic)
            if config is None or not shows(topic, group) or not self._is_counted(topic, group):
                continue
            lag = self._of(config, group, dict(queues), now_ms)
            if self._is_active(key, lag):
                found.append(lag)
        self._ages.end()
        for key, active in items_of(self._active):  # nor a set of all that are here, freed at once
            if active.round != self._round:
                del self._active[key]
        return found

    def _is_counted(self, topic: str, group: str) -> bool:
        """Whether the group, if it is online, still subscribes the topic."""
        view = self._tables.consumers.value.get(group)
        return not (view and view.subscriptions and topic not in view.subscriptions)

    def _of(
        self, config: TopicConfig, group: str, offsets: Mapping[int, int], now_ms: int
    ) -> TopicLag:
        topic = config.topic_name
        counts = self._pulls.by_group.get((topic, group))
        pulled = {} if counts is None else counts.pulled
        lag = TopicLag(topic, group)
        for queue_id in range(config.read_queue_nums):
            committed = max(offsets.get(queue_id, 0), 0)
            lag.consumed += committed
            queue = self._queues.get(topic, queue_id)
            if queue is None or (end := queue.max_offset) <= committed:
                continue
            read = min(max(pulled.get(queue_id, committed), committed), end)
            lag.lag += end - committed
            lag.in_flight += read - committed
            lag.ready += end - read
            age_ms = self._ages.age_ms(queue, committed, group, now_ms, is_pulled=False)
            lag.oldest_ms = max(lag.oldest_ms, age_ms)
            if read < end:
                age_ms = self._ages.age_ms(queue, read, group, now_ms, is_pulled=True)
                lag.oldest_ready_ms = max(lag.oldest_ready_ms, age_ms)
        return lag

    def _is_active(self, key: str, lag: TopicLag) -> bool:
        """Whether it has moved within a day, or since the start."""
        counts = self._pulls.by_group.get((lag.topic, lag.group))
        progress = lag.consumed, 0 if counts is None else counts.times
        known, now_s = self._active.get(key), monotonic()
        if known is None or known.progress != progress:
            self._active[key] = _Active(progress, now_s, self._round)
            return True
        known.round = self._round
        return now_s - known.since_s < ACTIVE_S
