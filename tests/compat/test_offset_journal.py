"""A store whose consumer offsets have a journal, between our broker and an official one.

An official broker reads the table, passes its field `journal` over, and drops it when it saves.
"""

from pathlib import Path

import pytest

from protocol.bodies_tables import ConsumerOffsetTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from storage.tables.offsets import parse_offsets
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer
from tests.compat.patience import wait_until
from tests.compat.servers import Broker
from tests.support.brokers import send_command
from tests.support.receiving import Received, ack_command, receive_command, received
from tests.support.wire import Wire

pytestmark = [
    pytest.mark.slow(seconds=25),
    pytest.mark.skipif(SERVER_KIND == "official", reason="it has no receives"),
]
TOPIC, GROUP, COUNT = "Settled", "consumers", 10
ACKED = (0, 1, 2, 5, 7)


def table_of(broker: Broker) -> ConsumerOffsetTable:
    return parse_offsets((broker.store / "config" / "consumerOffset.json").read_bytes())


def offset_of(wire: Wire) -> int:
    header = QueryConsumerOffsetHeader(GROUP, TOPIC, 0)
    answer = wire.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()))
    assert answer.code == ResponseCode.SUCCESS and answer.fields is not None, answer.remark
    return int(answer.fields["offset"])


def receive(wire: Wire) -> list[Received]:
    answer = wire.ask(receive_command(group=GROUP, topic=TOPIC, wait_ms=3_000))
    return received(answer, TOPIC)


@pytest.mark.parametrize("kills", [pytest.param(False, marks=pytest.mark.whole), True])
def test_official_broker_opens_a_store_with_a_journal_and_makes_it_void(
    kills: bool, tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    with (
        make_name_server("ours", tmp_path / "names") as names,
        make_broker("ours", tmp_path / "ours", names) as ours,
    ):
        with Wire(ours.address) as wire:
            for number in range(COUNT):
                answer = wire.ask(send_command(b"%d" % number, topic=TOPIC))
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            messages = {int(each.body): each for each in receive(wire)}
            assert len(messages) == COUNT
            for number in ACKED:
                assert wire.ask(ack_command(messages[number])).code == ResponseCode.SUCCESS
            assert offset_of(wire) == 3
            wait_until(lambda: table_of(ours).journal is not None, "the table names its journal")
        if kills:
            ours.child.kill()
        else:
            ours.stop()
        saved = table_of(ours)
        assert saved.journal is not None
    with (
        make_name_server("official", tmp_path / "names2") as names,
        make_broker("official", tmp_path / "official", names, ours.store) as official,
    ):
        with Wire(official.address) as wire:
            assert offset_of(wire) == saved.offset_table[f"{TOPIC}@{GROUP}"][0] <= 3
            header = UpdateConsumerOffsetHeader(GROUP, TOPIC, 0, 4)
            command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
            assert wire.ask(command).code == ResponseCode.SUCCESS
        official.stop()
        left = table_of(official)
        assert (left.journal, left.offset_table[f"{TOPIC}@{GROUP}"]) == (None, {0: 4})
    with (
        make_name_server("ours", tmp_path / "names3") as names,
        make_broker("ours", tmp_path / "again", names, ours.store) as again,
        Wire(again.address) as wire,
    ):
        assert offset_of(wire) == 4
        assert [each.body for each in receive(wire)] == [
            b"%d" % number for number in range(4, COUNT)
        ]
