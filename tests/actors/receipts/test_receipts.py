"""Receiving and settling messages one by one, through a whole broker."""

from dataclasses import replace
from typing import Any

import pytest

from actors.receipts.ledger import Ledger
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UnregisterClientHeader
from protocol.headers.pop import NotificationHeader, PopMessageHeader
from protocol.properties import parse
from protocol.receipts import BatchAck, BatchAckBody, format_bits
from tests.support.brokers import STORE, SimulatedBroker, pull_command
from tests.support.pulls import broker, committed, fill, tagged
from tests.support.receiving import (
    Received,
    ack_command,
    batch_ack_command,
    change_command,
    changed,
    receive_command,
    received,
)
from troupemq.testing.virtual_broker import LocalClient


def receive(
    made: SimulatedBroker, client: LocalClient | None = None, **options: Any
) -> list[Received]:
    made.system.drain()
    answer = (client or made.client).request(receive_command(**options), timeout_s=120)
    assert answer.code in (0, 210), (answer.code, answer.remark)
    return received(answer, options.get("topic", "Topic"))


def bodies(messages: list[Received]) -> list[bytes]:
    return [each.body for each in messages]


def ack(made: SimulatedBroker, message: Received) -> int:
    return made.ask(ack_command(message)).code


def restart(made: SimulatedBroker) -> None:
    made.system.advance(1)
    made.stop()
    made.start_ms = made.clock.now_ms()
    made.start()


def numbered(made: SimulatedBroker, count: int, **options: Any) -> None:
    for number in range(count):
        made.start_send(str(number).encode(), **options)
    made.system.drain()


def test_received_message_is_invisible_until_it_is_acknowledged() -> None:
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    assert bodies(messages) == [b"0", b"1", b"2"]
    assert receive(made) == []
    assert committed(made) == 0
    assert ack(made, messages[1]) == 0
    assert committed(made) == 0
    assert ack(made, messages[0]) == 0
    assert committed(made) == 2
    assert ack(made, messages[2]) == 0
    assert committed(made) == 3


def test_figures_tell_what_is_in_flight() -> None:
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    ack(made, messages[0])
    made.system.advance(6_000)
    figures = made.broker.receipts.value
    assert (figures.count, figures.received, figures.settled) == (2, 3, 1)
    found = figures.in_flight["consumers", "Topic"]
    assert (found.count, found.tries_max, found.with_connection) == (2, 0, 0)
    assert dict(found.clients) == {made.client.remote: 2} and dict(found.queues) == {0: 2}
    pulled = made.broker.pull_stats.by_group["Topic", "consumers"].pulled
    assert pulled == {0: 3}


def test_members_that_pull_keep_their_queues() -> None:
    made = broker()
    for queue_id in (0, 1):
        numbered(made, 2, queue_id=queue_id)
    member = made.new_client(2)
    made.subscribe()
    assert len(receive(made)) == 4, "no member pulls yet"
    heartbeat = made.client
    made.client = member
    made.subscribe(client_id="puller")
    made.client = heartbeat
    answers: list[RemotingCommand] = []
    member.start(pull_command(2, queue_id=0, hold_ms=15_000), answers.append)
    made.system.drain()
    numbered(made, 1, queue_id=1)
    assert bodies(receive(made)) == [b"0"]
    numbered(made, 1, queue_id=0)
    assert len(answers) == 1
    member.start(pull_command(3, queue_id=0, hold_ms=15_000), answers.append)
    made.system.drain()
    assert receive(made) == [], "the queue is pulled"
    made.system.advance(40_000)
    numbered(made, 1, queue_id=0)
    assert b"0" in bodies(receive(made)), "it is not pulled any more"


def test_answer_has_the_fields_of_5x() -> None:
    made = broker(5)
    answer = made.ask(receive_command(count=3))
    fields = answer.fields or {}
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert fields["startOffsetInfo"] == "0 0 0" and fields["msgOffsetInfo"] == "0 0 0,1,2"
    assert fields["restNum"] == "2" and fields["reviveQid"] == "0"
    assert fields["invisibleTime"] == "10000"
    assert "orderCountInfo" not in fields and "holdWithConnection" not in fields


