"""Broker metrics under the names of RocketMQ 5, as in its brokers since 5.1.4.

Source: BrokerMetricsConstant, DefaultStoreMetricsConstant, RemotingMetricsConstant of 5.3.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from actors.engine.histogram import END_BOUNDS_S, RPC_BOUNDS_MS, ClassCounts
from actors.metrics.lags import TopicLag
from actors.metrics.page import MetricsPage, escaped, labels, let_go
from actors.metrics.selection import (
    MetricsSelection,
    Row,
    column,
    flag,
    items_of,
    topic_labels,
)
from actors.metrics.sources import BrokerSources, FigureSet
from actors.statistics.counts import LARGE_BOUNDS, PUT_BOUNDS_MS, SMALL_BYTES, TopicCounts
from actors.tables.consumer_views import ClientCounts, ConsumerView
from actors.transactions.messages import OpenHalves
from protocol.codes import LanguageCode, RequestCode, ResponseCode, version_name
from protocol.topic_names import is_system_topic

SIZE_BOUNDS = (SMALL_BYTES, *LARGE_BOUNDS)
LATENCY_BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
CREATE_BOUNDS_MS = (10, 100, 1000, 3000, 5000)
REMOTING = "remoting"
PROCESSORS = {
    "send": "put_message",
    "async_put": "group_commit",
    "pull": "pull_message",
    "lite_pull": "pull_message",
    "query_message": "query_message",
    "client_manager": "clients",
    "heartbeat": "clients",
    "consumer_manager": "consumer_offsets",
    "transaction": "transactions",
    "admin": "broker_info",
    "reply": "reply_message",
}
"""Actors that do the work of RocketMQ's thread pools."""

_SENDS = "SEND_MESSAGE_V2"
_PULLS = "PULL_MESSAGE"
_CREATES = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: "rocketmq_topic_create_execution_time_milliseconds",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        "rocketmq_consumer_group_create_execution_time_milliseconds"
    ),
}
_LAGS: Sequence[tuple[str, int, str]] = (
    ("rocketmq_consumer_lag_messages", 0, "Consumer lag in messages"),
    ("rocketmq_consumer_inflight_messages", 1, "Messages in flight: pulled, not consumed"),
    ("rocketmq_consumer_ready_messages", 2, "Messages ready to pull"),
    (
        "rocketmq_consumer_lag_latency_milliseconds",
        3,
        "Age of the oldest message that is not consumed",
    ),
    ("rocketmq_consumer_lag_latency", 3, "Alias of rocketmq_consumer_lag_latency_milliseconds"),
    (
        "rocketmq_consumer_queueing_latency_milliseconds",
        4,
        "Age of the oldest message that is not pulled",
    ),
    (
        "rocketmq_consumer_queueing_latency",
        4,
        "Alias of rocketmq_consumer_queueing_latency_milliseconds",
    ),
)


