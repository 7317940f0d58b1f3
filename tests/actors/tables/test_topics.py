"""Tests of actors/tables/topics.py: the topics of a broker."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.config import BrokerConfig
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import LINES_MAX
from actors.engine.supervisor import ChildSpec
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.tables import topics as topics_file
from actors.tables.config_writer import RETRY_MS, ConfigWriter
from actors.tables.messages import (
    CreateSystemTopic,
    CreateTopicOnSend,
    RegisterAll,
    RegisterTopic,
    SetOrderTopics,
    TopicReady,
)
from actors.tables.topics import NO_RESPONSE_CODE, Topics, TopicTable
from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand, decode_frame
from protocol.headers.admin import CreateTopicHeader
from storage.files.disk import Disk
from storage.tables.topics import parse_topics
from tests.support.brokers import SimulatedBroker
from tests.support.golden import frames
from tests.support.peers import RecordingPeer, Told, ask, request, simulated
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

PATH = "/store/config/topics.json"


@dataclass
class Bench:
    """A topic table, and what it publishes and tells."""

    system: SimulatedSystem
    topics: SnapshotRef[Mapping[str, TopicConfig]]
    table: SnapshotRef[TopicConfigTable]
    registration: Told
    sender: Told = field(default_factory=lambda: Told("put_message"))

    def send(self, topic: str, *, default: str = "TBW102", queues: int = 4, unit: bool = False):  # type: ignore[no-untyped-def]
        """Return the answer to a send to an unknown topic."""
        reply_to = self.sender.address
        message = CreateTopicOnSend(topic, default, queues, unit, "192.0.2.1:1", reply_to)
        self.system.address("topics").tell(message)
        self.system.drain()
        (ready,) = self.sender.take()
        assert ready.topic == topic
        return ready.config


@contextmanager
def topic_table(disk: Disk | None = None, **settings: Any) -> Iterator[Bench]:
    config = BrokerConfig(broker_name="broker-a", broker_cluster_name="C1", **settings)
    topics: SnapshotRef[Mapping[str, TopicConfig]] = SnapshotRef({})
    table, registration = SnapshotRef(TopicConfigTable()), Told("registration")
    with simulated(disk) as system:
        writer = system.address("config_writer")
        system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec(
                "topics",
                lambda _: TopicTable(
                    config,
                    PATH,
                    topics=topics,
                    table=table,
                    config_writer=writer,
                    clean_files=system.address("clean_files"),
                    consumer_offsets=system.address("consumer_offsets"),
                    encoder=system.address("table_encoder"),
                    registration=registration.address,
                ),
            ),
        )
        yield Bench(system, topics, table, registration)


def create(topic: str, filter_type: str = "SINGLE_TAG", **more: Any) -> RemotingCommand:
    header = CreateTopicHeader(topic, "TBW102", 8, 4, 6, filter_type, **more)
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())


def test_system_topics_exist_from_the_start() -> None:
    with topic_table(trace_topic_enable=True) as bench:
        queues = {
            name: (config.read_queue_nums, config.perm)
            for name, config in bench.topics.value.items()
        }
    assert queues == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C1": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "C1_REPLY_TOPIC": (1, 6),
    }


def test_a_send_creates_its_topic_from_the_default_topic() -> None:
    with topic_table() as bench:
        config = bench.send("T")
        assert config == TopicConfig("T", 4, 4, 6)
        assert bench.topics.value["T"] == config
        assert bench.registration.take() == [RegisterAll()]
        assert bench.table.value.data_version.counter == 1
        assert bench.send("T") == config, "a later send gets the same"
        assert bench.registration.take() == []
        assert bench.send("Wide", queues=99).write_queue_nums == 8
        assert bench.send("Negative", queues=-1).write_queue_nums == 0
        assert bench.send("Unit", unit=True).topic_sys_flag == 1


def test_a_default_topic_without_inherit_permission_creates_none() -> None:
    with topic_table(auto_create_topic_enable=False) as bench:
        assert bench.send("T") is None
        assert bench.send("T", default="nope") is None
        assert bench.send("T", default="BenchmarkTest") is None
        assert bench.send("T", default="broker-a") == TopicConfig("T", 1, 1, 6)


def test_a_stored_default_topic_does_not_reenable_auto_creation() -> None:
    disk = FakeDisk()
    with topic_table(disk) as bench:
        assert bench.send("T") is not None
    with topic_table(disk, auto_create_topic_enable=False) as bench:
        assert "TBW102" in bench.topics.value
        assert bench.send("U") is None


def test_a_missing_retry_topic_is_always_created() -> None:
    with topic_table(auto_create_topic_enable=False) as bench:
        assert bench.send("%RETRY%G") == TopicConfig("%RETRY%G", 1, 1, 6)
        assert bench.send("%RETRY%H", unit=True).topic_sys_flag == 2


def test_retry_and_dead_letter_topics_are_created_on_demand() -> None:
    with topic_table() as bench:
        topics = bench.system.address("topics")
        topics.tell(CreateSystemTopic("%DLQ%G", 1, bench.sender.address))
        topics.tell(CreateSystemTopic("%RETRY%G", 2, topic_sys_flag=2))
        bench.system.drain()
        assert bench.sender.take() == [TopicReady("%DLQ%G", TopicConfig("%DLQ%G", 1, 1, 6))]
        assert bench.topics.value["%RETRY%G"] == TopicConfig("%RETRY%G", 2, 2, 6, "SINGLE_TAG", 2)
        topics.tell(CreateSystemTopic("%DLQ%G", 5, bench.sender.address))
        bench.system.drain()
        assert bench.sender.take()[0].config.write_queue_nums == 1


def test_topic_is_announced_only_once_it_is_on_disk() -> None:
    for seed in range(20):
        disk = FakeDisk()
        with topic_table(disk) as bench:
            for number in range(5):
                bench.send(f"T{number}")
            after = disk.crashed(seed)
        found = parse_topics(after.read_bytes(PATH).decode()).topic_configs
        assert {f"T{number}" for number in range(5)} <= found.keys()


def test_a_topic_that_cannot_be_saved_is_answered_with_an_error() -> None:
    disk = FakeDisk()
    with topic_table(disk) as bench:
        disk.fail_next("pwrite", OSError(ENOSPC, "No space left on device"))
        answer = ask(bench.system, "topics", create("T"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the disk is full" in (answer.remark or "")
        assert "T" in bench.topics.value
        bench.system.advance(RETRY_MS)
        assert "T" in parse_topics(disk.read_bytes(PATH).decode()).topic_configs


def test_a_refused_creation_refuses_the_parked_sends() -> None:
    sender = Told("put_message")
    CreateTopicOnSend("T", "TBW102", 4, False, "p", sender.address).on_undelivered("gone")
    CreateSystemTopic("D", 1, sender.address).on_undelivered("gone")
    CreateSystemTopic("D", 1).on_undelivered("gone")
    assert sender.take() == [TopicReady("T", None), TopicReady("D", None)]


def test_many_topics_are_created_in_rounds_with_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 of a read, beside 20,000 of groups, kept the loop from all others for 3.8 s."""
    monkeypatch.setattr(topics_file, "CREATED_PER_ROUND", 2)
    with topic_table() as bench, capture_logs() as logs:
        topics, reply_to = bench.system.address("topics"), bench.sender.address
        later: list[object] = []
        tell = bench.system.loop.tell_in_next_round

        def note(address: ActorAddress, message: object) -> None:
            later.append(message)
            tell(address, message)

        monkeypatch.setattr(bench.system.loop, "tell_in_next_round", note)
        for n in range(LINES_MAX):
            topics.tell(CreateTopicOnSend(f"T{n}", "TBW102", 1, False, "p", reply_to))
            topics.tell(CreateSystemTopic(f"%RETRY%g{n}", 1, reply_to))
        bench.system.drain()
        ready = [each.topic for each in bench.sender.take()]
        assert len(later) >= LINES_MAX, "two a round"
        assert ready == [name for n in range(LINES_MAX) for name in (f"T{n}", f"%RETRY%g{n}")]
    assert [line["event"] for line in logs].count("topic created") == LINES_MAX


