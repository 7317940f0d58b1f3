"""Broker metrics under the names of rocketmq-exporter, for its dashboards and alert rules.

All are gauges, as in the exporter. Figures of thread pools are inbox depths of the actors. The
names with client_ are in client_figures.py.

Source: RMQMetricsCollector of apache/rocketmq-exporter.
"""

from collections.abc import Callable, Mapping, Sequence
from re import compile as compile_pattern

from actors.admin.broker_info import VERSION_NAME, RuntimeFigures
from actors.metrics.client_figures import ConsumerAnswers, write_client_figures
from actors.metrics.lags import TopicLag
from actors.metrics.page import MetricsPage, escaped, labels, let_go
from actors.metrics.selection import (
    MetricsSelection,
    Row,
    column,
    items_of,
    topic_labels,
)
from actors.metrics.sources import BrokerSources, FigureSet
from actors.tables.tables import Rates
from protocol.codes import VERSION
from protocol.host import host_port
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic
from storage.tables.offsets import offset_key

RUNTIME = "rocketmq_brokeruntime_"
PUT_CLASSES = (
    *("pmdt_0ms", "pmdt_0to10ms", "pmdt_10to50ms", "pmdt_50to100ms", "pmdt_100to200ms"),
    *("pmdt_200to500ms", "pmdt_500to1s", "pmdt_1to2s", "pmdt_2to3s", "pmdt_3to4s"),
    *("pmdt_4to5s", "pmdt_5to10s", "pmdt_10stomore"),
)
WINDOWS = ("10", "60", "600")
RATES = {
    "put_tps": "putTps",
    "getfound_tps": "getFoundTps",
    "getmiss_tps": "getMissTps",
    "gettotal_tps": "getTotalTps",
    "gettransfered_tps": "getTransferedTps",
}
PLAIN = {
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
}
"""Exporter's names, each with the broker's name (code 28)."""

_COUNT = compile_pattern(r"\]:(\d+)")
_ADDRESSES_SHOWN_MAX = 20