class BrokerPage:
    """Families of one broker; owned by one thread."""

    def __init__(self, sources: BrokerSources, selection: MetricsSelection) -> None:
        self._from = sources
        self._selection = selection

    def write(
        self,
        page: MetricsPage,
        lags: Sequence[Row],
        topics_of_halves: Mapping[str, int],
        reading: FigureSet,
    ) -> None:
        """Write all families.

        `lags` come from `lag_rows`; `topics_of_halves` counts open transactions by topic, as far as
        known.
        """
        self._messages_in(page)
        self._messages_out(page)
        self._answers(page)
        self._lags(page, lags)
        self._connections(page, reading.of(ClientCounts).producers)
        self._tables(page)
        self._transactions(page, reading.of(OpenHalves), topics_of_halves)
        self._storage(page)

    # --- throughput

    def _shown_topics(self) -> Iterator[tuple[str, TopicCounts]]:
        topics, shows = self._from.tables.topics.value, self._selection.shows_topic
        for topic, counts in items_of(self._from.put_stats.by_topic):
            if shows(topic) and (topic in topics or is_system_topic(topic)):
                yield topic, counts

    def _messages_in(self, page: MetricsPage) -> None:
        rows: list[Row] = []
        sizes: list[Row] = []
        configs = self._from.tables.topics.value
        for topic, counts in self._shown_topics():
            config = configs.get(topic)
            plain = "fifo" if config is not None and config.order else "normal"
            sent = counts.count - counts.own_count, counts.bytes - counts.own_bytes
            rows.append(Row(topic, plain, counts.count, sent))
            for kind, count, size in (
                ("delay", counts.delayed_count, counts.delayed_bytes),
                ("transaction", counts.half_count, counts.half_bytes),
            ):
                if count:
                    rows.append(Row(topic, kind, count, (count, size)))
            large = tuple(counts.large)
            classes = (counts.times - sum(large), *large, counts.bytes)
            sizes.append(Row(topic, plain, counts.count, classes))
        rows = self._selection.limited(rows, write=_typed)
        page.counter("rocketmq_messages_in_total", "Messages sent", column(rows, 0))
        page.counter("rocketmq_throughput_in_total", "Bytes sent", column(rows, 1))
        let_go(rows)
        sizes = self._selection.limited(sizes, series_of_one=len(SIZE_BOUNDS) + 3, write=_typed)
        page.histogram(
            "rocketmq_message_size",
            "Bytes stored by a send request",
            SIZE_BOUNDS,
            ((row.text, [int(each) for each in row.values[:-1]], row.values[-1]) for row in sizes),
        )
        let_go(sizes)

    def _messages_out(self, page: MetricsPage) -> None:
        topics, groups = self._from.tables.topics.value, self._from.tables.groups.value
        selection = self._selection
        shown = [
            Row(topic, group, counts.count, (counts.count, counts.bytes))
            for (topic, group), counts in items_of(self._from.pull_stats.by_group)
            if topic in topics and group in groups and selection.shows_both(topic, group)
        ]
        dead = self._dead_letters(shown)
        rows = selection.limited(shown)
        page.counter("rocketmq_messages_out_total", "Messages pulled", column(rows, 0))
        page.counter("rocketmq_throughput_out_total", "Bytes pulled", column(rows, 1))
        let_go(rows)
        dead = selection.limited(dead, write=_dead)
        page.counter(
            "rocketmq_send_to_dlq_messages_total",
            "Messages sent to the dead-letter queue of a group",
            column(dead, 0),
        )
        let_go(dead)

    def _dead_letters(self, shown: Sequence[Row]) -> list[Row]:
        """Return dead letters of the shown pairs (0 if none), and of others that have some.

        A zero is needed so that a later rise is visible.
        """
        groups, counts = self._from.tables.groups.value, dict(self._from.put_stats.dead_letters)
        dead = []
        for row in shown:
            count = counts.pop((row.topic, row.group), 0)
            dead.append(Row(row.topic, row.group, count, (count,)))
        dead += [
            Row(topic, group, count, (count,))
            for (topic, group), count in counts.items()
            if group in groups and self._selection.shows_group(group)
        ]
        return dead

    def _answers(self, page: MetricsPage) -> None:
        puts, pulls = self._from.put_stats, self._from.pull_stats
        success = ResponseCode.SUCCESS.name
        rows = [
            (
                _answer_labels(_SENDS, success),
                regrouped(puts.durations, PUT_BOUNDS_MS, LATENCY_BOUNDS_MS),
                puts.total_ms,
            ),
            _answer_row(_answer_labels(_PULLS, success), pulls.found_ms),
            _answer_row(_answer_labels(_PULLS, ResponseCode.PULL_NOT_FOUND.name), pulls.missed_ms),
        ]
        creates: dict[str, dict[bool, list[ClassCounts]]] = {name: {} for name in _CREATES.values()}
        for code, response_code, took in self._from.answer_stats.all():
            rows.append(_answer_row(_answer_labels(*names_of(code, response_code)), took))
            if code in _CREATES:
                is_done = response_code == ResponseCode.SUCCESS
                creates[_CREATES[RequestCode(code)]].setdefault(is_done, []).append(took)
        page.histogram(
            "rocketmq_rpc_latency_milliseconds",
            "Time to answer; for sends the write, for pulls the read",
            LATENCY_BOUNDS_MS,
            rows,
        )
        for name, by_outcome in creates.items():
            page.histogram(
                name,
                "Time to create or change it",
                CREATE_BOUNDS_MS,
                [_create_row(is_done, found) for is_done, found in by_outcome.items()],
            )

    # --- groups

    def lag_rows(self, lags: Sequence[TopicLag]) -> list[Row]:
        """Return the rows to show with labels; own_page.py reads the values from 3 on by number."""
        for lag in lags:
            lag.weight = lag.consumed
            lag.values = (
                *(lag.lag, lag.in_flight, lag.ready, lag.oldest_ms, lag.oldest_ready_ms),
                *(lag.consumed, lag.stuck_queues, lag.stalled_ms, lag.moved_ms),
            )
        return self._selection.limited([*lags], greatest=(3, 4, 7, 8))

    def _lags(self, page: MetricsPage, rows: Sequence[Row]) -> None:
        for name, number, meaning in _LAGS:
            page.gauge(name, meaning, column(rows, number))

    def _connections(self, page: MetricsPage, producers: Mapping[tuple[int, int], int]) -> None:
        page.gauge(
            "rocketmq_producer_connections",
            "Connected producers",
            [(labels(_client(*kind)), count) for kind, count in producers.items()],
        )
        samples = []
        for group, view in self._from.tables.consumers.value.items():
            if self._selection.shows_group(group):
                kinds = Counter((each.language, each.version) for each in [*view.members.values()])
                for kind, count in kinds.items():
                    samples.append((labels(_consumer(group, view, *kind)), count))
        page.gauge(
            "rocketmq_consumer_connections",
            "Connected consumers",
            samples[: self._selection.series_max],
        )

    def _tables(self, page: MetricsPage) -> None:
        tables, waiting = self._from.tables, self._from.system.loop.depths()
        page.value("rocketmq_topic_number", "Topics", len(tables.topics.value))
        page.value("rocketmq_consumer_group_number", "Consumer groups", len(tables.groups.value))
        page.value(
            "rocketmq_broker_permission",
            "Permission of the broker: 2 write, 4 read, 6 both",
            self._from.config.broker_permission,
        )
        samples = []
        for processor, name in PROCESSORS.items():
            address = self._from.system.address(name)
            queue = address.own_queue()
            depth = waiting[address] if queue is None else queue.qsize()
            samples.append((labels({"processor": processor}), depth))
        page.gauge(
            "rocketmq_processor_watermark",
            "Inbox depth of the actor behind this processor",
            samples,
        )

    # --- transactions, storage

    def _transactions(
        self, page: MetricsPage, halves: OpenHalves, by_topic: Mapping[str, int]
    ) -> None:
        stats, shows = self._from.transaction_stats, self._selection.shows_topic
        for name, meaning, counts in (
            ("rocketmq_commit_messages_total", "Transactions committed", stats.committed),
            ("rocketmq_rollback_messages_total", "Transactions rolled back", stats.rolled_back),
        ):
            page.counter(name, meaning, self._by_topic(counts))
        open_ones = dict(by_topic)
        if halves.count > len(halves.offsets):
            open_ones["other"] = halves.count - len(halves.offsets)
        page.gauge("rocketmq_half_messages", "Open transactions", self._by_topic(open_ones))
        page.histogram(
            "rocketmq_finish_message_latency_milliseconds",
            "Seconds (not milliseconds) from half message to commit",
            END_BOUNDS_S,
            [
                (labels({"topic": topic}), list(found.counts), found.total)
                for topic, found in list(stats.seconds.copy().items())[
                    : self._selection.series_max // 9
                ]
                if shows(topic)
            ],
        )

    def _by_topic(self, counts: Mapping[str, int]) -> Iterator[tuple[str, float]]:
        rows = [
            Row(topic, "", count, (count,))
            for topic, count in dict(counts).items()
            if self._selection.shows_topic(topic)
        ]
        return column(self._selection.limited(rows, write=_topic), 0)

    def _storage(self, page: MetricsPage) -> None:
        log, system = self._from.store.commit_log, self._from.system
        where = labels({"storage_type": "local", "storage_medium": "disk"})
        first, end = log.min_offset(), log.end_offset
        record = log.read_record(first) if end > first else None
        stored_ms = now_ms = system.clock.now_ms()
        if record is not None:
            stored_ms = log.came_at(first, record.store_timestamp)
        kept_ms = max(0, now_ms - stored_ms)
        behind = max(0, end - self._from.following.dispatched_offset)
        for name, meaning, value in (
            ("storage_size_bytes", "Bytes of the commit log", end - first),
            ("storage_flush_behind_bytes", "Bytes not synced", max(0, end - log.flushed_offset)),
            ("storage_dispatch_behind_bytes", "Bytes not dispatched", behind),
            ("storage_message_reserve_time_milliseconds", "Age of the oldest message", kept_ms),
        ):
            page.gauge(f"rocketmq_{name}", meaning, [(where, value)])