def test_the_number_of_groups_topics_is_kept() -> None:
    """To count 20,000 of them for each new topic took 1 ms."""
    config = BrokerConfig(auto_topics_max=50, auto_groups_max=1)
    topics = Topics(config)
    retry = TopicConfig("%RETRY%a"), TopicConfig("%RETRY%b")
    for each in (*retry, *retry, *(TopicConfig(f"T{n}") for n in range(60))):
        topics.put(each, 0)
    assert topics.is_full("%RETRY%c") and topics.is_full("T")
    assert topics.delete("%RETRY%a", 0) and not topics.delete("%RETRY%a", 0)
    assert not topics.is_full("%RETRY%c") and topics.is_full("T")
    topics.replace(TopicConfigTable({each.topic_name: each for each in retry}))
    topics.put(TopicConfig("T"), 0)
    assert topics.is_full("%RETRY%c") and not topics.is_full("T")
    assert Topics(config, topics.table()).is_full("%RETRY%c")


def test_an_administrator_creates_and_changes_a_topic() -> None:
    with topic_table() as bench:
        peer = RecordingPeer()
        answer = ask(bench.system, "topics", create("T", topic_sys_flag=1), peer)
        assert (answer.code, answer.fields, answer.remark) == (0, None, NO_RESPONSE_CODE)
        config = TopicConfig("T", 8, 4, 6, "SINGLE_TAG", 1)
        assert bench.topics.value["T"] == config
        version = bench.table.value.data_version
        assert bench.registration.take() == [RegisterTopic(config, version)]
        ask(bench.system, "topics", create("T", "MULTI_TAG", order=True))
        changed = bench.topics.value["T"]
        assert (changed.topic_filter_type, changed.order) == ("MULTI_TAG", False)


