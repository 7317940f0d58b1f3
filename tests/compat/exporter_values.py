"""Values of rocketmq-exporter for a broker, from its requests, and of our scrapes.

Its MetricsCollectTask derives its values from official admin requests. The compared brokers get
equal traffic: consumed messages, a lagging group, one retried message and one dead letter.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection

from protocol.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStatsBody,
    GroupList,
    ProducerTable,
    TopicStatsTable,
)
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import ConsumerGroupHeader, GetConsumeStatsHeader, TopicHeader
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tests.compat.conftest import wait_for_route
from tests.compat.groups import wait_for_commits
from tests.compat.patience import wait_until
from tests.compat.remoting import has_key
from tests.compat.servers import BROKER_NAME, Broker
from tests.support.metrics import Found, samples
from tests.support.wire import Wire
from troupemq import Admin, BrokerError, Message, Producer, PullConsumer, PushConsumer, SendResult
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import MessageQueue

TOPIC, GROUP, LATE = "IT-operators", "IT-operators-group", "IT-operators-late"
QUEUES, COUNT = 4, 12
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

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Name and labels → value."""


@dataclass(frozen=True)
class Life:
    """Messages sent to a broker, and their consumers."""

    results: list[SendResult]
    consumer: str
    """The consumer's client id."""


@contextmanager
def lived_in(broker: Broker) -> Iterator[Life]:
    """Send and consume the same at each broker; consumer and producer stay connected."""
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
            wait_for_route(broker, f"{RETRY_TOPIC_PREFIX}{LATE}")  # with its first heartbeat
        settle(broker)
        yield Life(sent, consumer.client_id)


def settle(broker: Broker) -> None:
    """Until the broker and its name server tell all of it: who is there, what is committed, found.

    They are told in turn, by heartbeats, by commits every few seconds, by what follows the log.
    """
    every_queue = range(QUEUES)
    wait_for_commits(broker, GROUP, TOPIC, dict.fromkeys(every_queue, COUNT // QUEUES))
    wait_for_commits(broker, GROUP, f"{RETRY_TOPIC_PREFIX}{GROUP}", {0: 1})
    wait_for_commits(broker, LATE, TOPIC, dict.fromkeys(every_queue, 1))
    for topic in (f"{RETRY_TOPIC_PREFIX}{GROUP}", f"{DLQ_TOPIC_PREFIX}{GROUP}"):
        wait_for_route(broker, topic)
    wait_until(lambda: has_key(broker.address, TOPIC, f"key-{COUNT - 1:02}"), "the index")
    with Admin(broker.name_server.address) as session:
        wanted = {GROUP: 1, LATE: 0}
        wait_until(
            lambda: {each: len(members_of(session, broker, each)) for each in wanted} == wanted,
            "the members",
        )
        wait_until(lambda: producers_of(session, broker) == 1, "the producer")


def send(producer: Producer, number: int) -> SendResult:
    queue = MessageQueue(TOPIC, BROKER_NAME, number % QUEUES)
    message = Message(TOPIC, b"x" * (100 + number), tags="A", keys=f"key-{number:02}")
    return producer.send(message, queue=queue)


def send_back(broker: Broker, result: SendResult, level: int) -> None:
    offset = int(result.offset_message_id[-16:], 16)
    header = ConsumerSendMsgBackHeader(offset, GROUP, level, result.message_id, TOPIC)
    with Wire(broker.address) as wire:
        assert wire.ask(RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())).code == 0


def stats_of(session: Admin, broker: Broker, group: str, topic: str) -> ConsumeStatsBody:
    header = GetConsumeStatsHeader(group, topic)
    return session.read(ConsumeStatsBody, broker.address, Code.GET_CONSUME_STATS, header)


def members_of(session: Admin, broker: Broker, group: str) -> list[ClientConnection]:
    header, code = ConsumerGroupHeader(group), Code.GET_CONSUMER_CONNECTION_LIST
    try:
        return session.read(ConsumerConnection, broker.address, code, header).connection_set
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return []


def producers_of(session: Admin, broker: Broker) -> int:
    table = session.read(ProducerTable, broker.address, Code.GET_ALL_PRODUCER_INFO)
    return len(table.data.get(f"{GROUP}-producers", []))


def figures_of(broker: Broker) -> dict[str, str]:
    """Return the answer of code 28."""
    with Admin(broker.name_server.address) as session:
        return session.read(KVTable, broker.address, Code.GET_BROKER_RUNTIME_INFO).table


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


def as_the_exporter_reads(session: Admin, broker: Broker) -> Series:
    """Return the exporter's values for TOPIC and its groups, from its requests."""
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
    count = producers_of(session, broker)
    return found | series("producer_count", count, group=f"{GROUP}-producers")


def _of_group(session: Admin, broker: Broker, topic: str, group: str) -> Series:
    members = len(members_of(session, broker, group))
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
    """Return the same series of a scrape, by the requested labels."""
    found: Series = {}
    for name, labels in wanted:
        for own, number in page.get(name, []):
            if all(own.get(key) == text for key, text in labels):
                found[name, labels] = found.get((name, labels), 0) + number
    return found
