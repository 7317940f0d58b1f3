"""Answers about the broker itself: how it is doing.

Owns: the samples behind its figures.   Told by: connections (`Request`), its own tick.

Of 4.9.7's figures those are there that mean the same here; what its thread pools had to report is
answered with the mail that waits for the actors that do their work.

Source: AdminBrokerProcessor.prepareRuntimeInfo, DefaultMessageStore.getRuntimeInfo.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from actors.actor import handles
from actors.config import BrokerConfig
from actors.pull_message import PullStats
from actors.put_stats import PutStats
from actors.reput import Following
from actors.request import Request, Responder, serves
from actors.throughput import SAMPLE_MS, DailyTotals, Throughput
from protocol.bodies import KVTable
from protocol.codes import VERSION, RequestCode
from protocol.command import RemotingCommand
from storage.cleaning import used_ratio
from storage.message_store import MessageStore

VERSION_NAME = "V4_9_7"
_PUTS, _PULLS, _GETS = range(3)
_UNITS = "KMGTPE"


class Sources(Protocol):
    """Where the figures come from: the broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def put_stats(self) -> PutStats: ...
    @property
    def pull_stats(self) -> PullStats: ...
    @property
    def following(self) -> Following: ...


@dataclass(frozen=True, slots=True)
class _Sample:
    """A second has passed."""


class BrokerInfo(Responder):
    """Lives on the loop."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self._sources = sources
        self._throughput = Throughput()
        self._puts_by_day, self._gets_by_day = DailyTotals(), DailyTotals()
        self._boot_ms = 0

    def on_start(self) -> None:
        self._boot_ms = self.system.clock.now_ms()
        self._take_sample()
        self.every(SAMPLE_MS, _Sample())

    @handles(_Sample)
    def on_sample(self, _: _Sample) -> None:
        """Notes the counters."""
        self._take_sample()

    def _take_sample(self) -> None:
        puts, gets = self._sources.put_stats.put_count, self._sources.pull_stats.get_count
        pulls = self._sources.pull_stats.pull_count
        self._throughput.sample(self.system.clock.monotonic_ms(), (puts, pulls, gets))
        day = datetime.fromtimestamp(self.system.clock.now_ms() / 1000).date().isoformat()
        self._puts_by_day.note(day, puts)
        self._gets_by_day.note(day, gets)

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, request: Request) -> RemotingCommand:
        """How the broker is doing; every figure is a text."""
        figures = {**self._store_figures(), **self._traffic_figures(), **self._waiting_figures()}
        return request.command.answer(body=KVTable(figures).encode())

    def _store_figures(self) -> dict[str, str]:
        store = self._sources.store
        log, config, disk = store.commit_log, store.config, self.system.disk
        log_ratio = str(used_ratio(disk, config.commit_log_dir))
        first = log.read_record(log.min_offset()) if log.end_offset > log.min_offset() else None
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
            "earliestMessageTimeStamp": str(first.store_timestamp if first is not None else -1),
            "dispatchBehindBytes": str(
                max(0, log.end_offset - self._sources.following.dispatched_offset)
            ),
            "remainHowManyDataToFlush": _bytes_text(max(0, log.end_offset - log.flushed_offset)),
        }

    def _traffic_figures(self) -> dict[str, str]:
        puts, pulls = self._sources.put_stats, self._sources.pull_stats
        average = puts.put_bytes / puts.put_count if puts.put_count else 0.0
        return {
            "putTps": self._throughput.text(_PUTS),
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
        }

    def _waiting_figures(self) -> dict[str, str]:
        address, waiting = self.system.address, self.system.loop.depths()
        return {
            "sendThreadPoolQueueSize": str(waiting[address("put_message")]),
            "pullThreadPoolQueueSize": str(waiting[address("pull_message")]),
            # a loop serves its mail round by round, so the oldest has waited for a round at most
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
        }


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