@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "The topic[RMQ_SYS_TRANS_HALF_TOPIC] is conflict"),
        ("C1", "The topic[C1] is conflict with system topic."),
        ("broker-a", "The topic[broker-a] is conflict with system topic."),
        ("C1_REPLY_TOPIC", "is conflict with system topic."),
        ("rmq_sys_x", "The topic[rmq_sys_x] is conflict with system topic."),
        (" ", "The specified topic is blank."),
        ("a b", "The specified topic contains illegal characters"),
        ("x" * 128, "The specified topic is longer than topic max length."),
    ],
)
def test_system_topics_cannot_be_changed(topic: str, remark: str) -> None:
    with topic_table() as bench:
        answer = ask(bench.system, "topics", create(topic))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
        assert bench.registration.take() == []


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"read_queue_nums": -4}, "readQueueNums is -4: it has to be from 0 to 2147483647"),
        ({"perm": -3}, "perm is -3: it has to be from 0 to 2147483647"),
        ({"read_queue_nums": 65_537}, "readQueueNums is 65537: a topic has 65536 queues"),
    ],
)
def test_a_number_that_the_next_start_could_not_load_is_refused(
    fields: dict[str, Any], remark: str
) -> None:
    with topic_table() as bench:
        header = replace(CreateTopicHeader("T", "TBW102", 8, 4, 6, "SINGLE_TAG"), **fields)
        command = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
        answer = ask(bench.system, "topics", command)
        assert answer.code == ResponseCode.SYSTEM_ERROR and remark in (answer.remark or "")
        assert "T" not in bench.topics.value


def test_odd_numbers_that_4_9_7_works_with_survive_a_restart() -> None:
    disk = FakeDisk()
    header = CreateTopicHeader("T", "TBW102", 0, 0, 0, "MULTI_TAG", topic_sys_flag=-5)
    command = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
    with topic_table(disk) as bench:
        bench.system.address("topics").tell(CreateSystemTopic("%RETRY%G", -1))
        assert ask(bench.system, "topics", command).code == ResponseCode.SUCCESS
    with topic_table(disk) as bench:
        assert bench.topics.value["T"] == TopicConfig("T", 0, 0, 0, "MULTI_TAG", -5)
        assert bench.topics.value["%RETRY%G"].read_queue_nums == 0, "there is no less"


def test_an_unknown_filter_type_and_a_slave_refuse_a_topic_change() -> None:
    with topic_table() as bench:
        answer = ask(bench.system, "topics", create("T", "X"))
        assert "topicFilterType = [X] value invalid" in (answer.remark or "")
    with topic_table(broker_role="SLAVE", broker_id=1) as bench:
        answer = ask(bench.system, "topics", create("T"))
        assert answer.remark == (
            "Can't modify topic or subscription group from slave broker, "
            "please execute it from master broker."
        )


def test_the_whole_topic_table_is_returned() -> None:
    with topic_table() as bench:
        bench.send("T")
        answer = ask(bench.system, "topics", request(RequestCode.GET_ALL_TOPIC_CONFIG))
        assert answer.fields == {}
        told = TopicConfigTable.decode(answer.body)
        assert told == bench.table.value


def test_the_name_server_decides_which_topics_are_ordered() -> None:
    with topic_table() as bench:
        bench.send("T")
        bench.send("U")
        topics = bench.system.address("topics")
        topics.tell(SetOrderTopics(frozenset(("T", "unknown"))))
        bench.system.drain()
        assert {name for name, config in bench.topics.value.items() if config.order} == {"T"}
        version = bench.table.value.data_version
        topics.tell(SetOrderTopics(frozenset(("T",))))
        bench.system.drain()
        assert bench.table.value.data_version == version, "nothing has changed"
        topics.tell(SetOrderTopics(frozenset()))
        bench.system.drain()
        assert not any(config.order for config in bench.topics.value.values())
        assert bench.table.value.data_version.counter == version.counter + 1


