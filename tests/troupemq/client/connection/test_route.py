"""Name servers given, routes read, and brokers found."""

from dataclasses import replace

import pytest

from protocol.bodies import BrokerData, QueueData, TopicRouteData
from protocol.codes import RequestCode, ResponseCode
from tests.troupemq.client.cluster import Cluster
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq.client.connection import route as route_module
from troupemq.client.connection.route import namesrv_addresses, route_of
from troupemq.client.errors import ConnectionFailed, RouteNotFound
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.producer import Producer


def data(*queues: QueueData) -> TopicRouteData:
    return TopicRouteData(
        list(queues),
        [
            BrokerData("c", "a", {0: "1.1.1.1:1", 1: "1.1.1.1:2"}),
            BrokerData("c", "slaves", {1: "1.1.1.1:3"}),
        ],
    )


def test_only_writable_queues_with_a_master_get_messages() -> None:
    route = route_of("T", data(QueueData("a", 1, 2, 6), QueueData("slaves", 1, 1, 6)))
    assert route.publish_queues == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))
    assert route.subscribe_queues == (MessageQueue("T", "a", 0), MessageQueue("T", "slaves", 0))


def test_queues_named_twice_are_there_once() -> None:
    """The members of a group shared the list out, and two of them consumed one queue."""
    twice = route_of("T", data(QueueData("a", 2, 2, 6), QueueData("a", 3, 2, 6)))
    assert [each.queue_id for each in twice.subscribe_queues] == [0, 1, 2]
    assert [each.queue_id for each in twice.publish_queues] == [0, 1]


def test_an_ordered_topic_has_the_queues_of_its_order_while_a_broker_is_down() -> None:
    """Messages of a key went to another queue then, and to other ones than those of Java."""
    route = replace(data(QueueData("a", 2, 2, 6)), order_topic_conf="b:1;a:2:x;")
    names = [(each.broker_name, each.queue_id) for each in route_of("T", route).publish_queues]
    assert names == [("b", 0), ("a", 0), ("a", 1)]
    assert len(route_of("T", route).subscribe_queues) == 2
    assert len(route_of("New", route, 4).publish_queues) == 2, "the default topic's order"


@pytest.mark.parametrize(
    "order", [";", "a", "a:", "a:x", "a:0", "a:-1", ":1", "a:1;;b:1", "a:262145", f"a:{'1' * 99}"]
)
def test_an_odd_order_of_a_topic_is_ignored(order: str, caplog: pytest.LogCaptureFixture) -> None:
    route = route_of("T", replace(data(QueueData("a", 1, 1, 6)), order_topic_conf=order))
    assert route.publish_queues == route.subscribe_queues == (MessageQueue("T", "a", 0),)
    assert "invalid order of a topic ignored" in caplog.text


@pytest.mark.parametrize("perm, counts", [(6, (2, 1)), (2, (2, 0)), (4, (0, 1)), (0, (0, 0))])
def test_topic_permissions_are_respected(perm: int, counts: tuple[int, int]) -> None:
    route = route_of("T", data(QueueData("a", 1, 2, perm)))
    assert (len(route.publish_queues), len(route.subscribe_queues)) == counts


def test_the_default_topics_route_is_used_with_fewer_queues() -> None:
    route = route_of("New", data(QueueData("a", 8, 8, 7)), 4)
    assert len(route.publish_queues) == 4 and route.stands_in


@pytest.mark.parametrize(
    "given, expected",
    [
        ("a:1", ("a:1",)),
        ("a:1; b:2", ("a:1", "b:2")),
        ("a:1,b:2", ("a:1", "b:2")),
        (["a:1", "b:2"], ("a:1", "b:2")),
        (["a:1;b:2", "c:3,d:4"], ("a:1", "b:2", "c:3", "d:4")),
        (None, ("127.0.0.1:9876",)),
    ],
)
def test_name_servers_are_accepted_in_several_forms(
    given: str | list[str] | None, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert namesrv_addresses(given) == expected


def test_the_environment_names_the_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "c:3")
    assert namesrv_addresses(None) == ("c:3",)


@pytest.mark.parametrize("given", ["", "a", "a:b", ";"])
def test_an_invalid_name_server_address_is_refused(given: str) -> None:
    with pytest.raises(ConnectionFailed, match="host:port"):
        namesrv_addresses(given)


def test_brokers_without_a_topic_are_removed(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        assert len({queue.broker_name for queue in producer.queues("T")}) == 2
        routes = producer._client.routes
        assert routes.name_of(cluster.b.address) == "b"
        serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 2})
        routes.refresh(())
        assert routes.all_addresses(masters_only=True) == [cluster.a.address]
        assert routes.name_of(cluster.b.address) == cluster.b.address
        cluster.namesrv.close()
        routes.refresh(())
        assert routes.all_addresses(masters_only=True) == [cluster.a.address]


def test_a_topic_that_no_broker_would_create_is_named(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 2})
    with cluster.producer() as producer, pytest.raises(RouteNotFound, match="topic New, and no"):
        producer.send(Message("New", b"x"))


def test_a_brokers_port_is_distinguished_from_an_unreachable_name_server() -> None:
    """`-n 127.0.0.1:10911` said REQUEST_CODE_NOT_SUPPORTED, and asked no other name server."""
    asked = RequestCode.GET_ROUTEINFO_BY_TOPIC
    with FakeServer() as broker, FakeServer() as namesrv:
        broker.on(asked, lambda each: each.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        with (
            Producer("g", broker.address) as producer,
            pytest.raises(ConnectionFailed, match=f"{broker.address}: a broker listens there"),
        ):
            producer.queues("T")
        namesrv.on(asked, lambda each: each.answer(ResponseCode.TOPIC_NOT_EXIST))
        with (
            Producer("g", [broker.address, namesrv.address]) as producer,
            pytest.raises(RouteNotFound),
        ):
            producer.queues("T")


def test_a_silent_name_server_costs_one_timeout_and_not_one_for_each_missing_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first send to a new topic took 6 s, and each look-up of a missing one 3 s again."""
    monkeypatch.setattr(route_module, "LOOK_UP_TIMEOUT_MS", 100)
    with FakeServer() as silent, FakeServer() as namesrv:
        serve_routes(namesrv, {}, {})
        with Producer("p", [silent.address, namesrv.address]) as producer:
            for topic in ("New", "Other"):
                with pytest.raises(RouteNotFound):
                    producer.queues(topic)
        assert silent.received.qsize() == 1


def test_addresses_with_blanks_between_are_not_one_address() -> None:
    """`a:1 b:2` was looked up as the name of one host."""
    with pytest.raises(ConnectionFailed, match="is not one address: separate several with ;"):
        namesrv_addresses("a:1 b:2")