class ExporterPage:
    """Families of one broker; owned by one thread."""

    def __init__(self, sources: BrokerSources, selection: MetricsSelection, port: int) -> None:
        self._from, self._selection = sources, selection
        config = sources.config
        self._cluster, self._broker = config.broker_cluster_name, config.broker_name
        self._address = host_port(config.broker_ip1, port)
        self._of_cluster = labels({"cluster": self._cluster})
        self._own = labels({"cluster": self._cluster, "broker": self._broker})

    def write(self, page: MetricsPage, lags: Sequence[TopicLag], reading: FigureSet) -> None:
        """Write all families; `lags` includes retry and dead-letter topics."""
        rates = self._from.tables.rates.value
        self._runtime(page, reading.of(RuntimeFigures).texts)
        self._broker_rates(page, rates)
        self._topics(page, rates)
        shown = [lag for lag in lags if not is_system_topic(lag.topic)]
        self._groups(page, shown, rates)
        self._diffs(page, lags)
        self._members(page)
        write_client_figures(page, reading.of(ConsumerAnswers).found, self._selection)

    # --- broker

    def _runtime(self, page: MetricsPage, figures: Mapping[str, str]) -> None:
        text = labels(
            {
                "cluster": self._cluster,
                "brokerIP": self._address,
                "brokerHost": self._broker,
                "des": VERSION_NAME,
                "boottime": figures.get("bootTimestamp", "0"),
                "broker_version": str(VERSION),
            }
        )
        log, disk = self._from.store.commit_log, self._from.system.disk
        try:
            total, free = disk.capacity(self._from.store.config.root)
        except OSError:
            total, free = 0, 0
        counts = [int(each) for each in _COUNT.findall(figures.get("putMessageDistributeTime", ""))]
        found: dict[str, float] = {
            **dict(zip(PUT_CLASSES, counts or [0] * len(PUT_CLASSES), strict=True)),
            **{name: float(figures.get(own, "0")) for name, own in PLAIN.items()},
            "remain_howmanydata_toflush": max(0, log.end_offset - log.flushed_offset),
            "commitlogdir_capacity_total": total,
            "commitlogdir_capacity_free": free,
        }
        for name, own in RATES.items():
            values = figures.get(own, "0 0 0").split()
            found.update({name + w: float(v) for w, v in zip(WINDOWS, values, strict=True)})
        for name, value in found.items():
            page.gauge(
                RUNTIME + name, "Value of GET_BROKER_RUNTIME_INFO (code 28)", [(text, value)]
            )

    def _broker_rates(self, page: MetricsPage, rates: Rates) -> None:
        text = labels({"cluster": self._cluster, "brokerIP": self._address, "broker": self._broker})
        replicas, end = self._from.replicas, self._from.store.commit_log.end_offset
        behind = max(0, end - replicas.acked_offset) if replicas.link_count else 0
        for name, meaning, value in (
            ("broker_tps", "Stored messages per second", rates.of_broker(is_put=True)),
            ("broker_qps", "Pulled messages per second", rates.of_broker(is_put=False)),
            ("broker_commitlog_diff", "Bytes not acknowledged by a slave", behind),
        ):
            page.gauge(f"rocketmq_{name}", meaning, [(text, value)])

    # --- topics

    def _topics(self, page: MetricsPage, rates: Rates) -> None:
        rows: list[Row] = []
        special: dict[str, list[Row]] = {RETRY_TOPIC_PREFIX: [], DLQ_TOPIC_PREFIX: []}
        for topic, config in items_of(self._from.tables.topics.value):
            end = sum(
                queue.max_offset
                for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
                if (queue := self._from.store.consume_queues.get(topic, queue_id)) is not None
            )
            prefix = next((each for each in special if topic.startswith(each)), None)
            if prefix is not None:
                special[prefix].append(Row(topic, "", end, (end,)))
            elif self._selection.shows_topic(topic):
                tps, size = rates.put(topic)
                rows.append(Row(topic, "", end, (tps, size, end)))
        rows = self._selection.limited(rows, write=self._topic_labels)
        for number, (name, meaning) in enumerate(
            (
                ("producer_tps", "Sent messages per second"),
                ("producer_message_size", "Sent bytes per second"),
                ("producer_offset", "Sum of the max offsets"),
            )
        ):
            page.gauge(f"rocketmq_{name}", meaning, column(rows, number))
        let_go(rows)
        for prefix, name, write in (
            (RETRY_TOPIC_PREFIX, "topic_retry_offset", self._topic_labels),
            (DLQ_TOPIC_PREFIX, "topic_dlq_offset", self._dead_labels),
        ):
            found = self._selection.limited(special[prefix], write=write)
            page.gauge(f"rocketmq_{name}", "Sum of the max offsets", column(found, 0))
            let_go(found)

    def _topic_labels(self, row: Row) -> str:
        return f"{self._own},{topic_labels(row.topic)[0]}"

    def _dead_labels(self, row: Row) -> str:
        group = row.topic.removeprefix(DLQ_TOPIC_PREFIX)
        return f'{self._own},group="{escaped(group)}"'

    # --- groups

    def _groups(self, page: MetricsPage, lags: Sequence[TopicLag], rates: Rates) -> None:
        """Write the families by topic and group, and their variants with other labels."""
        rows: list[Row] = []
        for lag in lags:
            key = offset_key(lag.topic, lag.group)
            (tps, size), back = rates.got(key), rates.sent_back(key)
            values = (tps, size, lag.consumed, back, lag.oldest_ms, lag.lag)
            rows.append(Row(lag.topic, lag.group, lag.consumed, values))
        rows = self._selection.limited(rows, greatest=(4,), write=self._group_labels)
        for name, number, meaning in (
            ("consumer_tps", 0, "Pulled messages per second"),
            ("consumer_message_size", 1, "Pulled bytes per second"),
            ("consumer_offset", 2, "Sum of the consumer offsets"),
            ("group_consume_tps", 0, "Pulled messages per second"),
            ("group_consume_total_offset", 2, "Sum of the consumer offsets"),
            ("send_back_nums", 3, "Messages sent back in the last minute"),
            (
                "group_get_latency_by_storetime",
                4,
                "Age of the oldest message that is not consumed, ms",
            ),
        ):
            page.gauge(f"rocketmq_{name}", meaning, column(rows, number))
        for name, write in (
            ("message_accumulation", self._accumulation_labels),
            ("group_diff", self._diff_labels),
        ):
            samples = ((write(row), row.values[5]) for row in rows)
            page.gauge(f"rocketmq_{name}", "Messages not consumed", samples)
        let_go(rows)

    def _group_labels(self, row: Row) -> str:
        return f'{self._own},{topic_labels(row.topic)[0]},group="{escaped(row.group)}"'

    def _accumulation_labels(self, row: Row) -> str:
        return f'{self._of_cluster},group="{escaped(row.group)}",{topic_labels(row.topic)[0]}'

    def _diffs(self, page: MetricsPage, lags: Sequence[TopicLag]) -> None:
        retries: list[Row] = []
        for lag in lags:
            if lag.topic.startswith(RETRY_TOPIC_PREFIX):
                retries.append(Row(lag.topic, lag.group, lag.consumed, (lag.lag,)))
        for name, rows in (("group_retrydiff", retries), ("group_dlqdiff", self._dead())):
            shown = self._selection.limited(rows, write=self._diff_labels)
            page.gauge(f"rocketmq_{name}", "Messages not consumed", column(shown, 0))
            let_go(shown)

    def _dead(self) -> list[Row]:
        offsets, rows = self._from.tables.live_offsets.value, []
        for topic, config in items_of(self._from.tables.topics.value):
            group = topic.removeprefix(DLQ_TOPIC_PREFIX)
            if group == topic or not self._selection.shows_group(group):
                continue
            own = dict(offsets.get(offset_key(topic, group), {}))
            behind = sum(
                max(0, queue.max_offset - own.get(queue_id, 0))
                for queue_id in range(config.write_queue_nums)
                if (queue := self._from.store.consume_queues.get(topic, queue_id)) is not None
            )
            rows.append(Row(topic, group, behind, (behind,)))
        return rows

    def _diff_labels(self, row: Row) -> str:
        view = self._from.tables.consumers.value.get(row.group)
        is_broadcast = view is not None and view.message_model == "BROADCASTING"
        return (
            f'group="{escaped(row.group)}",{topic_labels(row.topic)[0]},'
            f'countOfOnlineConsumers="{0 if view is None else len(view.members)}",'
            f'msgModel="{0 if is_broadcast else 1}"'
        )

    def _members(self, page: MetricsPage) -> None:
        shows: Callable[[str], bool] = self._selection.shows_group
        tables, most = self._from.tables, self._selection.series_max
        members: list[tuple[str, float]] = []
        for group, view in tables.consumers.value.items():
            if shows(group):
                remotes = sorted(each.peer.remote for each in [*view.members.values()])
                shown = ",".join(remotes[:_ADDRESSES_SHOWN_MAX])
                pairs: Mapping[str, str] = {"caddr": shown, "localaddr": "", "group": group}
                members.append((labels(pairs), len(remotes)))
        page.gauge("rocketmq_group_count", "Members of a group", members[:most])
        producers = [
            (
                labels({"cluster": self._cluster, "broker": self._broker, "group": group}),
                sum(len(each.peers) for each in same),
            )
            for group, same in tables.producers.value.items()
            if shows(group)
        ]
        page.gauge("rocketmq_producer_count", "Producers of a group", producers[:most])
