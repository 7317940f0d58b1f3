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

from actors.metrics.selection import Row, items_of
from actors.statistics.counts import GroupCounts
from actors.statistics.pull_stats import PullStats
from actors.tables.tables import Tables
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


@dataclass(slots=True, eq=False)
class TopicLag(Row):
    """How far one group is behind in one topic. Kept from one scrape to the next: of 30,000 to make
    and to free them anew is half of what it takes to fill them."""

    consumed: int = 0
    """Sum of the offsets."""
    lag: int = 0
    in_flight: int = 0
    ready: int = 0
    oldest_ms: float = 0.0
    """Age of the oldest message that is not consumed; 0: there is none."""
    oldest_ready_ms: float = 0.0
    """The same of what was not even pulled."""
    progress: tuple[int, int] | None = None
    """What it had consumed and how often it had pulled, and when that became so; None while the
    topic is not there, or not wanted."""
    since_s: float = 0.0
    is_shown: bool = True
    round: int = 0
    """The last scrape that found its key."""


@dataclass(slots=True)
class _Age:
    offset: int
    stored_ms: int
    round: int = 0
    """The last scrape that asked."""


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
    """Owned by one thread."""

    def __init__(
        self,
        tables: Tables,
        queues: ConsumeQueues,
        pulls: PullStats,
        ages: Ages,
        shows: Callable[[str, str], bool],
    ) -> None:
        """`shows` says of a topic and a group whether they are shown, and always the same."""
        self._tables, self._queues, self._pulls, self._ages = tables, queues, pulls, ages
        self._shows = shows
        self._known: dict[str, TopicLag] = {}
        """By the key of the table of offsets."""
        self._round = 0

    def all(self, now_ms: int) -> list[TopicLag]:
        """Of every group that is shown, by topic; what is deleted is not there any more. They hold
        until the next call."""
        topics, views = self._tables.topics.value, self._tables.consumers.value
        pulls, known = self._pulls.by_group, self._known
        found: list[TopicLag] = []
        self._ages.begin()
        self._round += 1
        now_s, nobody, seen_count = monotonic(), GroupCounts(), 0
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
                lag.progress = None  # the group, which is online, does not subscribe it any more
                continue
            counts = pulls.get((topic, group), nobody)
            self._fill(lag, config.read_queue_nums, offsets, counts.pulled, now_ms)
            progress = lag.consumed, counts.times
            if lag.progress != progress:
                lag.progress, lag.since_s = progress, now_s
            if now_s - lag.since_s < ACTIVE_S:
                found.append(lag)
        self._ages.end()
        if seen_count < len(known):  # 10 ms of 30,000
            for key, lag in items_of(known):  # nor a set of all that are here, freed at once
                if lag.round != self._round:
                    del known[key]
        return found

    def _fill(
        self,
        lag: TopicLag,
        queue_count: int,
        offsets: Mapping[int, int],
        pulled: Mapping[int, int],
        now_ms: int,
    ) -> None:
        topic, group, queue_of = lag.topic, lag.group, self._queues.get
        consumed = behind = in_flight = 0
        lag.oldest_ms = lag.oldest_ready_ms = 0.0
        for queue_id in range(max(queue_count, self._queues.id_count(topic))):
            committed = offsets.get(queue_id, 0)
            if committed < 0:
                committed = 0
            queue = queue_of(topic, queue_id)
            if queue_id < queue_count:
                consumed += committed
            elif queue is not None and committed < queue.min_offset:
                committed = queue.min_offset  # without a reader: only what is stored counts as lag
            if queue is None or (end := queue.max_offset) <= committed:
                continue
            read = min(max(pulled.get(queue_id, committed), committed), end)
            behind += end - committed
            in_flight += read - committed
            age_ms = self._ages.age_ms(queue, committed, group, now_ms, is_pulled=False)
            lag.oldest_ms = max(lag.oldest_ms, age_ms)
            if read < end:
                age_ms = self._ages.age_ms(queue, read, group, now_ms, is_pulled=True)
                lag.oldest_ready_ms = max(lag.oldest_ready_ms, age_ms)
        lag.consumed, lag.lag, lag.in_flight = consumed, behind, in_flight
        lag.ready = behind - in_flight
