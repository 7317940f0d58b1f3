"""Tests of actors/consumers/clients.py and consumer_groups.py: members, locks and notices."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import dumps
from typing import Any

import pytest

from actors.access.refusals import Refusals
from actors.config import BrokerConfig
from actors.consumers.clients import Clients
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.network.messages import PeerClosed
from actors.tables.config_writer import ConfigWriter, TableEncoder
from actors.tables.consumer_filters import FilterTable
from actors.tables.consumer_views import ConsumerView, Producing
from actors.tables.groups import GroupConfigs
from actors.tables.messages import CreateGroup, CreateSystemTopic
from protocol.bloom import BloomFilter
from protocol.bodies import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand, decode_frame
from protocol.tags import java_hash_code
from storage.tables.consumer_filters import ConsumerFilters
from tests.support.brokers import subscription
from tests.support.golden import frames
from tests.support.peers import RecordingPeer, Told, ask, request, simulated, tell
from troupemq.testing.simulation import SimulatedSystem


@dataclass
class Bench:
    """Clients actor with its snapshots and the messages it sends."""

    system: SimulatedSystem
    consumers: SnapshotRef[Mapping[str, ConsumerView]]
    topics: SnapshotRef[Mapping[str, TopicConfig]]
    groups: SnapshotRef[GroupConfigs]
    topic_table: Told
    group_table: Told
    client_calls: Told = field(default_factory=lambda: Told("client_calls"))
    producers: SnapshotRef[Any] = field(default_factory=lambda: SnapshotRef({}))
    filters: SnapshotRef[ConsumerFilters] = field(
        default_factory=lambda: SnapshotRef(ConsumerFilters(BloomFilter.of()))
    )

    def heartbeat(self, peer: RecordingPeer, data: HeartbeatData) -> None:
        command = request(RequestCode.HEART_BEAT, body=data.encode())
        assert ask(self.system, "clients", command, peer).code == 0

    def members(self, group: str) -> list[str] | None:
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        answer = ask(self.system, "clients", command)
        assert answer.fields == {}
        return ConsumerList.decode(answer.body).consumer_id_list if answer.code == 0 else None

    def close(self, peer: RecordingPeer) -> None:
        self.system.address("clients").tell(PeerClosed(peer))
        self.system.drain()


@contextmanager
def clients(**settings: Any) -> Iterator[Bench]:
    config = BrokerConfig(broker_name="broker-a", **settings)
    bench = Bench(
        None,  # type: ignore[arg-type]
        SnapshotRef({}),
        SnapshotRef({}),
        SnapshotRef({"G": SubscriptionGroupConfig("G")}),
        Told("topics"),
        Told("groups"),
    )
    with simulated() as bench.system:
        bench.system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec(
                "consumer_filters",
                lambda _: FilterTable(
                    config,
                    "/store/config/consumerFilter.json",
                    filters=bench.filters,
                    was_stopped_cleanly=True,
                    config_writer=bench.system.address("config_writer"),
                ),
            ),
            ChildSpec("table_encoder", lambda _: TableEncoder()),
            ChildSpec(
                "clients",
                lambda _: Clients(
                    config,
                    topics=bench.topics,
                    groups=bench.groups,
                    consumers=bench.consumers,
                    producers=bench.producers,
                    topic_table=bench.topic_table.address,
                    filters=bench.filters,
                    group_table=bench.group_table.address,
                    filter_table=bench.system.address("consumer_filters"),
                    client_calls=bench.client_calls.address,
                    encoder=bench.system.address("table_encoder"),
                    receipts=Told("receipts").address,
                    refusals=Refusals(bench.system.clock.now_ms, bench.system.rarely),
                ),
            ),
        )
        yield bench


def consumer(
    client_id: str, *subscriptions: SubscriptionData, group: str = "G", model: str = "CLUSTERING"
) -> HeartbeatData:
    data = ConsumerData(
        group,
        "CONSUME_PASSIVELY",
        model,
        "CONSUME_FROM_LAST_OFFSET",
        list(subscriptions or (subscription("T"),)),
    )
    return HeartbeatData(client_id, [], [data])


def notices(peer: RecordingPeer) -> list[str]:
    """The groups of which `peer` was told that they have changed."""
    told = []
    for command in peer.notices():
        assert (command.code, command.is_oneway) == (40, True)
        told.append((command.fields or {})["consumerGroup"])
    return told


def test_join_notifies_all_members_of_the_group() -> None:
    with clients() as bench:
        first, second = RecordingPeer(), RecordingPeer()
        bench.heartbeat(first, consumer("a"))
        assert notices(first) == ["G"]
        bench.heartbeat(second, consumer("b"))
        assert (notices(first), notices(second)) == (["G"], ["G"])
        assert bench.members("G") == ["a", "b"]
        bench.heartbeat(first, consumer("a"))
        assert (notices(first), notices(second)) == ([], []), "nothing has changed"


def test_client_with_two_connections_is_named_once() -> None:
    """A second share of the queues would have no consumer (apache/rocketmq #7870)."""
    with clients() as bench:
        half_open, other, present = RecordingPeer(), RecordingPeer(), RecordingPeer()
        for peer, client_id in ((half_open, "a"), (other, "b"), (present, "a")):
            bench.heartbeat(peer, consumer(client_id))
        assert bench.members("G") == ["a", "b"]
        bench.close(half_open)
        assert bench.members("G") == ["b", "a"]


def test_an_unknown_group_has_no_members() -> None:
    with clients() as bench:
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "X"})
        answer = ask(bench.system, "clients", command)
        assert (answer.code, answer.fields) == (ResponseCode.SYSTEM_ERROR, {})
        assert answer.remark == "no consumer for this group, X"


