"""Answers about the broker itself.

Owns: the samples behind its figures.
Receives: Request (connections); AskFigures (MetricsPort).
Sends: nothing but answers.

It reports the figures of 4.9.7 that have a meaning here. Figures of thread pools are replaced by
the inbox depths of the actors that do their work.

Source: AdminBrokerProcessor.prepareRuntimeInfo, DefaultMessageStore.getRuntimeInfo,
StoreStatsService (sampling, getPutTps and its like).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Protocol

from actors.config import BrokerConfig
from actors.dispatching.reput import DispatchProgress
from actors.engine.actor import AskFigures, handles
from actors.engine.interfaces import SnapshotRef
from actors.engine.system import ActorSystem
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.retention.retention_holds import KeepingReport
from actors.scrubbing.scrubber import ScrubFigures
from actors.statistics.counts import PUT_BOUNDS_MS, PullStats, PutStats, TimerFigures
from actors.tables.offset_limits import OffsetStats
from actors.tables.tables import Tables
from protocol.bodies_own import ActorLine, ActorList, DamagedPlace, StoreState
from protocol.bodies_tables import KVTable
from protocol.codes import VERSION, VERSION_5, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetSubscriptionGroupConfigHeader, TopicHeader
from protocol.timers import TIMERS_OF_LEVEL
from protocol.topic_names import SCHEDULE_TOPIC
from storage.files.disk import Disk
from storage.message_store import MessageStore
from storage.recovery.recovery import RecoveryReport
from storage.retention.cleaning import used_ratio

PLACES_MAX = 200
"""Damaged places in one answer; the rest is counted."""
FINDINGS_MAX = 50
WINDOWS_S = (10, 60, 600)
SAMPLE_MS = 1000
VERSION_NAME = "V4_9_7"
_PUTS, _FOUND, _MISSED, _PULLS, _GETS = range(5)
_MINUTE_MS = 60_000
_DISTRIBUTION = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
_DISTRIBUTION_ENDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_CAPACITIES = {
    "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
    "EndTransactionThreadPoolQueueCapacity": "100000",
}
"""Defaults of 4.9.7; there are no such pools here."""
_NO_TRANSIENT_POOL = (1 << 31) - 1
_LEASES_SHOWN_MAX = 20
_UNITS = "KMGTPE"


@dataclass(frozen=True, slots=True)
class RuntimeFigures:
    """Figures of BrokerInfo, by the names of 4.9.7."""

    texts: Mapping[str, str] = field(default_factory=dict)


class Throughput:
    """Samples of increasing counters, one per second. Owned by one actor."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Sequence[int]]] = deque(maxlen=WINDOWS_S[-1] + 1)

    def sample(self, now_ms: float, counters: Sequence[int]) -> None:
        """Add a sample; `now_ms` is monotonic."""
        self._samples.append((now_ms, tuple(counters)))

    def text(self, index: int) -> str:
        """Return counter `index` per second over 10 s, a minute and ten minutes.

        A window that is not complete counts as far as it goes.
        """
        return " ".join(str(self._per_second(index, window_s)) for window_s in WINDOWS_S)

    def _per_second(self, index: int, window_s: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        last_ms, last = self._samples[-1]
        first_ms, first = self._samples[max(0, len(self._samples) - 1 - window_s)]
        return (last[index] - first[index]) * 1000 / (last_ms - first_ms)


class DailyTotals:
    """Values of a counter at the beginning of today and yesterday. Owned by one actor."""

    def __init__(self) -> None:
        self._day = ""
        self.yesterday_morning = 0
        self.today_morning = 0

    def note(self, day: str, total: int) -> None:
        """Note the total, at short intervals; `day` is the local date."""
        if not self._day:
            self._day = day
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.today_morning = self.today_morning, total


class Sources(Protocol):
    @property
    def system(self) -> ActorSystem: ...

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def put_stats(self) -> PutStats: ...
    @property
    def pull_stats(self) -> PullStats: ...
    @property
    def timer_figures(self) -> TimerFigures: ...
    @property
    def following(self) -> DispatchProgress: ...
    @property
    def kept(self) -> SnapshotRef[KeepingReport]: ...
    @property
    def offset_stats(self) -> OffsetStats: ...
    @property
    def tables(self) -> Tables: ...
    @property
    def recovery(self) -> RecoveryReport: ...
    @property
    def scrubbed(self) -> SnapshotRef[ScrubFigures]: ...


@dataclass(frozen=True, slots=True)
class _Sample:
    """Timer tick of a second."""


@dataclass(frozen=True, slots=True)
class _Minute:
    """Timer tick of a minute."""


class BrokerInfo(Responder):
    """Figures of the broker. Runs on the loop."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self._sources = sources
        self._throughput = Throughput()
        self._puts_by_day, self._gets_by_day = DailyTotals(), DailyTotals()
        self._boot_ms = 0
        self._durations: list[int] = []
        self._last_minute: list[int] | None = None
        self._first_record = -1, -1
        """Offset and time of the first record in the log, if known."""

    def on_start(self) -> None:
        self._boot_ms = self.system.clock.now_ms()
        self._take_sample()
        self.every(SAMPLE_MS, _Sample())
        self._durations = list(self._sources.put_stats.durations)
        self.every(_MINUTE_MS, _Minute())

    @handles(_Sample)
    def on_sample(self, _: _Sample) -> None:
        """Sample the counters and log the warnings held back by the rate limit."""
        self._take_sample()
        self.system.rarely.tell_rest()

    @handles(_Minute)
    def on_minute(self, _: _Minute) -> None:
        """Note how long the puts of this minute took."""
        now = list(self._sources.put_stats.durations)
        self._last_minute = [new - old for new, old in zip(now, self._durations, strict=True)]
        self._durations = now

    def _take_sample(self) -> None:
        puts, pulls = self._sources.put_stats.put_count, self._sources.pull_stats
        gets, found, missed = pulls.get_count, pulls.found_count, pulls.miss_count
        self._throughput.sample(
            self.system.clock.monotonic_ms(), (puts, found, missed, found + missed, gets)
        )
        day = datetime.fromtimestamp(self.system.clock.now_ms() / 1000).date().isoformat()
        self._puts_by_day.note(day, puts)
        self._gets_by_day.note(day, gets)

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, request: Request) -> RemotingCommand:
        """Answer with the figures; every value is a text."""
        figures = self._figures()
        if request.command.version >= VERSION_5:
            figures["getTransferredTps"] = figures["getTransferedTps"]  # as 5.x spells it
        return request.command.answer(body=KVTable(figures).encode())

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        message.reply(RuntimeFigures(self._figures()))

    def _figures(self) -> dict[str, str]:
        """Return all figures by the names of 4.9.7."""
        return {
            **self._store_figures(),
            **self._traffic_figures(),
            **self._waiting_figures(),
            **self._delay_figures(),
            **self._group_figures(),
            **self._lease_figures(),
            **self._host_figures(),
        }

    @serves(RequestCode.GET_TOPIC_CONFIG)
    def topic_config(self, request: Request) -> RemotingCommand:
        """Answer with one topic, for tools of RocketMQ 5; there are no queue mappings here."""
        topic = TopicHeader.decode(request.command.fields).topic
        config = self._sources.tables.topics.value.get(topic)
        if config is None:
            remark = f"No topic in this broker. topic: {topic}"
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, remark)
        return request.command.answer(body=config.encode())

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def group_config(self, request: Request) -> RemotingCommand:
        """Answer with one group, for tools of RocketMQ 5."""
        group = GetSubscriptionGroupConfigHeader.decode(request.command.fields).group
        config = self._sources.tables.groups.value.get(group)
        if config is None:
            remark = "No group in this broker"
            raise RemoteError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return request.command.answer(body=config.encode())

    @serves(RequestCode.GET_ACTORS)
    def actors(self, request: Request) -> RemotingCommand:
        """Answer with inbox depth and restarts of each actor."""
        lines = [
            ActorLine(
                each.name,
                each.is_up,
                each.inbox_depth,
                each.handled_count,
                max(0, each.incarnation - 1),
            )
            for each in self._sources.system.figures()
        ]
        loop = self._sources.system.loop
        longest = loop.longest
        body = ActorList(
            lines, loop.slow_handler_count, round(longest.ms), longest.actor, longest.message
        )
        return request.command.answer(body=body.encode())

    @serves(RequestCode.GET_STORE_STATE)
    def store_state(self, request: Request) -> RemotingCommand:
        body = _store_state(self._sources)
        return request.command.answer(body=body.encode())

    def _store_figures(self) -> dict[str, str]:
        store = self._sources.store
        log, config, disk = store.commit_log, store.config, self.system.disk
        log_ratio = str(used_ratio(disk, config.commit_log_dir))
        return {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "bootTimestamp": str(self._boot_ms),
            "runtime": _span_text(self.system.clock.now_ms() - self._boot_ms),
            "startAcceptSendRequestTimeStamp": str(
                self._sources.config.start_accept_send_request_timestamp_ms
            ),
            "commitLogMinOffset": str(log.min_offset()),
            "commitLogMaxOffset": str(log.end_offset),
            "commitLogDiskRatio": log_ratio,
            f"commitLogDiskRatio_{config.commit_log_dir}": log_ratio,
            "consumeQueueDiskRatio": str(used_ratio(disk, config.root)),
            "commitLogDirCapacity": _capacity_text(disk, config.root),
            "dispatchMaxBuffer": "0",
            "remainTransientStoreBufferNumbs": str(_NO_TRANSIENT_POOL),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "dispatchBehindBytes": str(
                max(0, log.end_offset - self._sources.following.dispatched_offset)
            ),
            "remainHowManyDataToFlush": _bytes_text(max(0, log.end_offset - log.flushed_offset)),
        }

    def _earliest_ms(self) -> int:
        """Return the time of the first record, which is only read after a deletion."""
        log = self._sources.store.commit_log
        begin = log.min_offset()
        if self._first_record[0] != begin or log.end_offset <= begin:
            first = log.read_record(begin) if log.end_offset > begin else None
            self._first_record = (-1, -1) if first is None else (begin, first.store_timestamp)
        return self._first_record[1]

    def _traffic_figures(self) -> dict[str, str]:
        puts, pulls = self._sources.put_stats, self._sources.pull_stats
        average = puts.put_bytes / puts.put_count if puts.put_count else 0.0
        return {
            "putTps": self._throughput.text(_PUTS),
            "getFoundTps": self._throughput.text(_FOUND),
            "getMissTps": self._throughput.text(_MISSED),
            "getMessageEntireTimeMax": str(round(pulls.longest_get_ms)),
            "putMessageDistributeTime": _distribution_text(self._last_minute),
            "putLatency99": f"{_percentile_ms(self._last_minute, 0.99):.2f}",
            "putLatency999": f"{_percentile_ms(self._last_minute, 0.999):.2f}",
            "getTotalTps": self._throughput.text(_PULLS),
            "getTransferedTps": self._throughput.text(_GETS),
            "putMessageTimesTotal": str(puts.put_count),
            "putMessageSizeTotal": str(puts.put_bytes),
            "putMessageAverageSize": str(average),
            "putMessageFailedTimes": str(puts.failed_count),
            "putMessageEntireTimeMax": str(round(puts.longest_put_ms)),
            "msgPutTotalYesterdayMorning": str(self._puts_by_day.yesterday_morning),
            "msgPutTotalTodayMorning": str(self._puts_by_day.today_morning),
            "msgPutTotalTodayNow": str(puts.put_count),
            "msgGetTotalYesterdayMorning": str(self._gets_by_day.yesterday_morning),
            "msgGetTotalTodayMorning": str(self._gets_by_day.today_morning),
            "msgGetTotalTodayNow": str(pulls.get_count),
            "pullHeldTimesTotal": str(pulls.held_count),  # these three are TroupeMQ's
            "pullColdTimesTotal": str(pulls.cold_count),
            "pullDoubtTimesTotal": str(pulls.doubt_count),
        }

    def _group_figures(self) -> dict[str, str]:
        consumers = self._sources.tables.consumers.value.values()
        return {
            "subscriptionMismatchGroups": str(sum(bool(each.mismatches) for each in consumers)),
            "ignoredOffsetCommits": str(self._sources.offset_stats.ignored_count),
        }

    def _lease_figures(self) -> dict[str, str]:
        """Return TroupeMQ's figures of leases and retained log files."""
        kept, now_ms = self._sources.kept.value, self.system.clock.now_ms()
        found = {"logLeases": str(len(kept.leases)), "oldLogFilesStayFor": kept.files_stay_for}
        for lease in sorted(kept.leases, key=lambda each: each.offset)[:_LEASES_SHOWN_MAX]:
            left_s = max(0, lease.until_ms - now_ms) // 1000
            name = f"logLease_{lease.id}"
            if name in found:  # two accounts may use the same id
                name = f"{name}_{len(found)}"
            found[name] = (
                f"{lease.job}, from offset {lease.offset}, {left_s} s unless it is renewed"
            )
        return found

    def _host_figures(self) -> dict[str, str]:
        """Return TroupeMQ's figure that names the first of several brokers in one process."""
        first = self._sources.config.one_of
        return {"oneOf": first} if first else {}

    def _waiting_figures(self) -> dict[str, str]:
        address, waiting = self.system.address, self.system.loop.depths()
        return {
            "sendThreadPoolQueueSize": str(waiting[address("put_message")]),
            "pullThreadPoolQueueSize": str(waiting[address("pull_message")]),
            "queryThreadPoolQueueSize": str(self._mail_of("query_message")),
            "EndTransactionQueueSize": "0",  # end-transaction requests wait with the sends
            **_CAPACITIES,
            # the loop empties inboxes every round, so the oldest message waits at most a round
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
        }

    def _mail_of(self, name: str) -> int:
        queue = self.system.address(name).own_queue()
        return 0 if queue is None else queue.qsize()

    def _delay_figures(self) -> dict[str, str]:
        """Return consumer offset and max offset of each delay level, and figures of its timers."""
        queues = self._sources.store.consume_queues
        found = {}
        for level, offset in self._sources.tables.delay_offsets.value.items():
            queue = queues.get(SCHEDULE_TOPIC, level - 1)
            most = 0 if queue is None else queue.max_offset
            found[f"scheduleMessageOffset_{level}"] = f"{offset},{most}"
        for level, timers in sorted(self._sources.timer_figures.levels.copy().items()):
            if timers.is_used:
                found[f"{TIMERS_OF_LEVEL}{level}"] = timers.encode()
        return found


def _store_state(of: Sources) -> StoreState:
    """Return the state of a store: its content and its damage.

    Reads nothing from the disk except its free space, and visits no queues.
    """
    store, scrubbed = of.store, of.scrubbed.value
    log, ranges = store.commit_log, store.damage.ranges
    try:
        disk_bytes, free_bytes = of.system.disk.capacity(store.config.commit_log_dir)
    except OSError:
        disk_bytes, free_bytes = 0, 0
    return StoreState(
        log_files=len(log.queue.files),
        log_file_bytes=store.config.commit_log_file_bytes,
        log_start=log.min_offset(),
        log_end=log.end_offset,
        flushed=log.flushed_offset,
        dispatched=of.following.dispatched_offset,
        queues=len(store.consume_queues),
        index_files=0 if store.index is None else len(store.index.files),
        disk_bytes=disk_bytes,
        disk_free_bytes=free_bytes,
        damaged_places=len(ranges),
        damaged_bytes=sum(end - start for start, end, _ in ranges),
        damage=[DamagedPlace(*each) for each in ranges[:PLACES_MAX]],
        damaged_tables=[*of.tables.damaged_files.value],
        found_at_start=[
            f"{each.part}: {each.text}" for each in of.recovery.all_findings()[:FINDINGS_MAX]
        ],
        verified_percent=int(scrubbed.progress * 100),
        verified_ms=scrubbed.last_end_ms,
    )


def _capacity_text(disk: Disk, path: str) -> str:
    try:
        total, free = disk.capacity(path)
    except OSError:
        total, free = 0, 0
    return f"Total : {_bytes_text(total)}, Free : {_bytes_text(free)}."


def _distribution_text(durations: list[int] | None) -> str:
    """Return the puts of a minute by duration; `null` in the first minute, as in 4.9.7."""
    if durations is None:
        return "null"
    counts = [0] * len(_DISTRIBUTION)
    for end, count in zip((*PUT_BOUNDS_MS, inf), durations, strict=True):
        counts[bisect_left(_DISTRIBUTION_ENDS_MS, end)] += count
    return "".join(f"[{name}]:{count} " for name, count in zip(_DISTRIBUTION, counts, strict=True))


def _percentile_ms(durations: list[int] | None, part: float) -> float:
    """Return the duration that this part of a minute's puts did not exceed, interpolated."""
    total = sum(durations or ())
    wanted, before, begin = total * part, 0, 0.0
    for end, count in zip((*PUT_BOUNDS_MS, PUT_BOUNDS_MS[-1]), durations or (), strict=False):
        if count and wanted <= before + count:
            return begin + (end - begin) * (wanted - before) / count
        before, begin = before + count, float(end)
    return 0.0


def _span_text(span_ms: int) -> str:
    minutes, seconds = divmod(span_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes_text(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    value, unit = float(count), -1
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}iB"
