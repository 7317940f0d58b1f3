"""Receives that wait, through a whole broker: for messages, or for a compiled expression."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.receipts.hand_out import HandOut, Taken
from actors.receipts.ledger import Ledger
from actors.receipts.receipts import WOKEN_PER_ROUND
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.receipts import BatchAck, BatchAckBody
from tests.actors.receipts.test_receipts import bodies, numbered, receive
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.pulls import broker, committed
from tests.support.receiving import (
    Received,
    batch_ack_command,
    change_command,
    receive_command,
    received,
)

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


def test_receives_of_one_deadline_are_answered_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each looks at up to 512 queues once more; a thousand of them took seconds."""
    made = broker()
    answers: list[RemotingCommand] = []
    for _ in range(40):
        made.client.start(receive_command(wait_ms=15_000), answers.append)
    made.system.drain()
    steps: Counter[int] = Counter()
    take = HandOut.take

    def counted(owner: HandOut, *args: Any, **options: Any) -> Taken:
        steps[made.system.loop.step_count] += 1
        return take(owner, *args, **options)

    monkeypatch.setattr(HandOut, "take", counted)
    made.system.advance(16_000)
    assert [each.code for each in answers] == [ResponseCode.POLLING_TIMEOUT] * 40
    assert max(steps.values()) <= 2 * WOKEN_PER_ROUND


def test_a_long_batch_of_acknowledgements_is_read_off_the_loop() -> None:
    """25,000 short ones in a MiB held all other requests up for 0.15 s before they were counted."""
    made = broker()
    numbered(made, 3)
    messages = receive(made)
    encoder = made.system.address("table_encoder")
    before = encoder.handled
    assert made.ask(batch_ack_command(messages[:1])).code == 0 and encoder.handled == before
    command = batch_ack_command(messages[1:2])
    body = BatchAckBody.decode(command.body)
    void = BatchAck("consumers", "Topic", start_offset=1 << 40)
    body.acks[:0] = [void] * 300
    assert made.ask(replace(command, body=body.encode())).code == 0
    assert encoder.handled == before + 1 and committed(made) == 2
    too_many = BatchAckBody(None, [replace(void, bits="AQ==")] * 4_200).encode()
    answer = made.ask(RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, None, too_many))
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_groups_receive_from_a_limited_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive of any group and topic had 2 KiB kept for each queue for two minutes."""
    monkeypatch.setattr("actors.receipts.ledgers.LEDGERS_MAX", 1, raising=False)
    made = broker()
    for group in ("one", "two"):
        made.make_group(group)
    numbered(made, 2)
    assert bodies(receive(made, group="one", count=1)) == [b"0"]
    with capture_logs() as lines:
        assert receive(made, group="two") == []
    assert any("limit of queues" in each["event"] for each in lines)
    assert bodies(receive(made, group="one", count=1)) == [b"1"]


def test_a_ledger_is_small() -> None:
    tracemalloc = pytest.importorskip("tracemalloc", reason="PyPy has no tracemalloc")
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    ledgers = [Ledger("group", "topic", number, is_retry=False) for number in range(1_000)]
    for each in ledgers:
        each.begin(7, 7)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / len(ledgers) < 1_300
