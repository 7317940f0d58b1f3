"""Tests of receipts: what a client makes of an answer to POP, and names to the broker."""

from collections.abc import Callable

import pytest

from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import AckMessageHeader, PopMessageResponseHeader
from protocol.message import MessageRecord, encode_record
from protocol.properties import format
from protocol.receipts import BatchAckBody
from tests.troupemq.client.receiving.pop_broker import HOST
from troupemq.client.errors import BadAnswer
from troupemq.client.receiving.receipt import Receipt, ack_command, receipts_of

RETRY_1, RETRY_2 = "%RETRY%g_T", "%RETRY%g+T"


def record(offset: int, topic: str = "T", *, tries: int = 0, **properties: str) -> MessageRecord:
    return MessageRecord(
        topic,
        b"body",
        format(properties),
        3,
        offset,
        born_host=HOST,
        store_host=HOST,
        reconsume_times=tries,
    )


def received(
    *records: MessageRecord,
    starts: str | None = "0 3 5;1 3 0;2 3 0",
    counts: str | None = None,
    order: bool = False,
    listed: str | None = None,
    body: bytes | None = None,
) -> list[Receipt]:
    header = PopMessageResponseHeader(
        pop_time_ms=1000,
        invisible_time_ms=60_000,
        revive_queue_id=4,
        rest_num=0,
        start_offset_info=starts,
        msg_offset_info=listed,
        order_count_info=counts,
    )
    if body is None:
        body = b"".join(map(encode_record, records))
    answer = RemotingCommand(ResponseCode.SUCCESS, header.encode(), body)
    return receipts_of(answer, "T", "b", order=order, now_s=100.0)


def ack_of(receipt: Receipt) -> AckMessageHeader:
    return AckMessageHeader.decode(ack_command("g", [receipt]).fields)


def test_a_message_is_named_by_its_place_and_its_answer() -> None:
    (receipt,) = received(record(7))
    assert receipt.expires_s == 160.0
    header = ack_of(receipt)
    assert (header.topic, header.queue_id, header.offset) == ("T", 3, 7)
    assert header.extra_info == "5 1000 60000 4 0 b 3 7"


def test_without_start_offsets_the_first_message_of_a_queue_counts() -> None:
    assert [each.handle.start_offset for each in received(record(7), record(8), starts=None)] == [
        7,
        7,
    ]


@pytest.mark.parametrize("topic, kind", [(RETRY_1, "1"), (RETRY_2, "2"), ("%RETRY%g", "1")])
def test_a_retry_has_the_topic_that_it_was_sent_to_and_names_its_retry_topic(
    topic: str, kind: str
) -> None:
    (receipt,) = received(record(2, topic, tries=1))
    assert receipt.message.topic == "T"
    header = ack_of(receipt)
    assert header.topic == (RETRY_2 if kind == "2" else RETRY_1)
    assert header.extra_info == f"0 1000 60000 4 {kind} b 3 2"


def test_the_handle_in_a_retry_counts_where_the_broker_renames_it() -> None:
    text = "1 1000 60000 5 1 b 3 2"
    (receipt,) = received(record(2, tries=1, POP_CK=text), listed="0 3 7;1 3 1,2")
    header = ack_of(receipt)
    assert (header.topic, header.extra_info) == (RETRY_1, text)


@pytest.mark.parametrize(
    "text, tries",
    [
        ("1 1000 60000 5 1 b 3 6", 1),  # another message
        ("1 1000 60000 5 1 other 3 7", 1),
        ("1 1000 60000 5 0 b 3 7", 1),  # not a retry
        ("1 1000 60000 5 1 b 3 7", 0),
        ("-99999999999 1000 60000 5 1 b 3 7", 1),  # would be a bit set of gigabytes
        ("what", 1),
        ("1 999 60000 5 1 b 3 7", 1),  # of another receive
    ],
)
def test_a_handle_that_a_producer_made_up_is_ignored(text: str, tries: int) -> None:
    (receipt,) = received(record(7, tries=tries, POP_CK=text), listed="0 3 7;1 3 7")
    assert receipt.handle.format() == "5 1000 60000 4 0 b 3 7"


def test_a_handle_for_a_retry_that_is_not_in_the_answer_is_ignored() -> None:
    made_up = record(7, tries=1, POP_CK="5 1000 60000 4 1 b 3 7")
    (receipt,) = received(made_up, listed="0 3 7;1 3 8;1 4 7")
    assert receipt.handle.format() == "5 1000 60000 4 0 b 3 7"


def test_tries_in_order_come_from_the_header() -> None:
    (receipt,) = received(record(7), counts="0 qo3%7 2", order=True)
    assert receipt.message.reconsume_times == 2


def test_acknowledgements_of_one_answer_are_one_bit_set_for_each_queue() -> None:
    receipts = received(record(7), record(9), record(2, RETRY_1))
    body = BatchAckBody.decode(ack_command("g", receipts).body)
    assert body.broker_name == "b"
    assert [(each.retry, each.start_offset, each.offsets()) for each in body.acks] == [
        ("0", 5, [7, 9]),
        ("1", 0, [2]),
    ]


def test_a_changed_hold_has_a_new_handle() -> None:
    (receipt,) = received(record(7))
    receipt.changed({"popTime": "2000", "invisibleTime": "5000", "reviveQid": "6"}, 200.0)
    assert receipt.handle.format() == "7 2000 5000 6 0 b 3 7"
    assert receipt.expires_s == 205.0


def test_an_answer_that_makes_no_sense_is_a_bad_answer() -> None:
    wrong: list[Callable[[], list[Receipt]]] = [
        lambda: received(record(7), starts="0 3"),
        lambda: received(record(7), starts="0 3 -99999999999"),
        lambda: received(record(7), starts="0 3 8"),
        lambda: received(record(7), counts="x", order=True),
        lambda: received(body=b"no record"),
        lambda: receipts_of(RemotingCommand(0, {}, b""), "T", "b", order=False, now_s=0.0),
    ]
    for receive in wrong:
        with pytest.raises(BadAnswer, match="an answer that cannot be understood"):
            receive()
