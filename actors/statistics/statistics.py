"""Statistics of each topic and group over the last minute, hour and day.

Owns: the samples behind the figures.
Receives: Request (connections).
Publishes: the rates of the last minute.

It samples counters that PutMessage, PullMessage and SendBack keep anyway. As in 4.9.7, a minute has
seven samples 10 s apart, an hour seven, ten minutes apart, and a day 25. It runs on a thread, as
there may be tens of thousands of topics.

    name                          key              counts
    TOPIC_PUT_NUMS, _SIZE         topic            stored messages
    GROUP_GET_NUMS, _SIZE         topic@group      pulled messages
    SNDBCK_PUT_NUMS               topic@group      messages returned by consumers
    BROKER_PUT_NUMS, _GET_NUMS    cluster          all messages

There may be hundreds of thousands of single queues. These are sampled from the first request on,
while they are among the last WATCHED_MAX requested, and cost nothing otherwise:

    QUEUE_PUT_NUMS                topic@queue          stored messages of any origin
    QUEUE_GET_NUMS                topic@queue@group    delivered delayed messages, as in 4.9.7
    GROUP_GET_LATENCY             queue@topic@group    ms spent reading for pulls

QUEUE_PUT_SIZE and QUEUE_GET_SIZE of 4.9.7 are missing; its COMMERCIAL_ items and those of disk
reads never count anything.

Source: store/stats/BrokerStatsManager.java, common/stats/StatsItem.java.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from actors.engine.actor import Where, handles
from actors.engine.interfaces import SnapshotRef
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.statistics.counts import PAIRS_MAX, Counts, Pair, PullStats, PutStats
from actors.tables.tables import NO_SPAN, SECOND_MS, Rates, Sample, Span
from protocol.bodies_admin import BrokerStatsData, StatsItem
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import ViewBrokerStatsHeader
from protocol.java_numbers import plain_number
from protocol.topic_names import SCHEDULE_TOPIC
from storage.queues.consume_queues import ConsumeQueues

MINUTE_SAMPLE_MS = 10 * SECOND_MS
HOUR_SAMPLE_MS = 600 * SECOND_MS
DAY_SAMPLE_MS = 3600 * SECOND_MS
_SPANS = ((MINUTE_SAMPLE_MS, 7), (HOUR_SAMPLE_MS, 7), (DAY_SAMPLE_MS, 25))
"""Interval and number of samples for minute, hour and day."""

WATCHED_MAX = 1000
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"

_TOPIC_PUT, _GROUP_GET, _SEND_BACK, _BROKER_PUT, _BROKER_GET = range(5)
_QUEUE_PUT, _QUEUE_GET, _LATENCY = range(5, 8)
_NUMS, _SIZE, _TIMES = 1, 2, 3
"""Positions of the counters in a sample, after its time."""

_NAMES = {
    "TOPIC_PUT_NUMS": (_TOPIC_PUT, _NUMS),
    "TOPIC_PUT_SIZE": (_TOPIC_PUT, _SIZE),
    "GROUP_GET_NUMS": (_GROUP_GET, _NUMS),
    "GROUP_GET_SIZE": (_GROUP_GET, _SIZE),
    "SNDBCK_PUT_NUMS": (_SEND_BACK, _NUMS),
    "BROKER_PUT_NUMS": (_BROKER_PUT, _NUMS),
    "BROKER_GET_NUMS": (_BROKER_GET, _NUMS),
    "QUEUE_PUT_NUMS": (_QUEUE_PUT, _NUMS),
    "QUEUE_GET_NUMS": (_QUEUE_GET, _NUMS),
    "GROUP_GET_LATENCY": (_LATENCY, _NUMS),
}
_WATCHES = {_QUEUE_PUT: 2, _QUEUE_GET: 3, _LATENCY: 3}
"""Counters of single queues, and the number of parts of their keys."""
_Key = tuple[int, str]
_Source = Callable[[], Counts | None]


@dataclass(frozen=True, slots=True)
class _Tick:
    span: int


@dataclass(slots=True)
class _History:
    """The samples of one topic or group for minute, hour and day."""

    spans: tuple[deque[Sample], ...] = field(
        default_factory=lambda: tuple(deque(maxlen=kept) for _, kept in _SPANS)
    )

    def note(self, span: int, now_ms: int, counts: Counts, base: Counts) -> None:
        """Add a sample; before the first, add the base one interval earlier."""
        samples = self.spans[span]
        if not samples:
            samples.append((now_ms - _SPANS[span][0], base.count, base.bytes, base.times))
        samples.append((now_ms, counts.count, counts.bytes, counts.times))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was counted for a whole day."""
        day = self.spans[-1]
        return len(day) == day.maxlen and day[0][1:] == day[-1][1:]

    def item(self, span: int, counter: int) -> StatsItem:
        samples = self.spans[span]
        if not samples:
            return StatsItem()
        first, last = samples[0], samples[-1]
        total, times = last[counter] - first[counter], last[_TIMES] - first[_TIMES]
        tps = total * SECOND_MS / (last[0] - first[0]) if last[0] > first[0] else 0.0
        return StatsItem(total, tps, total / times if times > 0 else 0.0)


