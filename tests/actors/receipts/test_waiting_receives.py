"""Receives that wait, through a whole broker: for messages, or for a compiled expression."""

from dataclasses import replace

from protocol.command import RemotingCommand
from tests.actors.receipts.test_receipts import bodies, numbered, receive
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.pulls import broker
from tests.support.receiving import Received, change_command, receive_command, received

ONE_SECOND = replace(STORE, message_delay_level="1s 5s")


def retry_all(made: SimulatedBroker, messages: list[Received]) -> None:
    for each in messages:
        assert made.ask(change_command(each, 0, retry_delay_level=1)).code == 0


def test_retry_comes_at_once_to_a_receive_of_another_queue() -> None:
    made = broker(store=ONE_SECOND)
    numbered(made, 1)
    retry_all(made, receive(made))
    answers: list[RemotingCommand] = []
    made.client.start(receive_command(queue_id=1, wait_ms=15_000), answers.append)
    made.system.advance(1_500)
    assert [bodies(received(each)) for each in answers] == [[b"0"]]


def test_retries_kept_for_a_topic_wake_all_its_receives() -> None:
    """A receive of another topic, which has them looked at first, has kept them."""
    made = broker(store=ONE_SECOND)
    made.make_topic("Other")
    numbered(made, 3)
    retry_all(made, receive(made))
    answers: list[RemotingCommand] = []
    made.client.start(receive_command(topic="Other", wait_ms=15_000))
    for _ in range(3):
        made.client.start(receive_command(count=1, wait_ms=15_000), answers.append)
    made.system.advance(1_500)
    assert sorted(bodies(received(each))[0] for each in answers) == [b"0", b"1", b"2"]


def test_message_for_a_closing_connection_wakes_the_next_receive() -> None:
    made = broker()
    closing, other = made.new_client(2), made.new_client(3)
    answers: list[RemotingCommand] = []
    for each in (closing, other):
        each.start(receive_command(wait_ms=15_000), answers.append)
    made.system.drain()
    closing.is_open = False
    numbered(made, 1)
    made.system.advance(100)
    assert [bodies(received(each)) for each in answers] == [[b"0"]]


def test_receive_takes_nothing_if_its_connection_closes_before_it_is_compiled() -> None:
    made = broker(property_filter_enable=True)
    numbered(made, 1)
    closed = made.new_client(2)
    expression = "closed_before_it_is_compiled IS NULL"
    closed.start(receive_command(hold=True, expression=expression, expression_type="SQL92"))
    closed.close()
    made.system.advance(100)
    assert bodies(receive(made)) == [b"0"]
