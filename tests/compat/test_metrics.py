"""Metrics: what mqadmin says of the same broker, and what an official one says after the same.

The exporter's names are compared with what rocketmq-exporter reads for them (MetricsCollectTask):
its values come from requests of the official tools, so these are asked here, of our broker and of
an official one. Both get the same: messages that are consumed, a group that is late, one message
that is retried and one that is given up. What time alone moves is compared at our broker only.
"""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from actors.metrics.exporter_page import PLAIN, PUT_CLASSES, RATES, RUNTIME, WINDOWS
from protocol.bodies import KVTable
from protocol.bodies_admin import (
    ConsumerConnection,
    ConsumeStatsBody,
    GroupList,
    ProducerTable,
    TopicStatsTable,
)
from protocol.codes import RequestCode as Code
from protocol.command import RemotingCommand
from protocol.headers.admin import ConsumerGroupHeader, GetConsumeStatsHeader, TopicHeader
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tests.actors.metrics.names import EXPORTER
from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.test_administration import FIGURE
from tests.compat.toolchain import Java
from tests.support.metrics import Found, samples, value
from tests.support.wire import Wire
from troupemq import Admin, BrokerError, Message, Producer, PullConsumer, PushConsumer, SendResult
from troupemq.cli.admin.session import Session
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import MessageQueue

TOPIC, GROUP, LATE = "IT-metrics", "IT-metrics-group", "IT-metrics-late"
QUEUES, COUNT = 4, 12
MOVING = ("pageCacheLockTimeMills", "putLatency99", "putLatency999", "dispatchBehindBytes")
"""Figures of code 28 that are another one each time."""

SAME_EVERYWHERE = (
    *("putmessage_times_total", "put_message_size_total", "commitlog_maxoffset"),
    *("msg_put_total_today_now", "commitlog_minoffset", "dispatch_behind_bytes"),
    *("dispatch_maxbuffer", "msg_puttotal_todaymorning", "msg_puttotal_yesterdaymorning"),
    *("msg_gettotal_todaymorning", "msg_gettotal_yesterdaymorning"),
    *("send_threadpool_queue_size", "send_threadpoolqueue_capacity"),
    *("send_threadpoolqueue_headwait_timemills", "pull_threadpoolqueue_size"),
    *("pull_threadpoolqueue_capacity", "pull_threadpoolqueue_headwait_timemills"),
    *("query_threadpoolqueue_size", "query_threadpool_queue_capacity"),
    *("query_threadpoolqueue_headwait_timemills", "remain_transientstore_buffer_numbs"),
)
"""Figures of code 28 that the same traffic gives at both."""

