"""Tests of actors/tables/groups.py: the consumer groups of a broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from typing import Any

import pytest

from actors.config import BrokerConfig
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.tables.config_writer import ConfigWriter, TableEncoder
from actors.tables.groups import GroupConfigs, GroupFinder, GroupTable
from actors.tables.messages import CreateGroup
from protocol.bodies_tables import SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import decode_frame
from protocol.topic_names import ALWAYS_PRESENT
from storage.files.disk import Disk
from storage.tables.groups import parse_groups
from tests.support.golden import frames
from tests.support.peers import RecordingPeer, Told, ask, request, simulated
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

PATH = "/store/config/subscriptionGroup.json"
UPDATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


@contextmanager
def group_table(
    disk: Disk | None = None, **settings: Any
) -> Iterator[tuple[SimulatedSystem, SnapshotRef[GroupConfigs]]]:
    config = BrokerConfig(broker_name="b", **settings)
    groups: SnapshotRef[GroupConfigs] = SnapshotRef({})
    with simulated(disk) as system:
        writer = system.address("config_writer")
        system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec("table_encoder", lambda _: TableEncoder()),
            ChildSpec(
                "groups",
                lambda _: GroupTable(
                    config,
                    PATH,
                    groups=groups,
                    config_writer=writer,
                    consumer_offsets=system.address("consumer_offsets"),
                    encoder=system.address("table_encoder"),
                ),
            ),
        )
        yield system, groups


def test_system_groups_exist_from_the_start() -> None:
    with group_table() as (_, groups):
        assert set(groups.value) == set(ALWAYS_PRESENT)
        assert groups.value["TOOLS_CONSUMER"] == SubscriptionGroupConfig("TOOLS_CONSUMER")


def test_used_group_is_created_once_and_saved() -> None:
    disk = FakeDisk()
    with group_table(disk) as (system, groups):
        for _ in range(2):
            system.address("groups").tell(CreateGroup("G"))
        system.drain()
        assert groups.value["G"].retry_max_times == 16
        answer = ask(system, "groups", request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        assert answer.fields is None
        assert SubscriptionGroupTable.decode(answer.body).data_version.counter == 1
    with group_table(disk) as (_, groups):
        assert "G" in groups.value


def test_groups_created_in_one_batch_are_published_and_saved_once() -> None:
    """A heartbeat may name a thousand groups: one copy of the table per group blocked the loop."""
    writer, offsets = Told("config_writer"), Told("consumer_offsets")
    groups: SnapshotRef[GroupConfigs] = SnapshotRef({})

    def made(_: object) -> GroupTable:
        config, to = BrokerConfig(broker_name="b"), writer.address
        return GroupTable(
            config,
            PATH,
            groups=groups,
            config_writer=to,
            consumer_offsets=offsets.address,
            encoder=to,
        )

    with simulated() as system:
        system.start(ChildSpec("groups", made))
        table, peer = system.address("groups"), RecordingPeer()
        table.tell(Request(request(UPDATE, body=b'{"groupName":"asked"}'), peer))
        for number in range(1000):
            table.tell(CreateGroup(f"G{number}"))
        system.drain()
        *earlier, write = writer.take()
        assert len(earlier) < 50, "one for each batch, whose lengths are drawn"
        assert len(groups.value) == len(ALWAYS_PRESENT) + 1001
        assert parse_groups(write.text()).subscription_group_table == groups.value
        assert peer.received == [], "it is not on disk yet"
        write.done()
        system.drain()
        assert [answer.code for answer in peer.received] == [0]


def test_groups_created_before_a_failure_are_saved() -> None:
    for _ in range(20):  # each draws where batches end
        disk = FakeDisk()
        with group_table(disk) as (system, _):
            system.address("groups").tell(CreateGroup("G"))
            system.address("groups").tell("nothing that it knows")
            system.drain()
        assert b'"G"' in disk.read_bytes(PATH)


def test_a_known_group_is_not_created_again() -> None:
    table, groups = Told("groups"), SnapshotRef[GroupConfigs]({})
    finder = GroupFinder(groups, table.address, BrokerConfig(broker_name="b"))
    assert finder.find("G") == SubscriptionGroupConfig("G")
    assert table.take() == [CreateGroup("G")]
    made = SubscriptionGroupConfig("G", retry_max_times=3)
    groups.value = {"G": made}
    assert finder.find("G") is made
    assert table.take() == []


def test_without_auto_creation_only_system_groups_are_created() -> None:
    table, groups = Told("groups"), SnapshotRef[GroupConfigs]({})
    config = BrokerConfig(broker_name="b", auto_create_group_enable=False)
    finder = GroupFinder(groups, table.address, config)
    assert finder.find("G") is None
    assert finder.find("CID_RMQ_SYS_TRANS") is not None
    assert table.take() == [CreateGroup("CID_RMQ_SYS_TRANS")]


def test_an_administrator_creates_and_changes_a_group() -> None:
    with group_table() as (system, groups):
        body = b'{"groupName":"G","retryMaxTimes":5,"consumeEnable":false}'
        answer = ask(system, "groups", request(UPDATE, body=body))
        assert (answer.code, answer.fields, answer.remark) == (0, None, None)
        assert groups.value["G"] == SubscriptionGroupConfig(
            "G", retry_max_times=5, consume_enable=False
        )


def test_a_group_that_cannot_be_saved_is_answered_with_an_error() -> None:
    disk = FakeDisk()
    with group_table(disk) as (system, groups):
        disk.fail_next("pwrite", OSError(ENOSPC, "No space left on device"))
        answer = ask(system, "groups", request(UPDATE, body=b'{"groupName":"G"}'))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the disk is full" in (answer.remark or "")
        assert "G" in groups.value
        assert ask(system, "groups", request(UPDATE, body=b'{"groupName":"G"}')).code == 0


def test_an_invalid_group_body_is_answered_with_an_error() -> None:
    with group_table() as (system, _):
        for body in (None, b"{", b"{}"):
            answer = ask(system, "groups", request(UPDATE, body=body))
            assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        ('{"retryMaxTimes":2147483648', "retryMaxTimes is 2147483648: it has to be from -2147"),
        ('{"retryQueueNums":-2147483649', "retryQueueNums is -2147483649: it has to be from -2147"),
        ('{"retryQueueNums":65537', "retryQueueNums is 65537: a topic has 65536 queues at the mo"),
    ],
)
def test_a_number_that_the_next_start_could_not_load_is_refused(body: str, remark: str) -> None:
    with group_table() as (system, groups):
        answer = ask(system, "groups", request(UPDATE, body=f'{body},"groupName":"G"}}'.encode()))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(remark)
        assert "G" not in groups.value


def test_numbers_below_zero_are_kept_as_4_9_7_does() -> None:
    disk = FakeDisk()
    body = b'{"groupName":"G","retryMaxTimes":-1,"retryQueueNums":-2147483648,"brokerId":-1}'
    with group_table(disk) as (system, _):
        assert ask(system, "groups", request(UPDATE, body=body)).code == ResponseCode.SUCCESS
    with group_table(disk) as (_, groups):
        assert groups.value["G"] == SubscriptionGroupConfig(
            "G", retry_queue_nums=-(1 << 31), retry_max_times=-1, broker_id=-1
        )


def test_a_slave_refuses_group_changes() -> None:
    with group_table(broker_role="SLAVE", broker_id=1) as (system, _):
        answer = ask(system, "groups", request(UPDATE, body=b'{"groupName":"G"}'))
        assert "from slave broker" in (answer.remark or "")


def test_a_group_of_the_original_is_decoded() -> None:
    frame = next(each for each in frames("java-4.9.7") if each["code"] == UPDATE)
    with group_table() as (system, groups):
        answer = ask(system, "groups", decode_frame(frame["frame"][4:]))
        assert answer.code == 0
        assert groups.value["CG_AdmSub"].retry_queue_nums == 2


def test_lost_groups_are_restored_from_their_traces() -> None:
    disk = FakeDisk()
    disk.make_dirs("/store/config")
    disk.open(PATH, create=True).pwrite(b'{"subscriptionGroupTable":null}', 0)
    offsets = disk.open("/store/config/consumerOffset.json", create=True)
    offsets.pwrite(b'{"offsetTable":{"T@Reader":{0:1}}}', 0)
    disk.make_dirs("/store/consumequeue/%RETRY%Failing/0")
    with group_table(disk) as (system, groups):
        assert groups.value["Reader"] == SubscriptionGroupConfig("Reader")
        assert "Failing" in groups.value
        system.drain()
        assert disk.read_bytes(f"{PATH}.broken") == b'{"subscriptionGroupTable":null}'
    with group_table(disk) as (_, groups):
        assert {"Reader", "Failing"} < groups.value.keys()


def test_large_table_of_groups_is_written_by_another_actor() -> None:
    with group_table() as (system, groups):
        for number in range(2 * ENCODED_HERE_MAX):
            system.address("groups").tell(CreateGroup(f"G{number}"))
        system.drain()
        answer = ask(system, "groups", request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        table = SubscriptionGroupTable.decode(answer.body)
        assert table.subscription_group_table == groups.value
        handled = {each.name: each.handled_count for each in system.figures()}
        assert handled["table_encoder"] == 1