def test_a_changed_subscription_notifies_members_and_is_published() -> None:
    with clients() as bench:
        first, second = RecordingPeer(), RecordingPeer()
        bench.heartbeat(first, consumer("a", subscription("T", "A", 1)))
        bench.heartbeat(second, consumer("b", subscription("T", "A", 1)))
        notices(first), notices(second)
        view = bench.consumers.value["G"]
        assert view.subscriptions["T"].codes == frozenset((java_hash_code("A"),))
        wanted = (subscription("T", "A||B", 2), subscription("U"))
        bench.heartbeat(first, consumer("a", *wanted))
        assert (notices(first), notices(second)) == (["G"], ["G"])
        view = bench.consumers.value["G"]
        assert view.subscriptions["T"].data.sub_version == 2
        assert view.subscriptions["T"].codes == frozenset(map(java_hash_code, "AB"))
        assert view.subscriptions["U"].codes is None
        bench.heartbeat(first, consumer("a", subscription("U")))
        assert set(bench.consumers.value["G"].subscriptions) == {"U"}


def test_tags_count_where_their_codes_are_not_javas() -> None:
    """rocketmq-client-rust 1.0.0 got no message by a subscription to tags."""
    data = SubscriptionData("T", "TagA || TagB", ["TagA", "TagB"], [32151592, 80566521], 1)
    consumer = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", None, [data])
    with clients() as bench:
        bench.heartbeat(RecordingPeer(), HeartbeatData("c", consumer_data_set=[consumer]))
        codes = bench.consumers.value["G"].subscriptions["T"].codes
        assert codes is not None
        assert codes >= {java_hash_code("TagA"), java_hash_code("TagB")}


def test_a_newer_version_of_the_same_topic_is_published_without_a_notice() -> None:
    with clients() as bench:
        peer = RecordingPeer()
        bench.heartbeat(peer, consumer("a", subscription("T", "A", 5)))
        notices(peer)
        bench.heartbeat(peer, consumer("a", subscription("T", "B", 6)))
        assert bench.consumers.value["G"].subscriptions["T"].data.sub_string == "B"
        assert notices(peer) == []


def test_a_closed_connection_removes_its_client_and_notifies_the_others() -> None:
    with clients() as bench:
        first, second = RecordingPeer(), RecordingPeer()
        bench.heartbeat(first, consumer("a"))
        bench.heartbeat(second, consumer("b"))
        notices(first), notices(second)
        bench.close(second)
        assert (notices(first), notices(second)) == (["G"], [])
        assert bench.members("G") == ["a"]
        bench.close(first)
        assert bench.members("G") is None
        assert bench.consumers.value == {}


def test_a_client_can_unregister_from_its_groups() -> None:
    with clients() as bench:
        first, second = RecordingPeer(), RecordingPeer()
        data = consumer("b")
        data.producer_data_set = [ProducerData("P")]
        bench.heartbeat(first, consumer("a"))
        bench.heartbeat(second, data)
        notices(first), notices(second)
        for field in ("producerGroup", "consumerGroup"):
            fields = {"clientID": "b", field: "P" if field == "producerGroup" else "G"}
            command = request(RequestCode.UNREGISTER_CLIENT, fields)
            answer = ask(bench.system, "clients", command, second)
            assert (answer.code, answer.fields) == (0, {})
        assert (notices(first), notices(second)) == (["G"], [])
        assert bench.members("G") == ["a"]