def names_of(code: int, response_code: int) -> tuple[str, str]:
    """Return the names of both codes; an unknown code is its number."""
    request = RequestCode(code).name if code in _REQUESTS else str(code)
    response = ResponseCode(response_code).name if response_code in _RESPONSES else None
    if code == RequestCode.POP_MESSAGE:  # where these numbers have another meaning
        response = _POLLING.get(response_code, response)
    return request, response or str(response_code)


_REQUESTS = frozenset(int(code) for code in RequestCode)
_RESPONSES = frozenset(int(code) for code in ResponseCode)
_POLLING = {
    int(ResponseCode.POLLING_FULL): "POLLING_FULL",
    int(ResponseCode.POLLING_TIMEOUT): "POLLING_TIMEOUT",
}


def regrouped(counts: Sequence[int], bounds: Sequence[float], wanted: Sequence[float]) -> list[int]:
    """Return counts for other bounds; a class across a bound counts above it."""
    found = [0] * (len(wanted) + 1)
    for count, end in zip(counts, (*bounds, float("inf")), strict=True):
        found[next((n for n, limit in enumerate(wanted) if end <= limit), len(wanted))] += count
    return found


def _answer_labels(request: str, response: str) -> str:
    is_done = response != ResponseCode.SYSTEM_ERROR.name
    return labels(
        {
            "protocol_type": REMOTING,
            "request_code": request,
            "response_code": response,
            "is_long_polling": "false",
            "result": "success" if is_done else "process_request_failed",
        }
    )