def test_receive_takes_from_all_queues() -> None:
    made = broker()
    for queue_id in range(4):
        numbered(made, 2, queue_id=queue_id)
    assert len(receive(made)) == 8


def test_message_past_its_deadline_comes_again_as_a_retry() -> None:
    made = broker()
    numbered(made, 2)
    first, second = receive(made)
    assert ack(made, second) == 0
    made.system.advance(10_500)
    assert committed(made) == 2, "the copy is stored"
    (again,) = receive(made)
    assert (again.body, again.tries) == (b"0", 1)
    assert again.parsed.topic_kind == "1"
    assert ack(made, first) == 0, "settled: by the copy"
    assert ack(made, again) == 0
    made.system.advance(60_000)
    assert receive(made) == []


def test_message_without_tries_left_is_a_dead_letter() -> None:
    made = broker()
    made.make_group(retry_max_times=1)
    numbered(made, 1)
    for _ in range(2):
        assert bodies(receive(made)) == [b"0"]
        made.system.advance(10_500)
    assert receive(made) == []
    assert [each.body for each in made.messages("%DLQ%consumers")] == [b"0"]


def test_changed_deadline_counts_and_voids_the_former_handle() -> None:
    made = broker()
    numbered(made, 1)
    (message,) = receive(made)
    answer = made.ask(change_command(message, 60_000))
    assert answer.code == 0
    made.system.advance(30_000)
    assert receive(made) == []
    assert ack(made, message) == ResponseCode.NO_MESSAGE
    assert ack(made, changed(message, answer)) == 0
    assert committed(made) == 1


def test_retry_with_a_delay_level_comes_after_that_delay() -> None:
    made = broker(store=replace(STORE, message_delay_level="1s 5s"))
    numbered(made, 1)
    (message,) = receive(made)
    assert made.ask(change_command(message, 0, retry_delay_level=2)).code == 0
    assert committed(made) == 1
    assert receive(made) == []
    made.system.advance(5_500)
    (again,) = receive(made)
    assert (again.body, again.tries) == (b"0", 1)


def test_retry_with_a_negative_level_is_a_dead_letter() -> None:
    made = broker()
    numbered(made, 1)
    (message,) = receive(made)
    assert made.ask(change_command(message, 0, retry_delay_level=-1)).code == 0
    assert [each.body for each in made.messages("%DLQ%consumers")] == [b"0"]


@pytest.mark.parametrize("level", [None, 1, -1], ids=["seconds", "level", "dead letter"])
def test_reason_of_a_retry_is_stored_with_its_message(level: int | None) -> None:
    made = broker(store=replace(STORE, message_delay_level="1s 5s"))
    numbered(made, 1)
    (message,) = receive(made)
    asked = change_command(
        message, 1_000, retry_delay_level=level, failure="KeyError:\n" + "x" * 2000
    )
    assert made.ask(asked).code == 0
    made.system.advance(2_000)
    receive(made)
    topic = "%DLQ%consumers" if level == -1 else "%RETRY%consumers"
    (stored,) = made.messages(topic)
    assert parse(stored.properties)["TROUPE_FAILURE"] == ("KeyError: " + "x" * 2000)[:1024]


def test_batch_acknowledgement_settles_its_messages() -> None:
    made = broker()
    numbered(made, 5)
    messages = receive(made)
    assert made.ask(batch_ack_command([messages[0], messages[1], messages[4]])).code == 0
    assert committed(made) == 2
    assert made.ask(batch_ack_command(messages[2:4])).code == 0
    assert committed(made) == 5


def test_waiting_receive_gets_the_next_message() -> None:
    made = broker()
    answers: list[RemotingCommand] = []
    made.client.start(receive_command(wait_ms=20_000), answers.append)
    made.system.advance(5_000)
    assert answers == []
    numbered(made, 1)
    made.system.advance(100)
    assert bodies(received(answers[0])) == [b"0"]


def test_waiting_receive_is_answered_when_its_time_is_over() -> None:
    made = broker()
    answers: list[RemotingCommand] = []
    made.client.start(receive_command(wait_ms=20_000), answers.append)
    made.system.advance(19_900)
    assert answers == []
    made.system.advance(300)
    assert answers[0].code == ResponseCode.POLLING_TIMEOUT


