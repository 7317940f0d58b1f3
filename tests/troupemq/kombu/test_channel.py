"""Publications in kombu's `with producer.batch():`, and declarations of exchanges."""

from collections.abc import Callable
from typing import Any

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed")
# ruff: noqa: E402

from kombu import Exchange, Producer, Queue
from kombu.exceptions import BatchPublishError, ChannelError

from tests.compat.patience import wait_until
from troupemq.testing import LocalBroker

Connect = Callable[..., Any]

WAIT_S = 10.0


def publisher(connection: Any, name: str) -> tuple[Producer, Callable[..., Any]]:
    """Return a producer and its `publish` to a queue of that name."""
    producer = Producer(connection.default_channel)
    Queue(name, Exchange(name), name)(connection.default_channel).declare()
    return producer, lambda body: producer.publish(body, exchange=name, routing_key=name)


def bodies(connection: Any, name: str) -> list[str]:
    """Take all messages of a queue."""
    found = []
    while (message := connection.default_channel.basic_get(name, no_ack=True)) is not None:
        found.append(message.payload)
    return found


def test_messages_wait_for_the_end_of_the_block(broker: LocalBroker, connect: Connect) -> None:
    connection = connect()
    producer, publish = publisher(connection, "batched")
    assert producer.supports_batch_publish
    with producer.batch(max_size=4) as batch:
        for number in range(6):
            publish(str(number))
        wait_until(lambda: len(broker.messages("k-batched")) == 4, "a full batch", WAIT_S)
        batch.flush()
        wait_until(lambda: len(broker.messages("k-batched")) == 6, "the rest", WAIT_S)
        publish("6")
    assert bodies(connection, "batched") == [str(number) for number in range(7)]


def test_block_that_fails_sends_nothing_more(broker: LocalBroker, connect: Connect) -> None:
    connection = connect()
    producer, publish = publisher(connection, "failed")
    with pytest.raises(ZeroDivisionError), producer.batch():
        publish("dropped")
        raise ZeroDivisionError
    publish("next")
    assert bodies(connection, "failed") == ["next"]


def test_failure_of_a_message_is_raised(broker: LocalBroker, connect: Connect) -> None:
    connection = connect()
    producer, publish = publisher(connection, "uncertain")
    broker.fail("send", "SYSTEM_BUSY", times=1)
    with pytest.raises(BatchPublishError, match="SYSTEM_BUSY"), producer.batch():
        publish("refused")
        publish("stored")
    assert bodies(connection, "uncertain") == ["stored"]
    with pytest.raises(BatchPublishError, match="size"), producer.batch():
        publish("x" * (5 << 20))


@pytest.mark.parametrize("kind", ["headers", "x-delayed-message"])
def test_unsupported_exchange_is_refused_at_its_declaration(connect: Connect, kind: str) -> None:
    channel = connect().default_channel
    with pytest.raises(ChannelError, match=f"type '{kind}': use direct, topic, fanout"):
        Queue("odd", Exchange("odd", kind))(channel).declare()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.exchange_declare("odd", passive=True)