def _answer_row(text: str, took: ClassCounts) -> tuple[str, list[int], float]:
    counts = regrouped(list(took.counts), RPC_BOUNDS_MS, LATENCY_BOUNDS_MS)
    return text, counts, took.total


def _create_row(is_done: bool, found: Sequence[ClassCounts]) -> tuple[str, list[int], float]:
    text = labels({"invocation_status": "success" if is_done else "failure", "is_system": "false"})
    parts = [regrouped(list(each.counts), RPC_BOUNDS_MS, CREATE_BOUNDS_MS) for each in found]
    return text, [sum(column) for column in zip(*parts, strict=True)], sum(f.total for f in found)


def _typed(row: Row) -> str:
    topic, _, is_system = topic_labels(row.topic)
    return f'{topic},message_type="{row.group}",is_system="{is_system}"'


def _dead(row: Row) -> str:
    topic, _, is_system = topic_labels(row.topic)
    return f'consumer_group="{escaped(row.group)}",{topic},is_system="{is_system}"'


def _topic(row: Row) -> str:
    return topic_labels(row.topic)[0]


def _client(language: int, version: int) -> dict[str, str]:
    known = language in _LANGUAGES
    return {
        "language": LanguageCode(language).name if known else str(language),
        "version": version_name(version),
        "protocol_type": REMOTING,
    }


_LANGUAGES = frozenset(int(code) for code in LanguageCode)


def _consumer(group: str, view: ConsumerView, language: int, version: int) -> dict[str, str]:
    return {
        **_client(language, version),
        "consumer_group": group,
        "consume_mode": "push" if view.consume_type == "CONSUME_PASSIVELY" else "pull",
        "is_system": flag(group.startswith("CID_RMQ_SYS_")),
    }
