"""Tests of actors/registration.py and namesrv_link.py: a broker and its name servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from actors.config import BrokerConfig
from actors.master_news import MasterAt, MasterIs
from actors.namesrv_client import NamesrvUnreachable
from actors.namesrv_link import PART_TOPICS, WHOLE_TOPICS_MAX, NamesrvLink
from actors.published import Published
from actors.registration import (
    Listening,
    RegisterAll,
    RegisterTopic,
    Registration,
    SetOrderTopics,
)
from actors.route_table import RouteTable
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
    connection_count: int = 1

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
        links = [
            ChildSpec(
                address,
                lambda _, address=address: NamesrvLink(  # type: ignore[misc]
                    config,
                    address,
                    table=table,
                    registration=system.address("registration"),
                    connect=namesrvs.__getitem__,
                ),
            )
            for address in config.namesrv_addresses
        ]
        system.start(
            *links,
            ChildSpec(
                "registration",
                lambda _: Registration(
                    config,
                    links=[system.address(address) for address in config.namesrv_addresses],
                    leaving=Published(False),
                    addresses={
                        "topics": topics.address,
                        "ha_slave": master.address,
                        "slave_sync": master.address,
                    },
                ),
            ),
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


def test_a_name_server_that_is_down_is_tried_again() -> None:
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


def test_the_first_name_server_that_is_up_says_which_topics_are_ordered() -> None:
    with registration() as bench:
        for namesrv, topic in zip(bench.namesrvs, ("T", "U"), strict=True):
            body = KVTable({topic: "broker-a:4"}).encode()
            namesrv.answer = lambda request, body=body: request.answer(body=body)  # type: ignore[misc]
        bench.namesrvs[0].down = True
        bench.listen()
        assert bench.topics.take() == [SetOrderTopics(frozenset(("U",)))]
        bench.namesrvs[0].down = False
        bench.system.advance(10_000)
        assert bench.topics.take()[-1] == SetOrderTopics(frozenset(("T",)))
        bench.system.advance(30_000)
        assert bench.topics.take() == [SetOrderTopics(frozenset(("T",)))]


def test_a_name_server_that_has_begun_anew_gets_the_whole_table_first() -> None:
    with registration(1) as bench:
        bench.listen()
        (namesrv,) = bench.namesrvs
        namesrv.take()
        topic = RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 4))
        namesrv.connection_count += 1
        bench.tell(topic)
        first, second = namesrv.asked
        assert set(registered(first).topic_config_table.topic_configs) == {"New"}
        assert registered(second).topic_config_table == bench.table.value
        namesrv.take()
        namesrv.down = True
        bench.system.advance(10_000)
        namesrv.down = False
        bench.tell(topic)
        (request,) = namesrv.asked
        assert registered(request).topic_config_table == bench.table.value


# --- very many topics

MANY = WHOLE_TOPICS_MAX + PART_TOPICS


class Collecting(FakeNamesrv):
    """Keeps topics and versions as a name server does."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.routes = RouteTable()
        self.answer = self._answer
        self.sizes: list[int] = []
        self.fails_at = -1

    def _answer(self, request: RemotingCommand) -> RemotingCommand:
        if request.code == QUERY:
            version = self.routes.data_version(ADDRESS)
            body = None if version is None else version.encode()
            changed = version != DataVersion.decode(request.body)
            return request.answer(fields={"changed": str(changed).lower()}, body=body)
        if request.code == REGISTER:
            table = registered(request).topic_config_table
            self.sizes.append(len(table.topic_configs))
            if len(self.sizes) == self.fails_at:
                return request.answer(1, remark="out of order")
            header = RegisterBrokerHeader.decode(request.fields)
            self.routes.register(header, table, [], 1, 0)
        return request.answer(fields={})

    def take_sizes(self) -> list[int]:
        sizes, self.sizes = self.sizes, []
        return sizes


ADDRESS = "10.0.0.1:10911"


def many(version: int, count: int = MANY, queues: int = 4) -> TopicConfigTable:
    names = [f"topic-{number}" for number in range(count)]
    configs = {name: TopicConfig(name, queues, queues) for name in names}
    return TopicConfigTable(configs, DataVersion(5000, version))


@contextmanager
def crowded(fails_at: int = -1) -> Iterator[tuple[Bench, Collecting]]:
    with registration(1) as bench:
        namesrv = Collecting("n")
        namesrv.fails_at = fails_at
        bench.namesrvs[0].answer = namesrv.answer
        bench.table.value = many(1)
        bench.listen()
        yield bench, namesrv


def test_very_many_topics_are_registered_in_parts_that_fit_into_frames() -> None:
    with crowded() as (bench, namesrv):
        assert namesrv.take_sizes() == [PART_TOPICS] * 3 + [MANY - 3 * PART_TOPICS]
        assert len(namesrv.routes.topics()) == MANY
        assert namesrv.routes.data_version(ADDRESS) == DataVersion(5000, 1)
        bench.system.advance(10_000)
        assert namesrv.take_sizes() == [0], "a sign of life; the answer says what is ordered"


def test_of_very_many_topics_only_what_has_changed_is_registered_again() -> None:
    with crowded() as (bench, namesrv):
        namesrv.take_sizes()
        table = many(2)
        table.topic_configs["topic-7"] = TopicConfig("topic-7", 9, 9)
        table.topic_configs["New"] = TopicConfig("New")
        bench.table.value = table
        bench.tell(RegisterAll())
        assert namesrv.take_sizes() == [2]
        route = namesrv.routes.route("topic-7")
        assert route is not None
        assert route.queue_datas[0].write_queue_nums == 9
        assert namesrv.routes.data_version(ADDRESS) == DataVersion(5000, 2)


def test_a_name_server_that_has_forgotten_very_many_topics_gets_them_all_again() -> None:
    with crowded() as (bench, namesrv):
        namesrv.take_sizes()
        namesrv.routes = RouteTable()
        bench.system.advance(10_000)
        assert sum(namesrv.take_sizes()) == MANY
        assert len(namesrv.routes.topics()) == MANY


@pytest.mark.parametrize("part", [1, 2, 4])
def test_very_many_topics_of_which_a_part_was_refused_come_again(part: int) -> None:
    with crowded(fails_at=part) as (bench, namesrv):
        assert len(namesrv.take_sizes()) == part
        namesrv.fails_at = -1
        bench.table.value = many(1, queues=5)  # the same version: nothing may be taken for known
        bench.system.advance(10_000)
        assert sum(namesrv.take_sizes()) == MANY
        found = [namesrv.routes.route(name) for name in bench.table.value.topic_configs]
        assert {each and each.queue_datas[0].read_queue_nums for each in found} == {5}


def test_a_slave_with_very_many_topics_sends_none_of_them() -> None:
    with registration(1, broker_role="SLAVE", broker_id=1) as bench:
        namesrv = Collecting("n")
        bench.namesrvs[0].answer = namesrv.answer
        bench.table.value = many(1)
        bench.listen()
        assert namesrv.take_sizes() == [0]
