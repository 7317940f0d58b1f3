"""Valid messages, their wire properties, and the views of receivers."""

from copy import copy, deepcopy
from datetime import UTC, datetime, timedelta
from pickle import dumps, loads
from typing import Any

import pytest

from protocol.codes import COMPRESSED, COMPRESSION_LZ4
from protocol.compression import CompressionError, compress
from protocol.host import pack_host
from protocol.message import MessageRecord
from protocol.properties import format, parse
from troupemq.client.admin.reading import (
    EVENTS_MAX,
    FIELD,
    RECORD,
    TRACE_BYTES_MAX,
    events_in,
)
from troupemq.client.errors import MessageIllegal
from troupemq.client.message import Message, MessageQueue, view_of

QUEUE = MessageQueue("T", "b", 3)


def test_message_properties_carry_tags_keys_id_and_user_properties() -> None:
    message = Message("T", b"x", tags="new", keys=["k1", "k2"], properties={"名": "值 1"})
    assert parse(message.wire_properties("ID")) == {
        "名": "值 1",
        "KEYS": "k1 k2",
        "TAGS": "new",
        "UNIQ_KEY": "ID",
        "WAIT": "true",
    }


def test_a_single_key_can_be_a_string() -> None:
    assert Message("T", b"x", keys="4711").keys == ("4711",)


def test_delay_and_wait_are_properties() -> None:
    message = Message("T", b"x", delay_level=3, wait_store_ok=False)
    assert parse(message.wire_properties("ID")) == {"DELAY": "3", "UNIQ_KEY": "ID", "WAIT": "false"}


@pytest.mark.parametrize(
    "options, name, value",
    [
        ({"delay": 90}, "TIMER_DELAY_MS", "90000"),
        ({"delay": 0.0015}, "TIMER_DELAY_MS", "2"),
        ({"delay": timedelta(hours=2)}, "TIMER_DELAY_MS", "7200000"),
        ({"deliver_at": 1_795_188_797_085}, "TIMER_DELIVER_MS", "1795188797085"),
        ({"delay": 0.0301}, "TIMER_DELAY_MS", "31"),
        ({"delay": 4.35}, "TIMER_DELAY_MS", "4350"),
        (
            {"deliver_at": datetime(2038, 11, 20, 12, 0, 0, 1001, tzinfo=UTC)},
            "TIMER_DELIVER_MS",
            "2173867200002",
        ),
        (
            {"deliver_at": datetime(2026, 11, 20, 12, tzinfo=UTC)},
            "TIMER_DELIVER_MS",
            "1795176000000",
        ),
    ],
)
def test_timers_are_properties_of_rocketmq_5(
    options: dict[str, Any], name: str, value: str
) -> None:
    message = Message("T", b"x", **options)
    assert message.is_delayed
    assert parse(message.wire_properties("ID"))[name] == value
    assert not Message("T", b"x").is_delayed


@pytest.mark.parametrize(
    "options, said",
    [
        ({"delay": 1, "delay_level": 3}, "one of them"),
        ({"delay": 1, "deliver_at": 1_795_188_797_085}, "one of them"),
        ({"delay": -1}, "delay is -1"),
        ({"delay": True}, "delay is True"),
        ({"delay": "1h"}, "delay is '1h'"),
        ({"delay": timedelta(days=400)}, "not within"),
        ({"deliver_at": 1_795_188_797}, "looks like seconds"),
        ({"deliver_at": "2026-11-20"}, "deliver_at"),
        ({"deliver_at": datetime.min}, "deliver_at"),
    ],
)
def test_an_impossible_timer_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageIllegal, match=said):
        Message("T", b"x", **options)


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": "a b"},
        {"topic": ""},
        {"topic": "x" * 128},
        {"body": "text"},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"keys": ["a\x01"]},
        {"tags": ""},
        {"tags": "a || b"},
        {"tags": " a"},
        {"tags": "a\x02"},
        {"properties": {"UNIQ_KEY": "mine"}},
        {"properties": {"a": ""}},
        {"properties": {"": "a"}},
        {"properties": {"a": "b\x02c"}},
        {"properties": {"a": 1}},
    ],
)
def test_values_that_no_receiver_could_read_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(MessageIllegal):
        Message(**{"topic": "T", "body": b"x", **arguments})


def test_properties_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MessageIllegal, match="32767"):
        Message("T", b"x", properties={"a": "x" * 32_767}).wire_properties("ID")


def record(**changes: Any) -> MessageRecord:
    values = {
        "topic": "T",
        "body": b"body",
        "properties": format({"UNIQ_KEY": "ID", "TAGS": "a", "KEYS": "k1 k2"}),
        "queue_offset": 5,
        "physical_offset": 4711,
        "born_host": pack_host("10.0.0.1", 99),
        "store_host": pack_host("::1", 10911),
        **changes,
    }
    return MessageRecord(**values)


def test_a_received_message_shows_the_record() -> None:
    view = view_of(record(reconsume_times=2), QUEUE)
    assert (view.topic, view.body, view.tags, view.keys) == ("T", b"body", "a", ("k1", "k2"))
    assert (view.message_id, view.queue, view.queue_offset) == ("ID", QUEUE, 5)
    assert (view.born_host, view.store_host) == ("10.0.0.1:99", "[::1]:10911")
    assert (view.reconsume_times, view.physical_offset) == (2, 4711)


def test_without_a_unique_id_the_brokers_id_is_the_message_id() -> None:
    view = view_of(record(properties=b"", store_host=pack_host("127.0.0.1", 1)), QUEUE)
    assert view.message_id == view.offset_message_id == "7F000001000000010000000000001267"


def test_a_compressed_body_is_decompressed() -> None:
    body, flag = compress(b"x" * 5000)
    assert view_of(record(body=body, sys_flag=flag), QUEUE).body == b"x" * 5000


def test_a_body_in_an_unknown_codec_is_an_error_only_when_read() -> None:
    view = view_of(record(sys_flag=COMPRESSED | COMPRESSION_LZ4), QUEUE)
    assert view.stored_body == b"body"
    with pytest.raises(CompressionError, match="LZ4"):
        _ = view.body


def test_a_retry_shows_its_original_topic() -> None:
    properties = format({"RETRY_TOPIC": "Orders"})
    assert view_of(record(topic="%RETRY%g", properties=properties), QUEUE).topic == "Orders"
    assert view_of(record(topic="T", properties=properties), QUEUE).topic == "T"


def test_a_limited_part_of_a_trace_message_is_read() -> None:
    """64 messages with the key of another one may unfold to 4 GiB of records."""
    event = FIELD.join(("Pub", "1", "", "g", "T", "ID")) + RECORD
    for count, found in ((3, 3), (EVENTS_MAX + 1, EVENTS_MAX), (TRACE_BYTES_MAX // 10, 0)):
        body, flag = compress(event.encode() * count)
        views = [view_of(record(body=body, sys_flag=flag), QUEUE)] * 2
        assert len(list(events_in(views))) == 2 * found
        assert views[0]._body is None


def test_a_received_message_can_be_passed_to_another_process() -> None:
    body, flag = compress(b"x" * 5000)
    view = view_of(record(body=body, sys_flag=flag), QUEUE)
    for copied in (loads(dumps(view)), copy(view), deepcopy(view)):
        assert copied == view
        assert copied.body == b"x" * 5000
        properties: Any = copied.properties
        with pytest.raises(TypeError):
            properties["TAGS"] = "b"
