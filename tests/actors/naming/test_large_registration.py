"""Tests of actors/naming/namesrv_link.py: very many topics, sent in parts that fit into frames."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actors.naming.namesrv_link import PART_TOPICS, WHOLE_TOPICS_MAX
from actors.naming.route_table import RouteTable
from actors.tables.messages import RegisterAll
from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from tests.support.registering import (
    QUERY,
    REGISTER,
    Bench,
    FakeNamesrv,
    registered,
    registration,
)

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
            changed = self.routes.is_changed(ADDRESS, DataVersion.decode(request.body))
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
    names = ["broker-a", *(f"topic-{number}" for number in range(count - 1))]
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


@pytest.mark.heavy
def test_very_many_topics_are_registered_in_parts_that_fit_into_frames() -> None:
    with crowded() as (bench, namesrv):
        assert namesrv.take_sizes() == [PART_TOPICS] * 3 + [MANY - 3 * PART_TOPICS]
        assert len(namesrv.routes.topics()) == MANY
        assert namesrv.routes.data_version(ADDRESS) == DataVersion(5000, 1)
        assert not namesrv.routes.is_changed(ADDRESS, DataVersion(5000, 1)), "the table is whole"
        bench.system.advance(10_000)
        assert namesrv.take_sizes() == [0], "a sign of life; the answer says what is ordered"


@pytest.mark.heavy
def test_only_changes_of_a_large_topic_table_are_registered_again() -> None:
    with crowded() as (bench, namesrv):
        namesrv.take_sizes()
        table = many(2)
        table.topic_configs["topic-7"] = TopicConfig("topic-7", 9, 9)
        table.topic_configs["New"] = TopicConfig("New")
        bench.table.value = table
        bench.tell(RegisterAll())
        assert namesrv.take_sizes() == [3], "with the broker's own name"
        route = namesrv.routes.route("topic-7")
        assert route is not None
        assert route.queue_datas[0].write_queue_nums == 9
        assert namesrv.routes.data_version(ADDRESS) == DataVersion(5000, 2)


@pytest.mark.heavy
def test_a_restarted_name_server_gets_a_large_topic_table_completely() -> None:
    with crowded() as (bench, namesrv):
        namesrv.take_sizes()
        namesrv.routes = RouteTable()
        bench.system.advance(10_000)
        assert sum(namesrv.take_sizes()) == MANY
        assert len(namesrv.routes.topics()) == MANY


@pytest.mark.heavy
@pytest.mark.parametrize("part", [1, 2, 4])
def test_a_partly_refused_large_registration_is_repeated(part: int) -> None:
    with crowded(fails_at=part) as (bench, namesrv):
        assert len(namesrv.take_sizes()) == part
        namesrv.fails_at = -1
        bench.table.value = many(1, queues=5)  # the same version: nothing may be taken for known
        bench.system.advance(10_000)
        assert sum(namesrv.take_sizes()) == MANY
        found = [namesrv.routes.route(name) for name in bench.table.value.topic_configs]
        assert {each and each.queue_datas[0].read_queue_nums for each in found} == {5}


@pytest.mark.heavy
def test_parts_after_a_closed_connection_do_not_count_as_complete() -> None:
    """A name server that restarted got the last part alone, with the version of the table."""
    with registration(1) as bench:
        (fake,) = bench.namesrvs
        namesrv = Collecting("n")

        def answer(request: RemotingCommand) -> RemotingCommand:
            answered = namesrv.answer(request)
            if len(namesrv.sizes) == 2 and fake.connection_count == 1:
                namesrv.routes = RouteTable()
                fake.connection_count = 2
                fake.connected = False
            return answered

        fake.answer = answer
        bench.table.value = many(1)
        bench.listen()
        assert namesrv.take_sizes() == [PART_TOPICS, PART_TOPICS]
        assert namesrv.routes.data_version(ADDRESS) is None
        bench.system.advance(5_000)
        assert len(namesrv.routes.topics()) == MANY


def test_a_slave_with_very_many_topics_sends_no_topics() -> None:
    with registration(1, broker_role="SLAVE", broker_id=1) as bench:
        namesrv = Collecting("n")
        bench.namesrvs[0].answer = namesrv.answer
        bench.table.value = many(1)
        bench.listen()
        assert namesrv.take_sizes() == [0]
