"""Messages are found by key and by id, at every broker of a topic, over sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.headers.client import QueryMessageHeader
from protocol.message import MessageRecord, encode_record
from tests.compat.patience import wait_until
from tests.support.sockets import serving_broker, serving_namesrv
from troupemq.client.admin import Admin
from troupemq.client.admin.messages import key_question, views_with_key
from troupemq.client.errors import BrokerError, MessageIllegal, RouteNotFound
from troupemq.client.message import Message, SendResult
from troupemq.client.producing.producer import Producer


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Admin, Producer]]:
    """A broker with its name server, an Admin and a Producer."""
    with serving_namesrv(tmp_path / "names") as names:
        address = f"127.0.0.1:{names.port}"
        with (
            serving_broker(tmp_path / "store", namesrv_address=address) as running,
            Admin(address) as admin,
            Producer("pg", address) as producer,
        ):
            registered = running.broker.attachment.registered
            wait_until(lambda: registered.value == 1, "the broker is registered")
            admin.create_topic("T")
            wait_until(lambda: is_known(admin, "T"), "the name server knows the topic")
            yield admin, producer


def test_a_topic_deleted_in_one_cluster_stays_ordered_in_another(tmp_path: Path) -> None:
    with serving_namesrv(tmp_path / "names") as names:
        address = f"127.0.0.1:{names.port}"
        other: dict[str, Any] = {"broker_name": "broker-b", "broker_cluster_name": "Other"}
        with (
            serving_broker(tmp_path / "a", namesrv_address=address) as first,
            serving_broker(tmp_path / "b", namesrv_address=address, **other) as second,
            Admin(address) as admin,
        ):
            for running in (first, second):
                registered = running.broker.attachment.registered
                wait_until(lambda: registered.value == 1, "the broker is registered")  # noqa: B023
            own, cluster = first.broker.config.broker_name, first.broker.config.broker_cluster_name
            list(admin.update_topic("T", 4, 4, order=True))
            assert admin.order_of("T") == f"{own}:4;broker-b:4"
            list(admin.delete_topic("T", cluster))
            assert admin.order_of("T") == "broker-b:4"
            list(admin.delete_topic("T", "Other"))
            assert admin.order_of("T") is None


def is_known(admin: Admin, topic: str) -> bool:
    try:
        return bool(admin.queues(topic))
    except RouteNotFound:
        return False


def sent(producer: Producer, count: int, key: str) -> list[SendResult]:
    return [
        producer.send(Message("T", b"%d" % number, keys=(key, f"{key}{number}")))
        for number in range(count)
    ]


def test_messages_are_found_by_key_and_by_message_id(cluster: tuple[Admin, Producer]) -> None:
    admin, producer = cluster
    results = sent(producer, 5, "k")
    assert sorted(view.body for view in admin.query_by_key("T", "k")) == [
        b"%d" % number for number in range(5)
    ]
    assert [view.body for view in admin.query_by_key("T", "k3")] == [b"3"]
    (view,) = admin.query_by_key("T", results[2].message_id)
    assert (view.message_id, view.queue) == (results[2].message_id, results[2].queue)
    assert len(admin.query_by_key("T", "k", 2)) == 2
    assert admin.query_by_key("T", "nobody") == []
    assert admin.query_by_key("T", "k", end_ms=1000) == []


def test_a_message_is_found_by_the_brokers_id(cluster: tuple[Admin, Producer]) -> None:
    admin, producer = cluster
    (result,) = sent(producer, 1, "k")
    view = admin.view_message(result.offset_message_id)
    assert (view.body, view.queue, view.queue_offset) == (b"0", result.queue, 0)
    assert view.offset_message_id == result.offset_message_id
    with pytest.raises(BrokerError, match="can not find message by the offset, 1099511627776"):
        admin.view_message(result.offset_message_id[:-16] + f"{1 << 40:016X}")


def test_queues_given_from_outside_can_be_queried(cluster: tuple[Admin, Producer]) -> None:
    admin, producer = cluster
    (result,) = sent(producer, 1, "k")
    assert admin.offsets(result.queue) == (0, 1)


def test_missing_messages_are_an_error(cluster: tuple[Admin, Producer]) -> None:
    admin, _ = cluster
    with pytest.raises(RouteNotFound):
        admin.query_by_key("no-such-topic", "k")
    with pytest.raises(MessageIllegal, match="32 or 56"):
        admin.view_message("123")


def test_hash_collisions_are_omitted() -> None:
    """4.9.7 knows the hash of topic and key, and times to a second."""
    stored = [("Aa", b"KEYS\x01k", 5000), ("BB", b"KEYS\x01k", 5000), ("Aa", b"KEYS\x01k", 4999)]
    body = b"".join(
        encode_record(MessageRecord(topic, b"x", properties, store_timestamp=stored_ms))
        for topic, properties, stored_ms in stored
    )
    header = QueryMessageHeader("Aa", "k", 9, 5000, 9000)
    assert key_question(header).begin_timestamp == 4001
    found = views_with_key(body, "broker-a", header)
    assert [(view.queue.topic, view.store_timestamp_ms) for view in found] == [("Aa", 5000)]
