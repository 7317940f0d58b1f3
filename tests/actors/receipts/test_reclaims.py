"""Holds of connections that have ended, reclaimed by another connection, through a whole broker."""

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import NotificationHeader
from tests.actors.receipts.test_receipts import ack, bodies, numbered, receive, restart
from tests.support.brokers import SimulatedBroker
from tests.support.pulls import broker, committed
from tests.support.receiving import (
    Received,
    change_command,
    changed,
    receive_command,
    received,
)
from troupemq.testing.virtual_broker import LocalClient


def hold(client: LocalClient, **options: object) -> list[Received]:
    """Receive messages that are held with the connection of `client`."""
    return received(client.request(receive_command(hold=True, **options)))  # type: ignore[arg-type]


def reclaim(client: LocalClient, message: Received) -> int:
    """Return the code of the answer."""
    return client.request(change_command(message, 10_000, hold=True)).code


def test_hold_moves_to_the_connection_that_reclaims_it() -> None:
    made = broker()
    numbered(made, 2)
    first, second = made.new_client(2), made.new_client(3)
    held, left = hold(first)
    first.close()
    made.system.advance(800)
    answer = second.request(change_command(held, 10_000, hold=True))
    assert answer.code == 0 and (answer.fields or {})["holdWithConnection"] == "true"
    assert changed(held, answer).parsed.pop_time_ms == held.parsed.pop_time_ms
    made.system.advance(100_000)
    assert bodies(receive(made)) == [left.body], "nothing has reclaimed it"
    second.close()
    made.system.advance(800)
    assert receive(made) == []
    made.system.advance(400)
    assert bodies(receive(made)) == [held.body]


def test_reclaimed_message_keeps_its_handle_so_that_a_lost_answer_costs_nothing() -> None:
    made = broker()
    numbered(made, 1)
    first, second = made.new_client(2), made.new_client(3)
    (held,) = hold(first)
    first.close()
    assert reclaim(second, held) == reclaim(second, held) == 0
    assert ack(made, held) == 0
    assert committed(made) == 1
    second.close()
    made.system.advance(5_000)
    assert receive(made) == []


def test_hold_moves_from_a_connection_whose_end_the_broker_has_not_seen() -> None:
    made = broker()
    numbered(made, 1)
    first, second = made.new_client(2), made.new_client(3)
    (held,) = hold(first)
    assert reclaim(second, held) == 0
    first.close()
    made.system.advance(5_000)
    assert receive(made) == []


def test_message_that_was_given_back_is_not_reclaimed() -> None:
    made = broker()
    numbered(made, 1)
    first, second = made.new_client(2), made.new_client(3)
    (held,) = hold(first)
    first.close()
    made.system.advance(1_500)
    assert reclaim(second, held) == ResponseCode.NO_MESSAGE
    assert bodies(receive(made)) == [held.body]


def test_closed_connection_reclaims_nothing() -> None:
    made = broker()
    numbered(made, 1)
    first, second = made.new_client(2), made.new_client(3)
    (held,) = hold(first)
    first.close()
    second.close()
    made.system.drain()
    second.start(change_command(held, 10_000, hold=True))
    made.system.advance(1_500)
    assert bodies(receive(made)) == [held.body]


def test_batch_received_in_order_is_reclaimed_within_the_grace_time_alone() -> None:
    made = broker()
    numbered(made, 3)
    first, second = made.new_client(2), made.new_client(3)
    held = hold(first, order=True, queue_id=0, count=2)
    first.close()
    assert [reclaim(second, each) for each in held] == [0, 0]
    made.system.advance(5_000)
    assert receive(made, order=True, queue_id=0) == []
    restart(made)
    third = made.new_client(4)
    assert reclaim(third, held[0]) == ResponseCode.NO_MESSAGE, "later ones would overtake it"
    assert bodies(receive(made, order=True, queue_id=0)) == [b"0", b"1", b"2"]


def waiting(made: SimulatedBroker, port: int, command: RemotingCommand) -> list[RemotingCommand]:
    """Return a list that gets the answer."""
    answers: list[RemotingCommand] = []
    made.new_client(port).start(command, answers.append)
    made.system.drain()
    return answers


def test_holds_from_before_a_restart_are_reclaimed_before_others_receive() -> None:
    made = broker()
    numbered(made, 3)
    held, left, settled = hold(made.new_client(2))
    assert ack(made, settled) == 0
    restart(made)
    answers = waiting(made, 3, receive_command(hold=True, wait_ms=10_000))
    notices = waiting(made, 4, notification())
    made.system.advance(1_500)
    assert answers == notices == []
    holder = made.new_client(5)
    assert reclaim(holder, held) == 0
    made.system.advance(600)
    assert bodies(received(answers[0])) == [left.body]
    made.system.advance(100_000)
    assert receive(made) == []
    assert notices[0].fields == {"hasMsg": "false", "pollingFull": "false"}
    holder.close()
    made.system.advance(1_500)
    assert bodies(receive(made)) == [held.body]


def notification() -> RemotingCommand:
    header = NotificationHeader(
        consumer_group="consumers", topic="Topic", queue_id=-1, poll_time_ms=10_000
    )
    return RemotingCommand(RequestCode.NOTIFICATION, header.encode())


def test_restart_delays_nothing_where_all_was_settled() -> None:
    made = broker()
    numbered(made, 1)
    for each in hold(made.new_client(2)):
        assert ack(made, each) == 0
    restart(made)
    answers = waiting(made, 3, receive_command(hold=True, wait_ms=10_000))
    numbered(made, 1)
    assert bodies(received(answers[0])) == [b"0"]


def test_restart_delays_no_receive_long_after_it() -> None:
    made = broker()
    numbered(made, 1)
    (held,) = hold(made.new_client(2))
    restart(made)
    made.system.advance(5_000)
    assert bodies(hold(made.new_client(3))) == [held.body]
