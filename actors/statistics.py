"""What went through each topic and each group in the last minute, hour and day.

Owns: the samples behind the figures.
Told by: connections (`Request`), its own ticks.
Publishes: messages per second that each group got of each topic.

Nobody counts for it: it reads, ten seconds apart, the counters that PutMessage, PullMessage and
SendBack keep anyway. Seven samples make a minute, seven an hour (ten minutes apart), and 25 a day,
as in 4.9.7. On a thread, for there may be tens of thousands of topics.

    name                          key              counts
    TOPIC_PUT_NUMS, _SIZE         topic            what was stored
    GROUP_GET_NUMS, _SIZE         topic@group      what was pulled
    SNDBCK_PUT_NUMS               topic@group      what consumers gave back
    BROKER_PUT_NUMS, _GET_NUMS    cluster          all of it

Source: store/stats/BrokerStatsManager.java, common/stats/StatsItem.java.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from actors.actor import Where, handles
from actors.counts import Counts
from actors.published import Published
from actors.pull_stats import PullStats
from actors.put_stats import PutStats
from actors.request import Request, Responder, serves
from protocol.bodies_admin import BrokerStatsData, StatsItem
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.admin import ViewBrokerStatsHeader

SECOND_MS = 1000
MINUTE_SAMPLE_MS = 10 * SECOND_MS
HOUR_SAMPLE_MS = 600 * SECOND_MS
DAY_SAMPLE_MS = 3600 * SECOND_MS
_SPANS = ((MINUTE_SAMPLE_MS, 7), (HOUR_SAMPLE_MS, 7), (DAY_SAMPLE_MS, 25))
"""Time between samples, and how many are kept: of the last minute, hour, day."""

_TOPIC_PUT, _GROUP_GET, _SEND_BACK, _BROKER_PUT, _BROKER_GET = range(5)
_NUMS, _SIZE, _TIMES = 1, 2, 3
"""Where a sample has its counters; first comes when it was taken."""

_NAMES = {
    "TOPIC_PUT_NUMS": (_TOPIC_PUT, _NUMS),
    "TOPIC_PUT_SIZE": (_TOPIC_PUT, _SIZE),
    "GROUP_GET_NUMS": (_GROUP_GET, _NUMS),
    "GROUP_GET_SIZE": (_GROUP_GET, _SIZE),
    "SNDBCK_PUT_NUMS": (_SEND_BACK, _NUMS),
    "BROKER_PUT_NUMS": (_BROKER_PUT, _NUMS),
    "BROKER_GET_NUMS": (_BROKER_GET, _NUMS),
}
_Sample = tuple[int, int, int, int]
_Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class _Tick:
    """Time for the samples of one span."""

    span: int


@dataclass(slots=True)
class _History:
    """The samples of one topic or group: of the minute, the hour, the day."""

    spans: tuple[deque[_Sample], ...] = field(
        default_factory=lambda: tuple(deque(maxlen=kept) for _, kept in _SPANS)
    )

    def note(self, span: int, now_ms: int, counts: Counts, base: Counts) -> None:
        """A first sample begins one step earlier, with what there was to begin with."""
        samples = self.spans[span]
        if not samples:
            samples.append((now_ms - _SPANS[span][0], base.count, base.bytes, base.times))
        samples.append((now_ms, counts.count, counts.bytes, counts.times))

    def item(self, span: int, counter: int) -> StatsItem:
        """The figures of a span."""
        samples = self.spans[span]
        if not samples:
            return StatsItem()
        first, last = samples[0], samples[-1]
        total, times = last[counter] - first[counter], last[_TIMES] - first[_TIMES]
        tps = total * SECOND_MS / (last[0] - first[0]) if last[0] > first[0] else 0.0
        return StatsItem(total, tps, total / times if times > 0 else 0.0)


class Statistics(Responder):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        cluster: str,
        puts: PutStats,
        pulls: PullStats,
        *,
        group_tps: Published[Mapping[str, float]],
    ) -> None:
        """`group_tps` is published by `topic@group`."""
        super().__init__()
        self._cluster = cluster
        self._puts, self._pulls = puts, pulls
        self._group_tps = group_tps
        self._history: dict[_Key, _History] = {}
        self._bases: dict[_Key, Counts] = {}
        """What was counted before this began to look: after a restart, not before."""

    def on_start(self) -> None:
        if self.incarnation > 1:
            for key, counts in self._counted():
                self._bases[key] = Counts(counts.count, counts.bytes, counts.times)
        for span, (interval_ms, _) in enumerate(_SPANS):
            self.every(interval_ms, _Tick(span))

    @handles(_Tick)
    def on_tick(self, tick: _Tick) -> None:
        """Notes every counter."""
        now_ms, zero = self.system.clock.now_ms(), Counts()
        for key, counts in self._counted():
            history = self._history.get(key)
            if history is None:
                history = self._history[key] = _History()
            history.note(tick.span, now_ms, counts, self._bases.get(key, zero))
        if tick.span == 0:
            self._group_tps.value = {
                key: history.item(0, _NUMS).tps
                for (kind, key), history in self._history.items()
                if kind == _GROUP_GET
            }

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def on_view(self, request: Request) -> RemotingCommand:
        """One counter over three spans; what was never counted does not exist."""
        header = ViewBrokerStatsHeader.decode(request.command.fields)
        kind, counter = _NAMES.get(header.stats_name, (-1, 0))
        key = (kind, header.stats_key)
        if key not in self._history and all(known != key for known, _ in self._counted()):
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        history = self._history.get(key) or _History()
        data = BrokerStatsData(*(history.item(span, counter) for span in range(len(_SPANS))))
        return request.command.answer(body=data.encode())

    def _counted(self) -> Iterator[tuple[_Key, Counts]]:
        """Everything that was counted at least once."""
        puts, pulls = self._puts, self._pulls
        for topic, counts in list(puts.by_topic.items()):
            if counts.times:
                yield (_TOPIC_PUT, topic), counts
        for kind, by_group in ((_GROUP_GET, pulls.by_group), (_SEND_BACK, puts.sent_back)):
            for (topic, group), counts in list(by_group.items()):
                yield (kind, f"{topic}@{group}"), counts
        if puts.put_count:  # of the whole 4.9.7 counts no requests
            yield (_BROKER_PUT, self._cluster), Counts(puts.put_count, puts.put_bytes)
        if pulls.get_count:
            yield (_BROKER_GET, self._cluster), Counts(pulls.get_count, pulls.get_bytes)