def test_one_message_wakes_one_receive() -> None:
    made = broker()
    answers: list[RemotingCommand] = []
    for _ in range(3):
        made.client.start(receive_command(wait_ms=20_000), answers.append)
    made.system.drain()
    numbered(made, 1)
    made.system.advance(100)
    assert len(answers) == 1
    numbered(made, 2)
    made.system.advance(100)
    assert sum(len(received(each)) for each in answers) == 3


def test_filter_drops_count_as_settled() -> None:
    made = broker()
    for tag in ("A", "B", "A", "B"):
        made.send(tag.encode(), properties=tagged(tag))
    messages = receive(made, expression="A", expression_type="TAG")
    assert bodies(messages) == [b"A", b"A"]
    for each in messages:
        ack(made, each)
    assert committed(made) == 4


def test_property_filter_selects() -> None:
    made = broker(property_filter_enable=True)
    for number in range(4):
        made.send(str(number).encode(), properties=f"n\x01{number}")
    messages = receive(made, expression="n > 1", expression_type="SQL92")
    assert bodies(messages) == [b"2", b"3"]


def test_hold_lives_with_its_connection() -> None:
    made = broker()
    numbered(made, 1)
    client = made.new_client(2)
    answer = client.request(receive_command(hold=True))
    assert (answer.fields or {})["holdWithConnection"] == "true"
    assert bodies(received(answer)) == [b"0"]
    made.system.advance(100_000)
    assert receive(made) == []
    client.close()
    made.system.advance(800)
    assert receive(made) == []
    made.system.advance(400)
    assert bodies(receive(made)) == [b"0"]


def test_client_that_signs_off_returns_its_holds_at_once() -> None:
    made = broker()
    numbered(made, 1)
    client = made.new_client(2)
    assert bodies(received(client.request(receive_command(hold=True)))) == [b"0"]
    header = UnregisterClientHeader("client", None, "consumers")
    client.request(RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode()))
    made.system.advance(200)
    assert bodies(receive(made)) == [b"0"]


def test_receive_of_a_closed_connection_gets_nothing() -> None:
    made = broker()
    client = made.new_client(2)
    client.start(receive_command(wait_ms=20_000))
    made.system.drain()
    client.close()
    made.system.drain()
    numbered(made, 1)
    assert bodies(receive(made)) == [b"0"]


def test_batch_received_in_order_blocks_its_queue() -> None:
    made = broker()
    numbered(made, 4)
    first = receive(made, order=True, queue_id=0, count=2)
    assert bodies(first) == [b"0", b"1"]
    assert first[0].parsed.revive_queue_id == 999
    assert receive(made, order=True, queue_id=0) == []
    assert ack(made, first[0]) == 0 and committed(made) == 1
    assert receive(made, order=True, queue_id=0) == []
    assert ack(made, first[1]) == 0 and committed(made) == 2
    assert bodies(receive(made, order=True, queue_id=0)) == [b"2", b"3"]


def test_batch_received_in_order_comes_again_in_order_and_is_not_copied() -> None:
    made = broker()
    numbered(made, 3)
    first = receive(made, order=True, queue_id=0)
    assert ack(made, first[1]) == 0
    made.system.advance(10_500)
    again = receive(made, order=True, queue_id=0)
    assert [(each.body, each.tries) for each in again] == [(b"0", 1), (b"2", 1)]
    assert ack(made, first[0]) == ResponseCode.NO_MESSAGE
    for each in again:
        assert ack(made, each) == 0
    assert committed(made) == 3
    assert not made.broker.store.consume_queues.get("%RETRY%consumers", 0)


def test_same_attempt_gets_the_same_batch_again() -> None:
    made = broker()
    numbered(made, 3)
    for attempt, wanted in (("a", 2), ("b", 0), ("a", 2)):
        got = receive(made, order=True, queue_id=0, count=2, attempt_id=attempt)
        assert bodies(got) == [b"0", b"1"][:wanted]


