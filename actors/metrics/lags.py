"""Consumer lag of each group in each topic, in messages and in time.

    committed ─ in flight ─ pulled ─ ready ─ max offset        lag = in flight + ready

The lag in messages is the sum over all queues, as in `consumerProgress`. The time lag is the age of
the oldest message that is not consumed, over all queues. Ages need disk reads. They are cached
until the group's offset in the queue moves. One scrape reads for LOOKED_UP_S_MAX at most; a later
scrape reads the rest. Until then the older age is shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from actors.config import BrokerConfig
from actors.metrics.selection import Row, items_of
from actors.statistics.counts import GroupCounts, PullStats
from actors.tables.tables import Tables
from storage.files.disk import Disk
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.reading.page_probe import ColdPart, PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR

LOOKED_UP_S_MAX = 0.2
"""Time for reads of ages in one scrape."""
ACTIVE_S = 86_400.0
"""A group without a commit and a pull for this long is not shown."""
COLD_TRIES = 8
AHEAD_BYTES = 64 << 10


@dataclass(slots=True, eq=False)
class TopicLag(Row):
    """Lag of one group in one topic, reused by all scrapes.

    To create and free 30,000 of them each time would add half of the time to fill them.
    """

    consumed: int = 0
    """Sum of the consumer offsets."""
    lag: int = 0
    in_flight: int = 0
    ready: int = 0
    oldest_ms: float = 0.0
    """Age of the oldest message that is not consumed, or 0."""
    oldest_ready_ms: float = 0.0
    """Age of the oldest message that is not pulled, or 0."""
    stalled_ms: float = 0.0
    """Longest time, over the queues, in which messages waited and none was consumed."""
    stuck_queues: int = 0
    moved_ms: int = 0
    """Time of the last consumption, or reset, since the start; 0 without one."""
    progress: tuple[int, int] | None = None
    """Consumed messages and number of pulls, unchanged since `since_s`.

    None while the topic is missing or not subscribed.
    """
    since_s: float = 0.0
    is_shown: bool = True
    round: int = 0
    """Last scrape that found this group and topic."""


@dataclass(slots=True)
class _Age:
    offset: int
    stored_ms: int
    round: int = 0
    """Last scrape that used this age."""


class Ages:
    """Store times of messages; reads of cold pages do not hold the interpreter's lock."""

    def __init__(self, times: QueueTimes, probe: PageProbe, disk: Disk) -> None:
        """Create the cache; `times` must use `probe`."""
        self._times, self._probe, self._disk = times, probe, disk
        self._known: dict[tuple[ConsumeQueue, str, bool], _Age] = {}
        self._round = 0
        self._until_s = 0.0

    def begin(self) -> None:
        """Begin a scrape."""
        self._probe.forget()
        self._until_s = monotonic() + LOOKED_UP_S_MAX
        self._round += 1

    def end(self) -> None:
        """Drop the ages that this scrape has not used."""
        for key, age in items_of(self._known):  # a set difference blocks for 30 ms
            if age.round != self._round:
                del self._known[key]

    def age_ms(
        self, queue: ConsumeQueue, offset: int, group: str, now_ms: int, *, is_pulled: bool
    ) -> float:
        """Return the age of the message at `offset`, or of one cached earlier if time is up."""
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
                return self._times.came_at(queue, offset)
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
    """Lags of all groups; owned by one thread."""

    def __init__(
        self,
        tables: Tables,
        queues: ConsumeQueues,
        pulls: PullStats,
        ages: Ages,
        shows: Callable[[str, str], bool],
        config: BrokerConfig,
    ) -> None:
        """Create the table; `shows(topic, group)` must always return the same."""
        self._config = config
        self._tables, self._queues, self._pulls, self._ages = tables, queues, pulls, ages
        self._shows = shows
        self._known: dict[str, TopicLag] = {}
        """Rows by the key of the consumer offset table."""
        self._round = 0

    def all(self, now_ms: int) -> list[TopicLag]:
        """Return the lags of all shown groups in existing topics, by topic.

        They are valid until the next call.
        """
        topics, views = self._tables.topics.value, self._tables.consumers.value
        pulls, known = self._pulls.by_group, self._known
        found: list[TopicLag] = []
        self._ages.begin()
        self._round += 1
        now_s, no_counts, seen_count = monotonic(), GroupCounts(), 0
        for key, offsets in items_of(self._tables.live_offsets.value):
            lag = known.get(key)
            if lag is None:
                parts = key.split(TOPIC_GROUP_SEPARATOR)
                if len(parts) != 2:
                    continue
                topic, group = parts
                lag = known[key] = TopicLag(topic, group, 0.0, ())
                lag.is_shown = self._shows(topic, group)
            lag.round = self._round
            seen_count += 1
            if not lag.is_shown:
                continue
            topic, group = lag.topic, lag.group
            config = topics.get(topic)
            if config is None:
                lag.progress = None
                continue
            view = views.get(group)
            if view and view.subscriptions and topic not in view.subscriptions:
                lag.progress = None  # the group is online and no longer subscribes to the topic
                continue
            counts = pulls.get((topic, group), no_counts)
            self._fill(lag, key, config.read_queue_nums, offsets, counts.pulled, now_ms)
            progress = lag.consumed, counts.times
            if lag.progress != progress:
                lag.progress, lag.since_s = progress, now_s
            if now_s - lag.since_s < ACTIVE_S:
                found.append(lag)
        self._ages.end()
        if seen_count < len(known):  # costs 10 ms for 30,000
            for key, lag in items_of(known):  # no set of all keys, as it is freed at once
                if lag.round != self._round:
                    del known[key]
        return found

    def _fill(
        self,
        lag: TopicLag,
        key: str,
        queue_count: int,
        offsets: Mapping[int, int],
        pulled: Mapping[int, int],
        now_ms: int,
    ) -> None:
        topic, group, queue_of = lag.topic, lag.group, self._queues.get
        moves = self._tables.offset_moves.value
        moved_ms, stuck_ms = moves.by_key.get(key, {}), self._config.stuck_after_seconds * 1000
        consumed = behind = in_flight = lag.stuck_queues = 0
        lag.oldest_ms = lag.oldest_ready_ms = lag.stalled_ms = 0.0
        lag.moved_ms = max(list(moved_ms.values()), default=0)
        for queue_id in range(max(queue_count, self._queues.id_count(topic))):
            committed = offsets.get(queue_id, 0)
            if committed < 0:
                committed = 0
            queue = queue_of(topic, queue_id)
            if queue_id < queue_count:
                consumed += committed
            elif queue is not None and committed < queue.min_offset:
                committed = queue.min_offset  # no reader: count only stored messages
            if queue is None or (end := queue.max_offset) <= committed:
                continue
            read = min(max(pulled.get(queue_id, committed), committed), end)
            behind += end - committed
            in_flight += read - committed
            age_ms = self._ages.age_ms(queue, committed, group, now_ms, is_pulled=False)
            lag.oldest_ms = max(lag.oldest_ms, age_ms)
            idle_ms = max(0, now_ms - moved_ms.get(queue_id, moves.since_ms))
            stalled_ms = min(age_ms, idle_ms)
            lag.stalled_ms = max(lag.stalled_ms, stalled_ms)
            lag.stuck_queues += stalled_ms >= stuck_ms
            if read < end:
                age_ms = self._ages.age_ms(queue, read, group, now_ms, is_pulled=True)
                lag.oldest_ready_ms = max(lag.oldest_ready_ms, age_ms)
        lag.consumed, lag.lag, lag.in_flight = consumed, behind, in_flight
        lag.ready = behind - in_flight
