"""A slave copies its master's tables into its own files every ten seconds."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.delays.messages import GetDelayOffset
from actors.naming.messages import MasterClientAddress
from protocol.bodies_assignment import RequestMode
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import QueryConsumerOffsetHeader
from protocol.signature import Credentials
from storage.tables.delay_offsets import parse_delay_offsets
from tests.support import slave_tables
from tests.support.brokers import SimulatedBroker
from tests.support.peers import Told
from tests.support.slave_tables import (
    ToMaster,
    commit,
    following,
    synced,
    text_of,
)


def offset_of(made: SimulatedBroker, group: str) -> str:
    header = QueryConsumerOffsetHeader(group, "Topic", 0)
    answer = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()))
    return (answer.fields or {})["offset"]


def test_tables_are_requested_in_the_originals_order_and_period() -> None:
    with synced() as (_, slave, client):
        slave.system.advance(2_999)
        assert client.asked == []
        slave.system.advance(1)
        assert client.asked == [21, 43, 45, 201, 28, 402]
        slave.system.advance(10_000)
        assert client.asked == [21, 43, 45, 201, 28, 402] * 2


@pytest.mark.parametrize(
    ("credentials", "asked"), [(None, []), (Credentials("brokers-account", "secret12"), [28])]
)
def test_with_an_account_a_slave_authenticates_before_replication(
    credentials: Credentials | None, asked: list[int]
) -> None:
    """A master with access control sends its log only to known hosts."""
    with synced(agrees=False, credentials=credentials) as (_, slave, client):
        slave.system.advance(3_000)
        assert client.asked == asked


def test_the_masters_tables_become_the_slaves_in_memory_and_on_disk() -> None:
    with synced() as (master, slave, _):
        master.make_topic("Topic", queues=3)
        master.make_group("consumers", retry_max_times=5)
        commit(master, "consumers", 7)
        commit(slave, "consumers", 3)
        commit(slave, "slave-readers", 4)
        slave.system.advance(3_000)
        assert offset_of(slave, "consumers") == "7"
        assert offset_of(slave, "slave-readers") == "4", "the master does not know them"
        slave.system.advance(10_000)
        master.system.advance(10_000)
        assert slave.broker.tables.topics.value == master.broker.tables.topics.value
        assert slave.broker.tables.groups.value == master.broker.tables.groups.value
        for name in ("topics", "subscriptionGroup"):
            assert text_of(slave, name) == text_of(master, name)


def test_request_modes_are_the_masters_and_a_4_9_7_master_is_asked_once() -> None:
    with synced() as (master, slave, client):
        master.make_topic("Topic")
        master.make_group("consumers")
        mode = RequestMode("consumers", "POP", 2, "Topic")
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        assert master.ask(RemotingCommand(code, body=mode.encode())).code == 0
        slave.system.advance(13_000)
        assert slave.broker.tables.request_modes.value == {"Topic": {"consumers": mode}}
        assert text_of(slave, "messageRequestMode") == text_of(master, "messageRequestMode")
        client.unknown = {402}
        client.asked.clear()
        slave.system.advance(30_000)
        assert client.asked.count(402) == 1
        assert slave.broker.tables.request_modes.value == {"Topic": {"consumers": mode}}


def test_a_promoted_slave_continues_the_delay_levels_at_the_masters_offsets() -> None:
    with following() as (pair, _):
        slave = pair.slave
        pair.master.make_topic("Topic")
        for _ in range(3):
            pair.master.send(properties="DELAY\x011")
        pair.advance(30_000)
        assert slave.broker.tables.delay_offsets.value == {1: 3}
        assert parse_delay_offsets(text_of(slave, "delayOffset").decode()).offset_table == {1: 3}
        asker = Told("asker")
        slave.system.address("delay_offsets").tell(GetDelayOffset(1, asker.address))
        slave.system.drain()
        assert asker.take()[0].offset == 3


def test_consumer_offsets_are_applied_after_their_messages_arrive() -> None:
    with following() as (pair, client):
        master, slave = pair.master, pair.slave
        master.make_topic("Topic")
        pair.advance(4_000)
        pair.cut()
        master.send(properties="DELAY\x011")
        master.system.advance(8_000)
        commit(master, "consumers", 1)
        pair.slave.system.advance(11_000)
        assert client.asked[-6:] == [21, 43, 45, 201, 28, 402]
        pulled = master.messages("Topic")
        assert len(pulled) == 1, "delivered by the master"
        assert slave.broker.tables.delay_offsets.value == {}
        assert "Topic@consumers" not in slave.broker.tables.offsets.value
        pair.heal()
        pair.advance(40_000)
        assert slave.broker.tables.delay_offsets.value == {1: 1}
        assert slave.broker.tables.offsets.value["Topic@consumers"] == {0: 1}


def test_a_slave_copies_no_tables_from_a_master_that_lost_its_store() -> None:
    with following() as (pair, _):
        pair.master.make_topic("Topic")
        pair.master.make_group("consumers", retry_max_times=5)
        pair.master.send()
        pair.advance(14_000)
        topics, groups = pair.slave.broker.tables.topics, pair.slave.broker.tables.groups
        assert "Topic" in topics.value and "consumers" in groups.value
        pair.wipe(pair.master)
        for name in ("Other", "Another"):
            pair.master.make_topic(name)
        with capture_logs() as logs:
            pair.advance(60_000)
        assert "Topic" in topics.value and "consumers" in groups.value
        assert "Other" not in topics.value
        assert [line["event"] for line in logs].count("table sync from master failed") == 1


def test_unchanged_tables_are_not_saved_again() -> None:
    with synced() as (_, slave, _):
        slave.system.advance(30_000)
        before = slave.disk.sync_count  # type: ignore[attr-defined]
        slave.system.advance(60_000)
        written = slave.disk.sync_count - before  # type: ignore[attr-defined]
        assert written <= 12, "only the checkpoint and what belongs to it"


def test_a_silent_master_is_logged_once_and_asked_again() -> None:
    with synced() as (master, slave, client):
        client.down = True
        with capture_logs() as logs:
            slave.system.advance(33_000)
        assert [line["event"] for line in logs].count("table sync from master failed") == 1
        client.down = False
        master.make_topic("New")
        with capture_logs() as logs:
            slave.system.advance(10_000)
        assert "New" in slave.broker.tables.topics.value
        assert [line["event"] for line in logs].count("table sync from master started") == 1


def test_a_slave_without_another_master_requests_no_tables() -> None:
    with synced() as (_, slave, client):
        for address in (None, "192.0.2.2:10911"):
            slave.system.address("slave_sync").tell(MasterClientAddress(address))
            slave.system.advance(30_000)
            assert client.asked == []
        assert client.closed


BODIES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: b'{"dataVersion":{"counter":9,"timestamp":9},'
    b'"topicConfigTable":{"Good":{"perm":6,"topicName":"Good"},"Bad":{"perm":-3,"topicName":"Bad"}}}',
    RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"Good@G":{0:7,-1:5}}}',
    RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:3,2:-4}}',
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"dataVersion":{"counter":9,"timestamp":9},'
    b'"subscriptionGroupTable":{"G":{},"H":{"retryQueueNums":99999999999}}}',
}


class OddMaster(ToMaster):
    """A master of 4.9.7's with an entry in each table that no broker can work with."""

    def call(self, request: RemotingCommand, **_: Any) -> RemotingCommand:
        answer = super().call(request)
        answer.body = BODIES.get(RequestCode(request.code), answer.body)
        return answer


def test_invalid_entries_of_the_master_are_omitted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slave_tables, "ToMaster", OddMaster)
    with capture_logs() as lines, synced() as (_, slave, _):
        slave.system.advance(40_000)
        tables = slave.broker.tables
        assert tables.topics.value.keys() == {"Good"}
        assert tables.groups.value.keys() == {"G"}
        assert tables.offsets.value == {"Good@G": {0: 7}}
        assert parse_delay_offsets(text_of(slave, "delayOffset").decode()).offset_table == {1: 3}
    said = sorted(each["entry"] for each in lines if each["event"] == "entry left out")
    assert said == ["2", "Bad", "Good@G, -1", "H"]
