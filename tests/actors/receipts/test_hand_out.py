"""Reads of many queues by receives, a limited number in each round; shares of groups."""

from typing import Any

import pytest

from actors.receipts import hand_out
from actors.receipts.held_receives import HeldReceive, WaitTable
from actors.receipts.messages import WakeMore
from actors.receipts.receipts import Receipts
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UnregisterClientHeader
from protocol.headers.pop import NotificationHeader
from storage.reading.get_message import GetResult, get_message
from tests.support.brokers import SimulatedBroker
from tests.support.pulls import broker, fill
from tests.support.receiving import Received, ack_command, receive_command, received


def receive(made: SimulatedBroker, **options: Any) -> list[Received]:
    made.system.drain()
    answer = made.client.request(receive_command(**options), timeout_s=120)
    return received(answer, options.get("topic", "Topic"))


def test_receive_looks_at_some_queues_of_many_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hand_out, "QUEUES_MAX", 4, raising=False)
    asked: list[int] = []
    process, read = Receipts._process, hand_out._Reading.queue

    def counted_process(self: Receipts, receive: HeldReceive) -> None:
        asked.append(0)
        process(self, receive)

    def counted_read(self: Any, topic: str, queue_id: int) -> None:
        asked[-1] += 1
        read(self, topic, queue_id)

    monkeypatch.setattr(Receipts, "_process", counted_process)
    monkeypatch.setattr(hand_out._Reading, "queue", counted_read)
    made = broker()
    made.make_topic("Wide", queues=10)
    for queue_id in (2, 9):
        fill(made, 1, topic="Wide", queue_id=queue_id)
    notice = RemotingCommand(
        RequestCode.NOTIFICATION,
        NotificationHeader(consumer_group="consumers", topic="Wide", queue_id=-1).encode(),
    )
    assert (made.ask(notice).fields or {})["hasMsg"] == "true"
    found = [
        each.record.queue_id
        for count in (1, 1, 32)
        for each in receive(made, topic="Wide", count=count, highest_queue_first=True)
    ]
    assert found == [9, 2]
    assert (made.ask(notice).fields or {})["hasMsg"] == "false"
    assert max(asked) <= 4 + 2 * 1, "own queues, and the retry queue twice"


def test_receive_looks_at_a_limited_number_of_unwanted_messages_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In 512 queues, 3,200 of each were looked at: a tenth of a second, with properties 16."""
    monkeypatch.setattr(hand_out, "EFFORT_MAX", 5)
    asked: list[int] = []
    process, get = Receipts._process, get_message

    def counted_process(self: Receipts, receive: HeldReceive) -> None:
        asked.append(0)
        process(self, receive)

    def counted_get(*arguments: Any, **options: Any) -> GetResult:
        result = get(*arguments, **options)
        asked[-1] += result.next_offset - arguments[2]
        return result

    monkeypatch.setattr(Receipts, "_process", counted_process)
    monkeypatch.setattr(hand_out, "get_message", counted_get)
    made = broker()
    made.make_topic("Wide", queues=6)
    for queue_id in range(6):
        fill(made, 3, topic="Wide", queue_id=queue_id)
    made.start_send(b"wanted", topic="Wide", queue_id=5, properties="TAGS\x01TagA\x02")
    made.system.drain()
    command = receive_command(topic="Wide", expression="TagA", expression_type="TAG", wait_ms=1_000)
    answer = made.client.request(command, timeout_s=120)
    assert [each.record.body for each in received(answer, "Wide")] == [b"wanted"]
    assert max(asked) <= 5 + 3 and len(asked) > 2


def test_check_finds_a_message_that_no_event_has_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hand_out, "QUEUES_MAX", 4, raising=False)
    monkeypatch.setattr(hand_out, "CHECKED_AT_ONCE", 4, raising=False)
    monkeypatch.setattr(WaitTable, "arrived", lambda *_: iter(()))
    made = broker()
    answers: list[RemotingCommand] = []
    made.make_topic("Wide", queues=10)
    for number, topic in enumerate(("Topic", "Topic", "Wide")):
        command = receive_command(topic=topic, group=f"group-{number}", wait_ms=100_000)
        made.client.start(command, answers.append)
    made.system.drain()
    made.start_send(b"late", topic="Wide", queue_id=9)
    made.system.advance(60_000)
    assert [each.code for each in answers] == [0]


def test_group_leaves_others_as_many_messages_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ledgers", "receipts", "settlement"):
        name = f"actors.receipts.{module}.IN_FLIGHT_MAX"
        monkeypatch.setattr(name, 8, raising=False)
    made = broker(20)
    assert len(receive(made, count=4)) == 4
    assert made.ask(receive_command()).code == ResponseCode.POLLING_FULL
    made.system.advance(6_000)
    assert made.ask(receive_command()).code == ResponseCode.POLLING_FULL, "counted again"
    (other, *_) = receive(made, group="others", count=2)
    assert made.ask(receive_command(group="others")).code == ResponseCode.POLLING_FULL
    assert made.ask(ack_command(other)).code == ResponseCode.NO_MESSAGE, "of another group"
    assert made.ask(ack_command(other, "others")).code == 0
    assert len(receive(made, group="others", count=1)) == 1


def test_highest_queue_comes_first_where_it_is_asked_for() -> None:
    made = broker()
    for queue_id in (0, 3, 1, 3, 2, 0):
        made.send(str(queue_id).encode(), queue_id=queue_id)
    found = [receive(made, count=2, highest_queue_first=True) for _ in range(3)]
    assert [[message.body for message in each] for each in found] == [
        [b"3", b"3"],
        [b"2", b"1"],
        [b"0", b"0"],
    ]


def test_receive_that_goes_on_has_one_turn_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_out, "QUEUES_MAX", 1)
    monkeypatch.setattr("actors.receipts.receipts.WOKEN_PER_ROUND", 1)
    turns: list[int] = []
    wake_more = Receipts.on_wake_more

    def counted(self: Receipts, message: WakeMore) -> None:
        turns.append(1)
        wake_more(self, message)

    monkeypatch.setitem(Receipts.handlers, WakeMore, counted)
    made = broker()
    made.make_topic("Wide", queues=12)
    assert receive(made, topic="Wide") == []
    made.system.drain()
    assert len(turns) < 16, "no turn brings two more"


def test_receives_of_a_client_that_signs_off_are_answered_in_rounds() -> None:
    made = broker()
    made.subscribe(client_id="leaving")
    answers: list[RemotingCommand] = []
    for _ in range(60):
        made.client.start(receive_command(wait_ms=100_000), answers.append)
    made.system.drain()
    leaving = UnregisterClientHeader(client_id="leaving", consumer_group="consumers")
    code = RequestCode.UNREGISTER_CLIENT
    made.client.start(RemotingCommand(code, leaving.encode()), answers.append)
    made.system.run_until(lambda: len(answers) > 5)
    assert len(answers) < 60
    fill(made, 1)
    made.system.drain()
    assert len(answers) == 61
    assert {each.code for each in answers} == {0, ResponseCode.POLLING_TIMEOUT}
    assert len(receive(made)) == 1, "none of them took it"