class Statistics(Responder):
    """Samples and figures. Runs on a thread."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        cluster: str,
        puts: PutStats,
        pulls: PullStats,
        *,
        queues: ConsumeQueues,
        delay_offsets: SnapshotRef[Mapping[int, int]],
        rates: SnapshotRef[Rates],
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._puts, self._pulls = puts, pulls
        self._queues, self._delay_offsets = queues, delay_offsets
        self._watched: dict[_Key, _Source] = {}
        """Counters of single queues, the last requested at the end."""
        self._rates = rates
        self._history: dict[_Key, _History] = {}
        self._bases: dict[_Key, Counts] = {}
        """Counts before the first sample: at a restart of this actor, or after a quiet day."""

    def on_start(self) -> None:
        if self.incarnation > 1:
            for key, counts in self._counted():
                self._bases[key] = _copy(counts)
        for span, (interval_ms, _) in enumerate(_SPANS):
            self.every(interval_ms, _Tick(span))

    @handles(_Tick)
    def on_tick(self, tick: _Tick) -> None:
        now_ms, zero = int(self.system.clock.monotonic_ms()), Counts()
        for key, counts in self._counted():
            history, base = self._history.get(key), self._bases.get(key, zero)
            if history is None:
                if counts.times == base.times and counts.count == base.count:
                    continue
                history = self._history[key] = _History()
            history.note(tick.span, now_ms, counts, base)
            if history.is_quiet:  # thousands of old or deleted topics have one, of 5 KiB each
                self._bases[key] = _copy(counts)
                del self._history[key]
        if tick.span == 0:
            self._rates.value = self._spans_of_minute()
        elif tick.span == len(_SPANS) - 1:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the pairs of full tables that had no message for a day; they may count again."""
        puts, pulls = self._puts, self._pulls
        for pair in self._quiet(_GROUP_GET, pulls.by_group):
            pulls.by_group.pop(pair, None)
        for pair in self._quiet(_SEND_BACK, puts.sent_back):
            puts.sent_back.pop(pair, None)
            puts.dead_letters.pop(pair, None)

    def _quiet(self, kind: int, table: Mapping[Pair, Counts]) -> list[Pair]:
        """Return pairs of a full table that are not sampled at present, and forget their bases."""
        pairs = [*table] if len(table) >= PAIRS_MAX else []
        keys = {(topic, group): (kind, f"{topic}@{group}") for topic, group in pairs}
        quiet = [pair for pair in pairs if keys[pair] not in self._history]
        for pair in quiet:
            self._bases.pop(keys[pair], None)
        return quiet

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def on_view(self, request: Request) -> RemotingCommand:
        """Answer with one counter over three spans; one that never counted is missing."""
        header = ViewBrokerStatsHeader.decode(request.command.fields)
        kind, counter = _NAMES.get(header.stats_name, (-1, 0))
        key = (kind, header.stats_key)
        if kind in _WATCHES:
            is_known = self._watch(kind, header.stats_key)
        else:
            is_known = key in self._history or any(known == key for known, _ in self._counted())
        if not is_known:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        history = self._history.get(key) or _History()
        data = BrokerStatsData(*(history.item(span, counter) for span in range(len(_SPANS))))
        return request.command.answer(body=data.encode())

    def _spans_of_minute(self) -> Rates:
        found: dict[int, dict[str, Span]] = {kind: {} for kind in range(_LATENCY + 1)}
        for (kind, key), history in self._history.items():
            if samples := history.spans[0]:
                found[kind][key] = samples[0], samples[-1]
        puts, gets = (found[kind].get(self._cluster) for kind in (_BROKER_PUT, _BROKER_GET))
        rates = Rates(found[_TOPIC_PUT], found[_GROUP_GET], found[_SEND_BACK])
        return replace(rates, broker_puts=puts or NO_SPAN, broker_gets=gets or NO_SPAN)

    # --- single queues

    def _watch(self, kind: int, name: str) -> bool:
        """Start or continue sampling a queue; return whether it exists."""
        key = kind, name
        source = self._watched.pop(key, None) or self._source(kind, name.split("@"))
        counts = None if source is None else source()
        if source is None or counts is None:
            self._forget(key)
            return False
        self._watched[key] = source
        self._bases.setdefault(key, counts)
        if len(self._watched) > WATCHED_MAX:
            self._forget(next(iter(self._watched)))
        return True

    def _forget(self, key: _Key) -> None:
        for table in (self._watched, self._history, self._bases):
            table.pop(key, None)
        if key[0] == _LATENCY:
            self._pulls.latencies.pop(key[1], None)

    def _source(self, kind: int, parts: list[str]) -> _Source | None:
        """Return the function that reads the counter."""
        if len(parts) != _WATCHES[kind]:
            return None
        if kind == _QUEUE_PUT:
            return _numbered(parts[1], lambda queue_id: self._came_into(parts[0], queue_id))
        if kind == _QUEUE_GET:
            is_delayed = (parts[0], parts[2]) == (SCHEDULE_TOPIC, SCHEDULE_GROUP)
            return _numbered(parts[1], self._delivered) if is_delayed else None
        return _numbered(parts[0], lambda queue_id: self._read_for(queue_id, parts[1], parts[2]))

    def _came_into(self, topic: str, queue_id: int) -> Counts | None:
        queue = self._queues.get(topic, queue_id)
        count = 0 if queue is None else queue.max_offset
        return Counts(count, times=count) if count else None

    def _delivered(self, queue_id: int) -> Counts | None:
        count = self._delay_offsets.value.get(queue_id + 1, 0)
        return Counts(count, times=count) if count else None

    def _read_for(self, queue_id: int, topic: str, group: str) -> Counts | None:
        if (topic, group) not in self._pulls.by_group or self._queues.get(topic, queue_id) is None:
            return None
        counts = self._pulls.latencies.setdefault(f"{queue_id}@{topic}@{group}", Counts())
        return _copy(counts)

    def _counted(self) -> Iterator[tuple[_Key, Counts]]:
        """Yield everything counted at least once."""
        puts, pulls = self._puts, self._pulls
        for topic, put in puts.by_topic.copy().items():
            if put.times:
                yield (_TOPIC_PUT, topic), put
        for (topic, group), got in pulls.by_group.copy().items():
            yield (_GROUP_GET, f"{topic}@{group}"), got
        for (topic, group), counts in puts.sent_back.copy().items():
            yield (_SEND_BACK, f"{topic}@{group}"), counts
        if puts.put_count:  # 4.9.7 counts no requests of the whole broker
            yield (_BROKER_PUT, self._cluster), Counts(puts.put_count, puts.put_bytes)
        if pulls.get_count:
            yield (_BROKER_GET, self._cluster), Counts(pulls.get_count, pulls.get_bytes)
        for key, source in self._watched.copy().items():
            found = source()
            if found is None or found.count < self._bases[key].count:
                self._forget(key)  # the queue was deleted and may start again at 0
            else:
                yield key, found


def _copy(counts: Counts) -> Counts:
    return Counts(counts.count, counts.bytes, counts.times)


def _numbered(text: str, count: Callable[[int], Counts | None]) -> _Source | None:
    """Return the reader for the queue with this number, or None if it is no number."""
    number = plain_number(text)
    return None if number is None else partial(count, number)
