"""Handles, lists and bit sets of messages that are settled one by one."""

import pytest

from protocol.receipts import (
    BITS_BYTES_MAX,
    HANDLE_CHARS_MAX,
    LIST_CHARS_MAX,
    ORDER_REVIVE_QUEUE,
    BatchAck,
    BatchAckBody,
    OrderCounts,
    ReceiptError,
    ReceiptHandle,
    ReceivedQueue,
    format_bits,
    format_offsets,
    format_order_counts,
    format_start_offsets,
    kind_of,
    parse_bits,
    parse_offsets,
    parse_start_offsets,
    topic_of,
)

TEXT = "7 1795188797085 60000 999 0 broker-a 3 9"
HANDLE = ReceiptHandle(7, 1795188797085, 60000, ORDER_REVIVE_QUEUE, "0", "broker-a", 3, 9)
QUEUES = [ReceivedQueue("0", 3, [7, 9], 2), ReceivedQueue("1", 0, [4])]


def test_handle_survives_its_text() -> None:
    assert ReceiptHandle.parse(TEXT) == HANDLE
    assert HANDLE.format() == TEXT


def test_ninth_field_of_a_handle_is_ignored() -> None:
    assert ReceiptHandle.parse(TEXT + " 4711") == HANDLE


@pytest.mark.parametrize(
    "text",
    ["", "7", TEXT.removesuffix(" 9"), TEXT.replace("7 ", "x ", 1), TEXT + "0" * 20, "9" * 2000],
)
def test_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ReceiptError):
        ReceiptHandle.parse(text)


def test_handle_has_a_maximum_length() -> None:
    name = "b" * HANDLE_CHARS_MAX
    with pytest.raises(ReceiptError):
        ReceiptHandle.parse(TEXT.replace("broker-a", name))


def test_missing_fields_are_named_as_in_rocketmq() -> None:
    with pytest.raises(ReceiptError, match=r"^getQueueOffset fail, extraInfoStrs length 1$"):
        ReceiptHandle.parse("7")


def test_lists_survive_their_texts() -> None:
    assert format_start_offsets(QUEUES) == "0 3 7;1 0 4"
    assert parse_start_offsets("0 3 7;1 0 4") == {("0", 3): 7, ("1", 0): 4}
    assert format_offsets(QUEUES) == "0 3 7,9;1 0 4"
    assert parse_offsets("0 3 7,9;1 0 4") == {("0", 3): [7, 9], ("1", 0): [4]}
    assert parse_offsets("") == {}


def test_tries_are_found_by_offset_and_by_queue() -> None:
    text = format_order_counts(QUEUES)
    assert text == "0 qo3%7 2;0 qo3%9 2;1 qo0%4 0"
    counts = OrderCounts(text + ";0 5 6")
    assert counts.tries("0", 3, 9) == 2
    assert counts.tries("0", 5, 1) == 6
    assert counts.tries("0", 6, 1) == 0


@pytest.mark.parametrize("text", ["0 3", "0 3 7 8", "0 x 7", "0 3 x", ";", "0 3 7;"])
def test_text_that_is_no_list_is_refused(text: str) -> None:
    for read in (parse_start_offsets, parse_offsets, OrderCounts):
        if read is not OrderCounts or text != "0 x 7":
            with pytest.raises(ReceiptError):
                read(text)


def test_list_has_a_maximum_length() -> None:
    with pytest.raises(ReceiptError):
        parse_offsets("0 3 " + "7," * LIST_CHARS_MAX)


def test_bits_are_those_of_java() -> None:
    assert format_bits([10, 11, 19], 10) == "AwI="  # BitSet {0, 1, 9}: bytes 3, 2
    assert parse_bits("AwI=", 10) == [10, 11, 19]
    assert parse_bits("", 10) == []


@pytest.mark.parametrize("text", ["?", "AwI", "ä", "A" * 4 * BITS_BYTES_MAX])
def test_text_that_is_no_bit_set_is_refused(text: str) -> None:
    with pytest.raises(ReceiptError):
        parse_bits(text, 0)


def test_batch_has_the_names_of_java() -> None:
    body = BatchAckBody("broker-a", [BatchAck("g", "T", "1", 10, 3, 0, 5, 60000, "AwI=")])
    text = body.encode()
    assert text == (
        b'{"acks":[{"b":"AwI=","c":"g","it":60000,"pt":5,"q":3,"r":"1","rq":0,"so":10,"t":"T"}],'
        b'"brokerName":"broker-a"}'
    )
    assert BatchAckBody.decode(text) == body
    assert body.acks[0].offsets() == [10, 11, 19]


@pytest.mark.parametrize(
    ("kind", "topic", "meant"),
    [
        ("0", "T", "T"),
        ("1", "T", "%RETRY%g"),
        ("2", "T", "%RETRY%g"),
        ("0", "%RETRY%g", "%RETRY%g"),
        ("1", "%RETRY%g_T", "%RETRY%g"),
        ("0", "%RETRY%g_T", "%RETRY%g"),
        ("0", "%RETRY%g+T", "%RETRY%g"),
        ("0", "%RETRY%gg", "%RETRY%gg"),
    ],
)
def test_every_name_of_a_retry_topic_means_that_of_the_group(
    kind: str, topic: str, meant: str
) -> None:
    assert topic_of(kind, topic, "g") == meant
    assert kind_of(meant) == ("1" if meant != "T" else "0")
