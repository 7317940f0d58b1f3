"""Counters since the start: of topics, groups, sends, pulls, transactions and timers.

One actor writes each of them, any thread may read.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TypeVar

from actors.engine.histogram import END_BOUNDS_S, RPC_BOUNDS_MS, ClassCounts
from protocol.timers import LevelTimers

LARGE_BOUNDS: tuple[int, ...] = (4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Upper bounds of the classes of records above SMALL_BYTES; the last class has none."""
SMALL_BYTES = 1 << 10
PAIRS_MAX = 50_000
"""Topics with a group that are counted: 20 MiB, and 300 MiB with the samples of a day.

Any client may name groups. Past it, Statistics makes room once an hour.
"""

PUT_BOUNDS_MS: tuple[int, ...] = (
    *(0, 1, 2, 3, 4, 5, 10, 20, 30, 50, 100, 200, 500),
    *(1000, 2000, 3000, 4000, 5000, 10_000),
)
"""Upper bounds of the classes of durations; the last class has none."""


@dataclass(slots=True)
class Counts:
    """Counters since the start."""

    count: int = 0
    """Number of messages."""
    bytes: int = 0
    times: int = 0
    """Number of requests; a batch is one."""


@dataclass(slots=True)
class TopicCounts(Counts):
    """Messages stored in one topic, including the broker's own: due, committed and retried ones."""

    own_count: int = 0
    own_bytes: int = 0
    """Part of `count` and `bytes` that the broker stored itself."""
    delayed_count: int = 0
    delayed_bytes: int = 0
    """Messages sent to this topic with a delay; stored elsewhere until they are due."""
    half_count: int = 0
    half_bytes: int = 0
    """Half messages of this topic; stored elsewhere until their commit."""
    large: list[int] = field(default_factory=lambda: [0] * (len(LARGE_BOUNDS) + 1))
    """Requests of more than SMALL_BYTES, by class."""

    def note_large(self, put_bytes: int) -> None:
        self.large[bisect_left(LARGE_BOUNDS, put_bytes)] += 1

    def redirected(self, sent_bytes: int, *, is_half: bool) -> None:
        """Count a delayed or half message, which is stored elsewhere at first."""
        if is_half:
            self.half_count += 1
            self.half_bytes += sent_bytes
        else:
            self.delayed_count += 1
            self.delayed_bytes += sent_bytes


@dataclass(slots=True)
class GroupCounts(Counts):
    pulled: dict[int, int] = field(default_factory=dict)
    """Queue offset after the last pulled message, by queue id."""


Counted = TypeVar("Counted", bound=Counts)
Pair = tuple[str, str]
"""Topic and group."""


def counts_of(table: dict[Pair, Counted], pair: Pair, kind: type[Counted]) -> Counted:
    """Return the counters of a pair; past PAIRS_MAX, those of a new one are kept nowhere."""
    counts = table.get(pair)
    if counts is None:
        counts = kind()
        if len(table) < PAIRS_MAX:
            table[pair] = counts
    return counts


@dataclass(slots=True)
class PutStats:
    """Counters of PutMessage: puts, bytes, failures and durations."""

    put_count: int = 0
    put_bytes: int = 0
    failed_count: int = 0
    longest_put_ms: float = 0.0
    """Time from the first message of a batch handled to the batch written."""
    durations: list[int] = field(default_factory=lambda: [0] * (len(PUT_BOUNDS_MS) + 1))
    """Number of sends by duration of their batch."""
    total_ms: float = 0.0
    """Sum of these durations."""
    by_topic: dict[str, TopicCounts] = field(default_factory=dict)
    sent_back: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """Returned messages by topic and group; written by SendBack."""
    dead_letters: dict[tuple[str, str], int] = field(default_factory=dict)
    """Messages of the dead-letter queue by topic and group; written by SendBack."""

    def sent_back_one(self, pair: Pair, *, is_dead: bool) -> None:
        """Count a returned message, and a dead letter."""
        counts = counts_of(self.sent_back, pair, Counts)
        counts.count += 1
        counts.times += 1
        if is_dead and pair in self.sent_back:
            self.dead_letters[pair] = self.dead_letters.get(pair, 0) + 1

    def of_topic(self, topic: str) -> TopicCounts:
        """Return the counters of a topic; always the same object."""
        counts = self.by_topic.get(topic)
        if counts is None:
            counts = self.by_topic[topic] = TopicCounts()
        return counts


@dataclass(slots=True)
class PullStats:
    """Counters of PullMessage: pulls by outcome, and durations."""

    get_count: int = 0
    get_bytes: int = 0
    pull_count: int = 0
    held_count: int = 0
    cold_count: int = 0
    """Pulls that waited for the disk."""
    doubt_count: int = 0
    """Pulls with a first message that did not match its unit."""
    found_count: int = 0
    miss_count: int = 0
    longest_get_ms: float = 0.0
    found_ms: ClassCounts = field(default_factory=lambda: ClassCounts(RPC_BOUNDS_MS))
    missed_ms: ClassCounts = field(default_factory=lambda: ClassCounts(RPC_BOUNDS_MS))
    """Durations of reading, for pulls with and without messages."""
    by_group: dict[tuple[str, str], GroupCounts] = field(default_factory=dict)
    """Pulled messages by topic and group."""
    latencies: dict[str, Counts] = field(default_factory=dict)
    """Durations of reading in ms by `queue@topic@group`, for watched queues only."""


@dataclass(slots=True)
class TransactionStats:
    """Counters of Transactions, by topic."""

    committed: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, ClassCounts] = field(default_factory=dict)
    """Time from the storing of the half message to its commit."""

    def ended(self, topic: str, *, is_commit: bool, after_ms: float) -> None:
        counts = self.committed if is_commit else self.rolled_back
        counts[topic] = counts.get(topic, 0) + 1
        if is_commit:
            found = self.seconds.get(topic)
            if found is None:
                found = self.seconds[topic] = ClassCounts(END_BOUNDS_S)
            found.note(max(0.0, after_ms / 1000))


@dataclass(slots=True)
class TimerFigures:
    """Figures of pending timers, by delay level."""

    levels: dict[int, LevelTimers] = field(default_factory=dict)

    def of_level(self, level: int) -> LevelTimers:
        found = self.levels.get(level)
        return self.levels.setdefault(level, LevelTimers()) if found is None else found

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self._all())

    @property
    def next_due_ms(self) -> int:
        """Earliest due time of all levels; 0 without one."""
        return min((each.next_due_ms for each in self._all() if each.next_due_ms), default=0)

    def late_ms(self, now_ms: int) -> int:
        """Return how late the earliest timer that is not delivered is, ms."""
        due_ms = self.next_due_ms
        return max(0, now_ms - due_ms) if due_ms else 0

    @property
    def stored_count(self) -> int:
        """Timers stored since the start, without those that moved from level to level."""
        return sum(each.stored_count - each.moved_count for each in self._all())

    @property
    def delivered_count(self) -> int:
        return sum(each.delivered_count for each in self._all())

    def _all(self) -> list[LevelTimers]:
        return [*self.levels.values()]
