"""Columns that a sink accepts, and the messages they become."""

from typing import Any

import pytest

from protocol.sink import CHAIN_START
from spark.sink.plain_send import queue_of
from spark.sink.rows import Outgoing, check_columns, in_fixed_order, outgoing
from storage.errors import StoreError
from tests.spark.sink.served import batches

ALL = {
    "topic": "string",
    "body": "binary",
    "tags": "string",
    "keys": "array<string>",
    "properties": "map<string,string>",
    "delayLevel": "int",
    "queueKey": "string",
    "flag": "int",
}


def test_rows_with_all_and_with_the_fewest_columns_are_accepted() -> None:
    check_columns(ALL, None)
    check_columns({**ALL, "keys": "string", "body": "string", "queueKey": "binary"}, "T")
    check_columns({"body": "string"}, "T")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**ALL, "tag": "string"}, "a message has no column tag to write: did you mean tags?"),
        ({**ALL, "xyzzy": "string"}, "no column xyzzy to write: there are topic, body"),
        ({**ALL, "flag": "bigint"}, "column flag is bigint: it must be int"),
        ({**ALL, "body": "int"}, "column body is int: it must be binary or string"),
        ({"topic": "string"}, "column body is missing"),
        ({"body": "string"}, "a column topic or the option topic must say"),
    ],
)
def test_an_invalid_column_is_named(fields: dict[str, str], words: str) -> None:
    with pytest.raises(StoreError) as refused:
        check_columns(fields, None)
    assert words in str(refused.value)


def message(**row: Any) -> Outgoing:
    (found,) = outgoing(batches([{"body": b"x", "topic": "T", **row}]), None)
    return found


def test_null_columns_are_unset_properties() -> None:
    plain = Outgoing("T", 0, b"x", b"", None)
    assert message() == plain
    nothing = {"tags": None, "keys": None, "delayLevel": None, "queueKey": None, "flag": None}
    assert message(**nothing) == plain
    assert message(tags="", keys=[], delayLevel=0) == plain


def test_columns_become_message_fields() -> None:
    found = message(tags="a", keys="k1 k2", delayLevel=3, queueKey="ä", flag=-7)
    text = b"TAGS\x01a\x02KEYS\x01k1 k2\x02DELAY\x013"
    assert found == Outgoing("T", -7, b"x", text, "ä".encode())
    assert message(keys=["k1", None, "k2"]).properties == b"KEYS\x01k1 k2"
    assert message(body="ä").body == "ä".encode()


def test_a_null_topic_is_refused() -> None:
    with pytest.raises(StoreError, match="row 0 of this partition: topic is null or empty"):
        message(topic=None)


def test_the_hash_chain_covers_every_column() -> None:
    rows: list[dict[str, Any]] = [{}, {"tags": "a"}, {"flag": 1}, {"queueKey": "k"}, {"body": b""}]
    chains = {message(**row).chained(CHAIN_START) for row in rows}
    assert len(chains) == len(rows)


def test_a_fixed_order_has_all_messages() -> None:
    rows = [message(body=b"%d" % (n % 4), queueKey="ab"[n % 2]) for n in range(9)]
    found = in_fixed_order(rows)
    assert found == in_fixed_order(rows[::-1])
    assert sorted(found, key=str) == sorted(rows, key=str)


def test_a_queue_key_selects_the_queue_of_javas_hash_selector() -> None:
    """In Java "b-7".hashCode() is 95628, "k".hashCode() is 107."""
    assert queue_of(message(queueKey="b-7"), 5, 7) == 95628 % 7
    assert {queue_of(message(queueKey="k"), turn, 4) for turn in range(9)} == {107 % 4}
    assert [queue_of(message(), turn, 4) for turn in range(5)] == [0, 1, 2, 3, 0]