def test_a_client_without_a_heartbeat_expires_after_two_minutes() -> None:
    with clients() as bench:
        silent, lively = RecordingPeer(), RecordingPeer()
        bench.heartbeat(silent, consumer("a"))
        bench.heartbeat(lively, consumer("b"))
        notices(silent), notices(lively)
        for _ in range(4):
            bench.system.advance(30_000)
            bench.heartbeat(lively, consumer("b"))
        assert bench.members("G") == ["a", "b"]
        bench.system.advance(10_001)
        assert bench.members("G") == ["b"]
        assert notices(lively) == ["G"]


@pytest.mark.parametrize("where", ["broker", "group"])
def test_notices_can_be_switched_off(where: str) -> None:
    on = where != "broker"
    with clients(notify_consumer_ids_changed_enable=on) as bench:
        quiet = SubscriptionGroupConfig("G", notify_consumer_ids_changed_enable=where != "group")
        bench.groups.value = {"G": quiet}
        peer = RecordingPeer()
        bench.heartbeat(peer, consumer("a"))
        assert notices(peer) == []
        assert bench.members("G") == ["a"]


def test_a_heartbeat_creates_the_group_and_its_retry_topic() -> None:
    with clients() as bench:
        bench.groups.value = {"G": SubscriptionGroupConfig("G", retry_queue_nums=3)}
        peer = RecordingPeer()
        bench.heartbeat(peer, consumer("a"))
        assert bench.topic_table.take() == [CreateSystemTopic("%RETRY%G", 3)]
        assert bench.group_table.take() == []
        data = consumer("a", group="New")
        data.consumer_data_set[0].unit_mode = True
        bench.heartbeat(peer, data)
        assert bench.group_table.take() == [CreateGroup("New")]
        assert bench.topic_table.take() == [CreateSystemTopic("%RETRY%New", 1, topic_sys_flag=2)]
        bench.topics.value = {"%RETRY%G": TopicConfig("%RETRY%G")}
        bench.heartbeat(peer, consumer("a"))
        assert bench.topic_table.take() == []


def test_a_group_that_cannot_be_created_still_has_members() -> None:
    with clients(auto_create_group_enable=False) as bench:
        peer = RecordingPeer()
        bench.heartbeat(peer, consumer("a", group="New"))
        assert bench.group_table.take() == [] == bench.topic_table.take()
        assert bench.members("New") == ["a"]


@pytest.mark.parametrize("body", [None, b"not json", b"[]"])
def test_an_invalid_heartbeat_is_answered_with_an_error(body: bytes | None) -> None:
    with clients() as bench:
        answer = ask(bench.system, "clients", request(RequestCode.HEART_BEAT, body=body))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        bench.heartbeat(RecordingPeer(), consumer("a"))


def check_config(bench: Bench, kind: str, expression: str) -> RemotingCommand:
    data = {"topic": "T", "expressionType": kind, "subString": expression, "subVersion": 1}
    body = dumps({"clientId": "c", "group": "g", "subscriptionData": data}).encode()
    return ask(bench.system, "clients", request(RequestCode.CHECK_CLIENT_CONFIG, body=body))


def test_an_expression_is_checked_on_request_if_sql_filters_are_enabled() -> None:
    with clients(property_filter_enable=True) as bench:
        for kind, expression in (("TAG", "*"), ("SQL92", "a > 1 AND TAGS = 'x'")):
            assert check_config(bench, kind, expression).code == ResponseCode.SUCCESS
        wrong = check_config(bench, "SQL92", "a >> 1")
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert wrong.remark is not None
        first_line = wrong.remark.partition("\n")[0]
        assert first_line == (
            'org.apache.rocketmq.filter.parser.ParseException: Encountered " ">" "> ""'
            " at line 1, column 4."
        )
        assert check_config(bench, "SQL93", "a > 1").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_recorded_expression_checks_get_the_originals_answers() -> None:
    asked: dict[int, RemotingCommand] = {}
    compared = 0
    for name in ("negative", "java-4.9.7", "java-5.3.3", "binary-header"):
        asked.clear()
        for record in frames(name):
            if record["direction"] == "request" and record["code"] == 46:
                asked[record["pair"]] = decode_frame(record["frame"][4:])
            elif record["pair"] in asked and record["direction"] == "response":
                wanted = decode_frame(record["frame"][4:])
                with clients(property_filter_enable=wanted.code != 1) as bench:
                    answer = ask(bench.system, "clients", asked[record["pair"]])
                assert (answer.code, answer.remark) == (wanted.code, wanted.remark)
                compared += 1
    assert compared >= 6