GROWING = SAME_EVERYWHERE[:4]
"""Those of them that count what was there before, too."""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Name and labels → value."""


@contextmanager
def lived_in(broker: Broker) -> Iterator[None]:
    """The same at each broker; the consumer and the producer stay."""
    namesrv = broker.name_server.address
    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, QUEUES)
    seen: list[str] = []
    first = ConsumeFrom.FIRST_OFFSET
    with (
        Producer(f"{GROUP}-producers", namesrv) as producer,
        PushConsumer(
            GROUP,
            lambda views: seen.extend(view.message_id for view in views),
            namesrv,
            begin=first,
        ) as consumer,
    ):
        sent = [send(producer, number) for number in range(COUNT)]
        consumer.subscribe(TOPIC)
        wait_until(lambda: len(set(seen)) == COUNT, "all messages consumed")
        for result, level in ((sent[0], -1), (sent[1], 1)):
            send_back(broker, result, level)
        wait_until(lambda: len(seen) == COUNT + 1, "one again, by the retry topic")
        with PullConsumer(LATE, namesrv, auto_commit=False, begin=first) as late:
            late.commit(dict.fromkeys(late.fetch_queues(TOPIC), 1))
        with Session(namesrv) as session:
            consumed = {TOPIC: COUNT, f"{RETRY_TOPIC_PREFIX}{GROUP}": 1}
            wait_until(
                lambda: {each: offsets_sum(session, broker, each) for each in consumed} == consumed,
                "the offsets to be committed",
            )
        yield


def send(producer: Producer, number: int) -> SendResult:
    queue = MessageQueue(TOPIC, BROKER_NAME, number % QUEUES)
    message = Message(TOPIC, b"x" * (100 + number), tags="A", keys=f"key-{number:02}")
    return producer.send(message, queue=queue)


def send_back(broker: Broker, result: SendResult, level: int) -> None:
    offset = int(result.offset_message_id[-16:], 16)
    header = ConsumerSendMsgBackHeader(offset, GROUP, level, result.message_id, TOPIC)
    with Wire(broker.address) as wire:
        assert wire.ask(RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())).code == 0


def stats_of(session: Session, broker: Broker, group: str, topic: str) -> ConsumeStatsBody:
    header = GetConsumeStatsHeader(group, topic)
    return session.read(ConsumeStatsBody, broker.address, Code.GET_CONSUME_STATS, header)


def offsets_sum(session: Session, broker: Broker, topic: str) -> int:
    try:
        table = stats_of(session, broker, GROUP, topic).offset_table
    except BrokerError:
        return 0
    return sum(each.consumer_offset for each in table.values())


@pytest.fixture(scope="module")
def ours(
    scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> Iterator[Broker]:
    folder = scratch / "metrics"
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
    settings |= {"metricsSystemTopics": "true", "traceTopicEnable": "true"}
    with (
        make_name_server("ours", folder / "names") as names,
        make_broker("ours", folder / "broker", names, **settings) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def official_before(official_pair: tuple[Broker, Broker]) -> dict[str, str]:
    """Its figures before all this: it serves other modules, too."""
    return figures_of(official_pair[0])


@pytest.fixture(scope="module")
def both(
    ours: Broker, official_pair: tuple[Broker, Broker], official_before: dict[str, str]
) -> Iterator[tuple[Broker, Broker]]:
    """Ours and an official one, each with the same life."""
    with lived_in(ours), lived_in(official_pair[0]):
        yield ours, official_pair[0]


def figures_of(broker: Broker) -> dict[str, str]:
    """What code 28 answers."""
    with Session(broker.name_server.address) as session:
        return session.read(KVTable, broker.address, Code.GET_BROKER_RUNTIME_INFO).table


@pytest.fixture(scope="module")
def run(java_tools: Java, both: tuple[Broker, Broker]) -> Iterator[Shell]:
    """The official mqadmin at our broker."""
    with admin_shell(java_tools, both[0].scratch, both[0].name_server.address) as shell:
        yield shell


def scraped(broker: Broker, path: str) -> Found:
    port = json.loads((broker.scratch / "ready").read_text())["metrics"]
    line = HTTPConnection("127.0.0.1", port, timeout=60)
    line.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = line.getresponse()
    assert answer.status == 200
    text = gzip.decompress(answer.read()).decode()
    line.close()
    return samples(text)


def series(name: str, number: float, **labels: str) -> Series:
    return {(f"rocketmq_{name}", tuple(sorted(labels.items()))): number}


def as_the_exporter_reads(session: Session, broker: Broker) -> Series:
    """What it would show of TOPIC and its groups, by the requests that it makes."""
    found: Series = {}
    address = broker.address
    for topic in (TOPIC, f"{RETRY_TOPIC_PREFIX}{GROUP}", f"{DLQ_TOPIC_PREFIX}{GROUP}"):
        header = TopicHeader(topic)
        table = session.read(TopicStatsTable, address, Code.GET_TOPIC_STATS_INFO, header)
        ends = sum(each.max_offset for each in table.offset_table.values())
        if topic.startswith(DLQ_TOPIC_PREFIX):
            found |= series("topic_dlq_offset", ends, group=GROUP)
            continue
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        found |= series("topic_retry_offset" if is_retry else "producer_offset", ends, topic=topic)
        groups = session.read(GroupList, address, Code.QUERY_TOPIC_CONSUME_BY_WHO, header)
        for group in groups.group_list:
            found |= _of_group(session, broker, topic, group)
    producers = session.read(ProducerTable, address, Code.GET_ALL_PRODUCER_INFO)
    own = producers.data.get(f"{GROUP}-producers", [])
    return found | series("producer_count", len(own), group=f"{GROUP}-producers")


def _of_group(session: Session, broker: Broker, topic: str, group: str) -> Series:
    members = 0
    try:
        code = Code.GET_CONSUMER_CONNECTION_LIST
        header = ConsumerGroupHeader(group)
        online = session.read(ConsumerConnection, broker.address, code, header)
        members = len(online.connection_set)
    except BrokerError:
        pass  # nobody is there
    table = stats_of(session, broker, group, topic).offset_table
    behind = sum(each.broker_offset - each.consumer_offset for each in table.values())
    consumed = sum(each.consumer_offset for each in table.values())
    name = "group_retrydiff" if topic.startswith(RETRY_TOPIC_PREFIX) else "group_diff"
    labels = {"countOfOnlineConsumers": str(members), "msgModel": "1"}
    found = series(name, behind, group=group, topic=topic, **labels)
    if members:
        found |= series("group_count", members, group=group)
    if name == "group_diff":
        found |= series("consumer_offset", consumed, topic=topic, group=group)
    return found


def shown_of(page: Found, wanted: Series) -> Series:
    """The same series of a scrape, by the labels that are wanted."""
    found: Series = {}
    for name, labels in wanted:
        for own, number in page.get(name, []):
            if all(own.get(key) == text for key, text in labels):
                found[name, labels] = found.get((name, labels), 0) + number
    return found


def test_the_exporters_values_are_those_of_the_requests_that_it_makes(
    both: tuple[Broker, Broker],
) -> None:
    ours, official = both
    page = scraped(ours, "/metrics/exporter?collect=client")
    assert {name for name in EXPORTER if not page.get(name)} == set(), "all have values here"
    with Session(ours.name_server.address) as session:
        wanted = as_the_exporter_reads(session, ours)
    assert len(wanted) >= 10 and shown_of(page, wanted) == wanted
    with Session(official.name_server.address) as session:
        wait_until(lambda: as_the_exporter_reads(session, official) == wanted, "the same there")
    cluster = {"cluster": CLUSTER, "broker": BROKER_NAME}
    assert value(page, "rocketmq_producer_offset", topic=TOPIC, **cluster) == COUNT


def test_runtime_figures_are_those_of_an_official_broker(
    both: tuple[Broker, Broker], official_before: dict[str, str]
) -> None:
    """Whatever the same traffic determines."""
    ours, official = both
    there, page = figures_of(official), scraped(ours, "/metrics/exporter")
    shown = {name: value(page, RUNTIME + name) for name in SAME_EVERYWHERE}
    told = {name: float(there[PLAIN[name]]) for name in SAME_EVERYWHERE}
    for name in GROWING:
        told[name] -= float(official_before[PLAIN[name]])
    assert shown == told
    average = shown["put_message_size_total"] / shown["putmessage_times_total"]
    assert value(page, f"{RUNTIME}put_message_average_size") == pytest.approx(average)


def test_runtime_figures_are_those_of_broker_status(
    both: tuple[Broker, Broker], run: Shell
) -> None:
    ours, _ = both

    def differences() -> dict[str, tuple[float, str]]:
        status = dict(FIGURE.findall(run("brokerStatus", "-b", ours.address)))
        page = scraped(ours, "/metrics/exporter")
        found = {}
        for name, own in PLAIN.items():
            number = value(page, RUNTIME + name)
            if own not in MOVING and number != float(status[own]):
                found[name] = number, status[own]
        for name, own in RATES.items():
            for window, text in zip(WINDOWS, status[own].split(), strict=True):
                number = value(page, RUNTIME + name + window)
                if abs(number - float(text)) > 0.2 + 0.2 * number:
                    found[name + window] = number, text
        counts = re.findall(r"\]:(\d+)", status["putMessageDistributeTime"])
        for name, text in zip(PUT_CLASSES, counts or ["0"] * len(PUT_CLASSES), strict=True):
            if (number := value(page, RUNTIME + name)) != float(text):
                found[name] = number, text
        return found

    wait_until(lambda: differences() == {}, f"the figures of one moment: {differences()}", 20.0)


def test_offsets_lags_and_rates_are_those_of_mqadmin(
    both: tuple[Broker, Broker], run: Shell
) -> None:
    ours, _ = both
    rows = [line.split() for line in run("topicStatus", "-t", TOPIC).splitlines()[1:]]
    old, native = scraped(ours, "/metrics/exporter"), scraped(ours, "/metrics")
    assert value(old, "rocketmq_producer_offset", topic=TOPIC) == sum(int(row[3]) for row in rows)
    assert value(native, "rocketmq_messages_in_total", topic=TOPIC, message_type="normal") == COUNT
    for group, lag in ((GROUP, 0), (LATE, COUNT - QUEUES)):
        printed = run("consumerProgress", "-g", group)
        total = re.search(r"Diff Total: (\d+)", printed)
        shown = [
            number
            for labels, number in native["rocketmq_consumer_lag_messages"]
            if labels["consumer_group"] == group
        ]
        assert total and sum(shown) == int(total[1]) == lag
        assert value(old, "rocketmq_group_diff", group=group, topic=TOPIC) == lag

    def rates() -> bool:
        row = next(line for line in run("statsAll", "-t", TOPIC).splitlines() if GROUP in line)
        in_tps, out_tps = map(float, row.split()[3:5])
        page = scraped(ours, "/metrics/exporter")
        shown_in = value(page, "rocketmq_producer_tps", topic=TOPIC)
        shown_out = value(page, "rocketmq_consumer_tps", topic=TOPIC, group=GROUP)
        return abs(shown_in - in_tps) < 0.01 and abs(shown_out - out_tps) < 0.01

    wait_until(rates, "the rates of one moment", 20.0)


def test_a_dead_letter_and_a_retry_are_counted_as_mqadmin_finds_them(
    both: tuple[Broker, Broker], run: Shell
) -> None:
    ours, _ = both
    native, old = scraped(ours, "/metrics"), scraped(ours, "/metrics/exporter")
    for prefix, name, labels in (
        (DLQ_TOPIC_PREFIX, "topic_dlq_offset", {"group": GROUP}),
        (RETRY_TOPIC_PREFIX, "topic_retry_offset", {"topic": RETRY_TOPIC_PREFIX + GROUP}),
    ):
        rows = run("topicStatus", "-t", prefix + GROUP).splitlines()[1:]
        ends = sum(int(line.split()[3]) for line in rows)
        assert value(old, f"rocketmq_{name}", **labels) == ends == 1
    dead = "rocketmq_send_to_dlq_messages_total"
    assert value(native, dead, consumer_group=GROUP, topic=TOPIC) == 1
