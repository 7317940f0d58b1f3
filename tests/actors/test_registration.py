"""Tests of actors/registration.py: a broker and its name servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from actors.config import BrokerConfig
from actors.master_news import MasterAt, MasterIs
from actors.namesrv_client import NamesrvUnreachable
from actors.published import Published
from actors.registration import (
    Listening,
    RegisterAll,
    RegisterTopic,
    Registration,
    SetOrderTopics,
)
from actors.supervisor import ChildSpec
from actors.system import ActorSystem
from protocol.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.checksum import body_crc
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from tests.support.peers import Told, simulated

REGISTER = RequestCode.REGISTER_BROKER
QUERY = RequestCode.QUERY_DATA_VERSION
UNREGISTER = RequestCode.UNREGISTER_BROKER

Answer = Callable[[RemotingCommand], RemotingCommand]


@dataclass
class FakeNamesrv:
    """A name server that writes down what it is asked."""

    address: str
    asked: list[RemotingCommand] = field(default_factory=list)
    answer: Answer = lambda request: request.answer(fields={})
    down: bool = False
    closed: bool = False

    def call(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        self.tell(request, timeout_s)
        return self.answer(request)

    def tell(self, request: RemotingCommand, timeout_s: float) -> None:
        if self.down:
            raise NamesrvUnreachable("connection refused")
        self.asked.append(request)

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[int]:
        """The codes of what it was asked since the last call."""
        codes, self.asked = [request.code for request in self.asked], []
        return codes


@dataclass
class Bench:
    """A registration, its name servers and its table."""

    system: ActorSystem
    namesrvs: list[FakeNamesrv]
    table: Published[TopicConfigTable]
    topics: Told
    master: Told
    """HaSlave and SlaveSync: what they are told of the master."""

    def listen(self, port: int = 10911) -> None:
        self.tell(Listening(port, port + 1))

    def tell(self, message: object) -> None:
        self.system.address("registration").tell(message)
        self.system.drain()


@contextmanager
def registration(count: int = 2, **settings: Any) -> Iterator[Bench]:
    namesrvs = {f"n{number}:9876": FakeNamesrv(f"n{number}:9876") for number in range(count)}
    config = BrokerConfig(
        broker_name="broker-a",
        broker_ip1="10.0.0.1",
        broker_ip2="10.9.0.1",
        namesrv_address=";".join(namesrvs),
        **settings,
    )
    configs = {"T": TopicConfig("T", 4, 4), "U": TopicConfig("U", 2, 2)}
    table, topics = Published(TopicConfigTable(configs, DataVersion(1000, 3))), Told("topics")
    master = Told("master")
    with simulated() as system:
        system.start(
            ChildSpec(
                "registration",
                lambda _: Registration(
                    config,
                    table=table,
                    addresses={
                        "topics": topics.address,
                        "ha_slave": master.address,
                        "slave_sync": master.address,
                    },
                    connect=namesrvs.__getitem__,
                ),
            )
        )
        yield Bench(system, list(namesrvs.values()), table, topics, master)
    assert all(namesrv.closed for namesrv in namesrvs.values())


def registered(request: RemotingCommand) -> RegisterBrokerBody:
    """What a registration brought; checks its header."""
    header = RegisterBrokerHeader.decode(request.fields)
    body = bytes(request.body or b"")
    assert header.body_crc == body_crc(body)
    return RegisterBrokerBody.decode(body, compressed=header.compressed)


def test_a_broker_registers_at_once_after_ten_seconds_and_then_in_its_rhythm() -> None:
    with registration() as bench:
        bench.system.advance(5000)
        assert bench.namesrvs[0].take() == [], "nobody can reach it yet"
        bench.listen()
        for namesrv in bench.namesrvs:
            assert namesrv.take() == [REGISTER]
        bench.system.advance(9_999)
        assert bench.namesrvs[0].take() == []
        bench.system.advance(1)
        assert bench.namesrvs[0].take() == [REGISTER]
        bench.system.advance(29_999)
        assert bench.namesrvs[0].take() == []
        bench.system.advance(1)
        bench.system.advance(60_000)
        assert bench.namesrvs[1].take() == [REGISTER] * 4


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_says_who_where_and_what(compressed: bool) -> None:
    with registration(compressed_register=compressed) as bench:
        bench.listen(30_001)
        (request,) = bench.namesrvs[0].asked
        header = RegisterBrokerHeader.decode(request.fields)
        assert (header.broker_name, header.cluster_name) == ("broker-a", "DefaultCluster")
        assert header.broker_address == "10.0.0.1:30001"
        assert header.ha_server_address == "10.9.0.1:30002"
        assert (header.broker_id, header.compressed) == (0, compressed)
        assert registered(request).topic_config_table == bench.table.value


def test_goodbye_is_said_to_those_who_know_us() -> None:
    with registration() as bench:
        bench.namesrvs[1].down = True
        bench.listen()
        namesrvs = bench.namesrvs
    assert namesrvs[0].take() == [REGISTER, UNREGISTER]
    assert namesrvs[1].take() == []


def test_a_name_server_that_is_down_is_tried_again_behind_the_others() -> None:
    with registration() as bench:
        bench.namesrvs[0].down = True
        bench.listen()
        assert bench.namesrvs[1].take() == [REGISTER]
        bench.namesrvs[0].down = False
        bench.system.advance(10_000)
        assert bench.namesrvs[0].take() == [REGISTER]


def test_one_changed_topic_is_registered_alone() -> None:
    with registration() as bench:
        bench.listen()
        bench.namesrvs[0].take()
        bench.tell(RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 4)))
        (request,) = bench.namesrvs[0].asked
        table = registered(request).topic_config_table
        assert set(table.topic_configs) == {"New"}
        assert table.data_version == DataVersion(2000, 4)


def test_new_topics_of_a_batch_are_one_registration_without_order() -> None:
    with registration(1) as bench:
        bench.namesrvs[0].answer = lambda request: request.answer(
            body=KVTable({"T": "broker-a:4"}).encode()
        )
        bench.listen()
        assert bench.topics.take() == [SetOrderTopics(frozenset(("T",)))]
        bench.namesrvs[0].take()
        for _ in range(3):
            bench.system.address("registration").tell(RegisterAll())
        bench.system.drain()
        assert 1 <= len(bench.namesrvs[0].take()) <= 3
        assert bench.topics.take() == [], "one-way: there is no answer"


def test_topics_that_come_before_the_ports_are_open_wait_for_them() -> None:
    with registration() as bench:
        bench.tell(RegisterAll())
        bench.tell(RegisterTopic(TopicConfig("New"), DataVersion(1, 1)))
        assert bench.namesrvs[0].take() == []
        bench.listen()
        assert bench.namesrvs[0].take() == [REGISTER]


def test_without_force_a_broker_registers_only_where_it_must() -> None:
    known = {"version": DataVersion(1000, 3)}

    def answer(request: RemotingCommand) -> RemotingCommand:
        if request.code != QUERY:
            return request.answer(fields={})
        changed = "false" if known["version"] == DataVersion(1000, 3) else "true"
        return request.answer(fields={"changed": changed}, body=known["version"].encode())

    with registration(1, force_register=False) as bench:
        bench.namesrvs[0].answer = answer
        bench.listen()
        assert bench.namesrvs[0].take() == [REGISTER], "at the start in any case"
        bench.system.advance(10_000)
        assert bench.namesrvs[0].take() == [QUERY]
        known["version"] = DataVersion(900, 2)
        bench.system.advance(30_000)
        assert bench.namesrvs[0].take() == [QUERY, REGISTER]


def test_a_broker_that_may_not_be_written_says_so_with_each_topic() -> None:
    with registration(1, broker_permission=4) as bench:
        bench.listen()
        (request,) = bench.namesrvs[0].asked
        table = registered(request).topic_config_table
        assert {config.perm for config in table.topic_configs.values()} == {4}
        assert bench.table.value.topic_configs["T"].perm == 6


def test_an_answer_that_is_none_does_no_harm() -> None:
    with registration(1) as bench:
        bench.namesrvs[0].answer = lambda request: request.answer(body=b"{")
        bench.listen()
        bench.namesrvs[0].answer = lambda request: request.answer(1, remark="crc32 not match")
        bench.system.advance(10_000)
        assert bench.topics.take() == []
        assert bench.namesrvs[0].take() == [REGISTER, REGISTER]


def test_a_slave_learns_where_its_master_is_and_that_it_is_gone() -> None:
    with registration(broker_role="SLAVE", broker_id=1) as bench:
        fields = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911"}
        for namesrv in bench.namesrvs:
            namesrv.answer = lambda request: request.answer(fields=fields)
        bench.listen()
        assert bench.master.take() == [MasterAt("10.9.0.2:10912"), MasterIs("10.0.0.2:10911")]
        fields.clear()
        bench.system.advance(10_000)
        assert bench.master.take() == [MasterIs(None)]


def test_a_master_does_not_ask_for_a_master() -> None:
    with registration() as bench:
        fields = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911"}
        for namesrv in bench.namesrvs:
            namesrv.answer = lambda request: request.answer(fields=fields)
        bench.listen()
        assert bench.master.take() == []