def test_dead_letter_lets_the_queue_go_on_in_order() -> None:
    made = broker()
    made.make_group(retry_max_times=1)
    numbered(made, 2)
    for reason in ("first", "second"):
        (message,) = receive(made, order=True, queue_id=0, count=1)
        assert message.body == b"0"
        assert made.ask(change_command(message, 0, retry_delay_level=1, failure=reason)).code == 0
        made.system.advance(10_500)
    (dead,) = made.messages("%DLQ%consumers")
    assert (dead.body, parse(dead.properties)["TROUPE_FAILURE"]) == (b"0", "second")
    assert bodies(receive(made, order=True, queue_id=0, count=1)) == [b"1"]


def test_handle_from_before_a_restart_settles_a_message_not_handed_out_again() -> None:
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    assert ack(made, messages[0]) == 0
    restart(made)
    assert committed(made) == 1
    assert ack(made, messages[2]) == 0
    assert bodies(receive(made)) == [b"1"]
    assert ack(made, messages[1]) == ResponseCode.NO_MESSAGE, "handed out again"
    assert ack(made, messages[0]) == 0, "below the consumer offset"


def test_deadline_from_before_a_restart_can_be_extended() -> None:
    made = broker()
    numbered(made, 2)
    message = receive(made)[1]
    restart(made)
    answer = made.ask(change_command(message, 60_000))
    assert answer.code == 0
    assert bodies(receive(made)) == [b"0"]
    assert ack(made, changed(message, answer)) == 0


def test_reset_offset_hands_messages_out_again() -> None:
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    for each in messages:
        ack(made, each)
    assert committed(made) == 3
    fields = {"consumerGroup": "consumers", "topic": "Topic", "queueId": "0", "commitOffset": "1"}
    assert made.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    assert bodies(receive(made)) == [b"1", b"2"]


def test_reset_voids_what_is_in_flight() -> None:
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    fields = {"consumerGroup": "consumers", "topic": "Topic", "queueId": "0", "commitOffset": "2"}
    assert made.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    assert ack(made, messages[0]) == 0
    made.system.advance(60_000)
    assert committed(made) == 2
    assert bodies(receive(made)) == [b"2"]


def test_deleted_topic_begins_again() -> None:
    made = broker()
    numbered(made, 2)
    receive(made)
    assert (
        made.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Topic"})).code == 0
    )
    made.system.advance(5_000)
    made.make_topic()
    made.send(b"new")
    assert bodies(receive(made)) == [b"new"]


def test_handle_from_before_a_deletion_settles_no_message_of_the_new_topic() -> None:
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    made.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Topic"}))
    made.system.advance(1_000)
    made.make_topic()
    numbered(made, 3)
    assert ack(made, messages[0]) == ResponseCode.NO_MESSAGE
    assert made.ask(change_command(messages[1], 60_000)).code == ResponseCode.NO_MESSAGE
    made.ask(batch_ack_command(messages))
    assert bodies(receive(made)) == [b"0", b"1", b"2"]


def test_new_group_begins_where_it_says() -> None:
    made = broker()
    numbered(made, 3)
    assert bodies(receive(made, group="first", init_mode=0)) == [b"0", b"1", b"2"]


def test_retries_fill_at_most_half_of_a_receive() -> None:
    made = broker()
    numbered(made, 8)
    receive(made)
    made.system.advance(10_500)
    for number in range(8):
        made.start_send(b"n%d" % number)
    got = bodies(receive(made, count=8))
    assert sum(each.startswith(b"n") for each in got) == 4
    assert len(receive(made)) == 8


def test_retry_of_another_topic_waits_for_a_receive_of_that_topic() -> None:
    made = broker()
    made.make_topic("Other")
    made.send(b"other", topic="Other")
    made.send(b"own")
    for topic in ("Topic", "Other"):
        assert len(receive(made, topic=topic)) == 1
    made.system.advance(10_500)
    assert bodies(receive(made)) == [b"own"]
    assert receive(made) == []
    assert bodies(receive(made, topic="Other")) == [b"other"]


def test_queue_does_not_stop_behind_a_message_that_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "span_max", 20)
    made = broker()
    numbered(made, 1)
    client = made.new_client(2)
    (held,) = received(client.request(receive_command(hold=True)))
    for _ in range(6):
        numbered(made, 10)
        messages = receive(made)
        for each in messages:
            assert ack(made, each) == 0
    made.system.advance(1_000)
    assert committed(made) == 61, "the offset has passed the message"
    assert receive(made) == [], "which is still held"
    restarted = made.broker.store.consume_queues.get("%RETRY%consumers", 0)
    assert restarted is not None and restarted.max_offset == 1
    assert ack(made, held) == 0
    made.system.advance(5_000)
    client.close()
    made.system.advance(5_000)
    assert receive(made) == []