def test_topics_and_their_version_survive_a_restart() -> None:
    disk = FakeDisk()
    with topic_table(disk) as bench:
        bench.send("T")
        table = bench.table.value
    with topic_table(disk, broker_topic_enable=False) as bench:
        assert bench.table.value == table, "the file goes over the defaults"


def put_file(disk: FakeDisk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    disk.open(path, create=True).pwrite(data, 0)


def test_an_invalid_topic_file_is_kept_aside_and_rebuilt_from_the_queues() -> None:
    disk = FakeDisk()
    put_file(disk, PATH, b'{"topicConfigTable":[]}')
    disk.make_dirs("/store/consumequeue/Orders/5")
    disk.make_dirs("/store/consumequeue/%RETRY%G/0")
    put_file(disk, "/store/config/consumerOffset.json", b'{"offsetTable":{"Idle@G":{3:1}}}')
    with topic_table(disk) as bench:
        bench.system.drain()
        assert bench.topics.value["Orders"] == TopicConfig("Orders", 6, 6, 6)
        assert bench.topics.value["%RETRY%G"] == TopicConfig("%RETRY%G", 1, 1, 6)
        assert bench.topics.value["Idle"] == TopicConfig("Idle", 4, 4, 6)
        assert bench.topics.value["BenchmarkTest"].read_queue_nums == 1024
        assert disk.read_bytes(f"{PATH}.broken") == b'{"topicConfigTable":[]}'
    saved = parse_topics(disk.read_bytes(PATH).decode())
    assert saved.topic_configs == bench.topics.value


def test_a_missing_topic_file_is_rebuilt_from_the_queues() -> None:
    disk = FakeDisk()
    disk.make_dirs("/store/consumequeue/Orders/5")
    with topic_table(disk) as bench:
        assert bench.topics.value["Orders"] == TopicConfig("Orders", 6, 6, 6)
    assert "Orders" in parse_topics(disk.read_bytes(PATH).decode()).topic_configs


def test_a_new_store_gets_no_file_before_it_has_topics() -> None:
    disk = FakeDisk()
    with topic_table(disk) as bench:
        bench.system.drain()
    assert not disk.exists(PATH)


def test_a_valid_topic_file_is_not_extended_from_the_queues() -> None:
    """A topic that was deleted may have queues for a while."""
    disk = FakeDisk()
    with topic_table(disk) as bench:
        bench.send("T")
    disk.make_dirs("/store/consumequeue/Deleted/0")
    with topic_table(disk) as bench:
        assert "Deleted" not in bench.topics.value


def test_a_topic_snapshot_is_immutable() -> None:
    topics = Topics(BrokerConfig(broker_name="b"))
    before = topics.table()
    topics.put(TopicConfig("T"), 5)
    assert "T" not in before.topic_configs
    assert topics.version == DataVersion(5, 1)


def test_the_originals_requests_get_the_originals_answers() -> None:
    compared = 0
    for name in ("java-4.9.7", "go-v2", "java-5.3.3"):
        asked: dict[tuple[int, int], RemotingCommand] = {}
        for frame in frames(name):
            if frame["direction"] == "request" and frame["code"] in (17, 21):
                asked[frame["conn"], frame["opaque"]] = decode_frame(frame["frame"][4:])
            elif (frame["conn"], frame["opaque"]) in asked and frame["direction"] == "response":
                answered = decode_frame(frame["frame"][4:])
                with topic_table() as bench:
                    command = asked.pop((frame["conn"], frame["opaque"]))
                    answer = ask(bench.system, "topics", command)
                assert (answer.code, answer.remark) == (answered.code, answered.remark)
                assert answer.fields == answered.fields
                assert (answer.body is None) == (answered.body is None)
                compared += 1
    assert compared >= 5


@pytest.mark.heavy
@pytest.mark.parametrize("count", [10, 2 * ENCODED_HERE_MAX])
def test_a_large_table_is_answered_like_a_small_one(count: int) -> None:
    made = SimulatedBroker(1)
    for number in range(count):
        made.client.start(
            RemotingCommand(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                CreateTopicHeader(f"T{number}", "TBW102", 1, 1, 6, "SINGLE_TAG").encode(),
            ),
            lambda _: None,
        )
    made.system.drain()
    answer = made.ask(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert (answer.code, answer.fields) == (0, {})
    assert TopicConfigTable.decode(answer.body) == made.broker.tables.topic_table.value
    assert len(TopicConfigTable.decode(answer.body).topic_configs) > count