def test_non_tag_subscriptions_are_refused_by_the_check() -> None:
    with clients() as bench:
        for kind, code in (("TAG", 0), ("SQL92", ResponseCode.SYSTEM_ERROR)):
            body = b'{"subscriptionData":{"topic":"T","expressionType":"%s"}}' % kind.encode()
            answer = ask(
                bench.system, "clients", request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            )
            assert answer.code == code
        assert answer.remark == "The broker does not support consumer to filter message by SQL92"


def test_queues_are_locked_for_one_consumer() -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(2)]

    def lock(bench: Bench, client_id: str, *wanted: MessageQueue) -> list[MessageQueue]:
        body = LockBatchRequest(client_id, "G", list(wanted)).encode()
        answer = ask(bench.system, "clients", request(RequestCode.LOCK_BATCH_MQ, body=body))
        return LockBatchResponse.decode(answer.body).lock_ok_mq_set

    with clients() as bench:
        assert lock(bench, "a", queues[0]) == [queues[0]]
        assert lock(bench, "b", *queues) == [queues[1]]
        body = LockBatchRequest("a", "G", queues).encode()
        command = request(RequestCode.UNLOCK_BATCH_MQ, body=body, oneway=True)
        tell(bench.system, "clients", command, RecordingPeer())
        assert lock(bench, "b", *queues) == queues
        assert lock(bench, "b") == []
        for _ in range(3):
            bench.system.advance(40_000)
            assert lock(bench, "b", queues[0]) == [queues[0]], "renewed in time"
        assert lock(bench, "a", *queues) == [queues[1]], "its lock was not renewed"
        bench.system.advance(60_001)
        assert lock(bench, "a", *queues) == queues


def test_the_originals_requests_get_the_originals_answers() -> None:
    compared = set()  # heartbeats first, so that groups are there; then each pair as recorded
    for name in ("java-4.9.7", "java-5.3.3", "go-v2"):
        asked = {}
        with clients() as bench:
            peer = RecordingPeer()
            for frame in frames(name):
                if frame["code"] == RequestCode.HEART_BEAT and frame["direction"] == "request":
                    tell(bench.system, "clients", decode_frame(frame["frame"][4:]), peer)
            for frame in frames(name):
                key = frame["conn"], frame["opaque"]
                if frame["direction"] == "request" and frame["code"] in (34, 38, 41, 42):
                    asked[key] = decode_frame(frame["frame"][4:])
                elif frame["direction"] == "response" and key in asked:
                    answered, command = decode_frame(frame["frame"][4:]), asked.pop(key)
                    if answered.code != 0 and command.code != 38:
                        continue
                    answer = ask(bench.system, "clients", command, RecordingPeer())
                    context = (name, command)
                    for part in ("code", "fields", "remark"):
                        assert getattr(answer, part) == getattr(answered, part), context
                    assert (answer.body is None) == (answered.body is None), context
                    compared.add(command.code)
    assert compared == {34, 38, 41, 42}


def test_producers_are_published_until_they_leave() -> None:
    with clients() as bench:
        one, two = RecordingPeer(), RecordingPeer()
        for peer in (one, two):
            bench.heartbeat(peer, HeartbeatData("client", [ProducerData("P")], []))
        assert (first := bench.producers.value) == {"P": (Producing((one, two)),)}
        bench.heartbeat(one, HeartbeatData("client", [ProducerData("P")], []))
        assert bench.producers.value is first
        bench.close(one)
        assert bench.producers.value == {"P": (Producing((two,)),)}
        assert first == {"P": (Producing((one, two)),)}
        leave = request(RequestCode.UNREGISTER_CLIENT, {"clientID": "client", "producerGroup": "P"})
        assert ask(bench.system, "clients", leave, two).code == 0
        assert bench.producers.value == {}
