"""Publications with `confirm_publish = False`."""

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed")
# ruff: noqa: E402

from kombu.exceptions import OperationalError

from tests.compat.patience import wait_until
from tests.manual.following import ROOT
from troupemq.client.errors import ClientBusy, MessageIllegal
from troupemq.testing import LocalBroker

Connect = Callable[..., Any]

WAIT_S = 10.0
PROGRAM = """
import sys, kombu, troupemq.kombu
connection = kombu.Connection(sys.argv[1], transport_options={"confirm_publish": False})
producer = connection.Producer()
for number in range(20):
    producer.publish(str(number), exchange="", routing_key="ending")
"""


def publisher(connect: Connect, name: str) -> tuple[Any, Callable[[str], None]]:
    """Return a connection, and a function that publishes to a queue of that name."""
    connection = connect(transport_options={"confirm_publish": False})
    connection.default_channel.queue_declare(name)
    producer = connection.Producer()
    return connection, lambda body: producer.publish(body, exchange="", routing_key=name)


def in_flight(connection: Any) -> int:
    return int(connection.transport.shared.unconfirmed._in_flight.count)


def bodies(connection: Any, name: str) -> list[str]:
    """Take all messages of a queue."""
    found = []
    while (message := connection.default_channel.basic_get(name, no_ack=True)) is not None:
        found.append(message.payload)
    return found


def test_publications_keep_their_order(broker: LocalBroker, connect: Connect) -> None:
    _, publish = publisher(connect, "ordered")
    for number in range(30):
        publish(str(number))
    broker.expect("k-ordered", times=30)
    assert bodies(connect(), "ordered") == [str(number) for number in range(30)]


def test_messages_gather_while_a_request_is_in_flight(
    broker: LocalBroker, connect: Connect
) -> None:
    connection, publish = publisher(connect, "gathered")
    fault = broker.slow(200, "send")
    long = "x" * (100 << 10)
    sent = ["0", *(str(number) for number in range(1, 8)), long, "8", "9"]
    for body in sent:
        publish(body)
    assert in_flight(connection) == len(sent)
    connection.release()
    fault.is_ended = True
    assert fault.hits == 4, "the first, a batch, the long one, a batch"
    assert bodies(connect(), "gathered") == sent


def test_messages_are_limited(
    broker: LocalBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupemq.kombu.unconfirmed.COUNT_MAX", 2)
    monkeypatch.setattr("troupemq.kombu.unconfirmed.WAIT_S", 0.05)
    connection, publish = publisher(connect, "limited")
    with pytest.raises(MessageIllegal, match="size"):
        publish("x" * (5 << 20))
    broker.slow(200, "send", times=1)
    publish("0")
    publish("1")
    with pytest.raises(ClientBusy):
        publish("2")
    wait_until(lambda: in_flight(connection) == 0, "the answers", WAIT_S)
    assert bodies(connect(), "limited") == ["0", "1"]


def test_failure_is_logged_and_raised_by_the_next_publication(
    broker: LocalBroker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connection, publish = publisher(connect, "refusing")
    broker.fail("send", "SYSTEM_BUSY", times=1)
    with caplog.at_level(logging.ERROR):
        publish("refused")
        wait_until(lambda: in_flight(connection) == 0, "the refusal", WAIT_S)
    assert "message not published topic=k-refusing" in caplog.text
    with pytest.raises(OperationalError, match=r"earlier message.*not sent.*SYSTEM_BUSY"):
        publish("not sent")
    publish("stored")
    connection.release()
    assert bodies(connect(), "refusing") == ["stored"]


def test_messages_in_flight_were_lost_when_there_was_no_room(
    broker: LocalBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu closed the connection and published the message that found no room over a new one."""
    monkeypatch.setattr("troupemq.kombu.unconfirmed.COUNT_MAX", 2)
    monkeypatch.setattr("troupemq.kombu.unconfirmed.WAIT_S", 0.05)
    connection = connect(transport_options={"confirm_publish": False})
    connection.default_channel.queue_declare("full")
    producer = connection.Producer()
    broker.slow(300, "send", times=1)
    for number in range(2):
        producer.publish(str(number), routing_key="full", retry=True)
    with pytest.raises(ClientBusy):
        producer.publish("2", routing_key="full", retry=True)
    wait_until(lambda: in_flight(connection) == 0, "the answers", WAIT_S)
    producer.publish("3", routing_key="full", retry=True)
    connection.release()
    assert bodies(connect(), "full") == ["0", "1", "3"]


def test_loss_at_a_reconnection_was_raised_by_no_publication(
    broker: LocalBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupemq.kombu.unconfirmed.WAIT_S", 0.05)
    connection, publish = publisher(connect, "closed")
    fault = broker.lose("send", times=1)
    publish("lost")
    connection.collect()  # as kombu does before it connects again
    assert fault.hits == 1
    producer = connection.Producer()
    with pytest.raises(OperationalError, match=r"earlier message.*not sent"):
        producer.publish("not sent", routing_key="closed")
    producer.publish("stored", routing_key="closed")
    connection.release()
    assert bodies(connect(), "closed") == ["stored"]


def test_passing_failure_is_tried_again(broker: LocalBroker, connect: Connect) -> None:
    """In its place: what was published later waits."""
    connection, publish = publisher(connect, "passing")
    broker.fail("send", "SYSTEM_ERROR", times=1)
    for number in range(3):
        publish(str(number))
    connection.release()
    assert bodies(connect(), "passing") == ["0", "1", "2"]


def test_close_waits_for_messages_in_flight(broker: LocalBroker, connect: Connect) -> None:
    connection, publish = publisher(connect, "closing")
    broker.slow(200, "send", times=1)
    publish("task")
    assert in_flight(connection) == 1
    connection.release()
    assert bodies(connect(), "closing") == ["task"]


@pytest.mark.slow
def test_end_of_the_process_waits_for_messages_in_flight(
    broker: LocalBroker, connect: Connect
) -> None:
    connection = connect()
    connection.default_channel.queue_declare("ending")
    broker.slow(300, "send", times=20)
    command = [sys.executable, "-c", PROGRAM, f"troupemq://{broker.namesrv}//"]
    subprocess.run(command, check=True, cwd=ROOT, timeout=30)
    assert sorted(bodies(connection, "ending"), key=int) == [str(number) for number in range(20)]