def test_message_stored_again_comes_again_when_its_connection_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "span_max", 5)
    made = broker()
    numbered(made, 1, queue_id=1)
    client = made.new_client(2)
    (held,) = received(client.request(receive_command(hold=True)))
    for _ in range(4):
        numbered(made, 5, queue_id=1)
        for each in receive(made):
            ack(made, each)
    assert receive(made) == []
    client.close()
    made.system.advance(1_500)
    (again,) = receive(made)
    assert (again.body, again.tries) == (held.body, 1)
    assert ack(made, held) == ResponseCode.NO_MESSAGE or ack(made, again) == 0


def notify(made: SimulatedBroker, wait_ms: int) -> list[RemotingCommand]:
    header = NotificationHeader(
        consumer_group="consumers", topic="Topic", queue_id=-1, poll_time_ms=wait_ms
    )
    answers: list[RemotingCommand] = []
    made.client.start(RemotingCommand(RequestCode.NOTIFICATION, header.encode()), answers.append)
    made.system.advance(100)
    return answers


def test_notification_tells_of_messages() -> None:
    made = broker()
    (none,) = notify(made, 0)
    assert (none.code, none.fields) == (0, {"hasMsg": "false", "pollingFull": "false"})
    waiting = notify(made, 5_000)
    assert waiting == []
    numbered(made, 1)
    made.system.advance(100)
    assert waiting[0].fields == {"hasMsg": "true", "pollingFull": "false"}
    assert bodies(receive(made)) == [b"0"]


REFUSED = [
    ({"topic": "None"}, 17, "topic[None] not exist, apply first please! "),
    ({"count": 33}, 29, "the broker[127.0.0.1] pop message's num is greater than 32"),
    ({"queue_id": 4}, 29, "queueId[4] is illegal, topic:[Topic] topicConfig.readQueueNums:[4]"),
    ({"expression": "a >", "expression_type": "SQL92"}, 1, "The broker does not support"),
]


@pytest.mark.parametrize(("options", "code", "remark"), REFUSED)
def test_wrong_receives_are_refused_as_by_5x(
    options: dict[str, Any], code: int, remark: str
) -> None:
    made = broker()
    answer = made.ask(receive_command(**options))
    assert answer.code == code and (answer.remark or "").startswith(remark)


def test_wrong_acknowledgements_are_refused_as_by_5x() -> None:
    made = broker()
    numbered(made, 1)
    (message,) = receive(made)
    command = ack_command(message)
    assert command.fields is not None
    for change, code in (
        ({"extraInfo": "0 1"}, 1),
        ({"topic": "None"}, 17),
        ({"queueId": "9"}, 13),
        ({"offset": "5"}, 208),
    ):
        wrong = replace(command, fields={**command.fields, **change})
        assert made.ask(wrong).code == code, change
    assert made.ask(RemotingCommand(RequestCode.BATCH_ACK_MESSAGE)).code == 208


def test_batch_of_acknowledgements_has_a_limit() -> None:
    made = broker(1)
    bits = format_bits(range(9_000), 0)
    body = BatchAckBody(None, [BatchAck("consumers", "Topic", bits=bits)]).encode()
    answer = made.ask(RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, None, body))
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_many_deadlines_at_once_are_worked_off_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.receipts.receipts.EXPIRED_PER_ROUND", 1)
    made = broker()
    for queue_id in range(4):
        numbered(made, 2, queue_id=queue_id)
    assert len(receive(made)) == 8
    made.system.advance(10_500)
    assert len(receive(made)) == 8


def test_oneway_receive_takes_nothing() -> None:
    made = broker()
    numbered(made, 1)
    command = receive_command()
    command.flag = 2
    made.client.start(command)
    made.system.drain()
    assert bodies(receive(made)) == [b"0"]


def test_header_has_the_default_of_5x() -> None:
    assert PopMessageHeader(consumer_group="g", topic="t").order is False
    fill(broker(), 0)
