"""A value of the wrong type is named, with what was given and what to do."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.troupemq.client.cluster import MESSAGE, SEND, Cluster
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom, timestamp_ms
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import (
    ArgumentIllegal,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    RequestTimeout,
)
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.batches import split_batch
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.request_reply import create_reply_message
from troupemq.client.producing.transaction import TransactionProducer
from troupemq.client.settings import ConsumerSettings, ProducerSettings

QUEUE = MessageQueue("T", "a", 0)
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)

MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"body": "text"}, "the body is bytes, you gave str: .encode() it"),
    ({"body": bytearray(b"x")}, "the body is bytes, you gave bytearray: bytes() it"),
    ({"body": {"a": 1}}, "the body is bytes, you gave dict: json.dumps(...).encode() it"),
    ({"body": 3}, "the body is bytes, you gave int: str(...).encode() it"),
    ({"body": None}, "the body is bytes, you gave None"),
    ({"topic": b"T"}, "a topic's name is a string, and not b'T': you gave bytes: .decode() it"),
    ({"tags": ["a", "b"]}, "a message has one tag, a string, you gave list: several words belong"),
    ({"tags": b"a"}, "a tag is a string, you gave bytes: .decode() it"),
    ({"keys": 3}, "keys are a string or several, you gave int: str() it"),
    ({"keys": b"ab"}, "keys are strings, you gave bytes: .decode() it"),
    ({"keys": [UUID(int=1)]}, "a key is a string, you gave UUID: str() it"),
    ({"keys": [None]}, "a key is a string, you gave None"),
    ({"properties": [("a", "b")]}, "properties are a dict, and not [('a', 'b')]"),
    ({"properties": {"a": 1}}, "a property a is a string, you gave int: str() it"),
    ({"properties": {"a": True}}, "a property a is a string, you gave bool: str() it"),
    ({"properties": {1: "a"}}, "a property name is a string, you gave int: str() it"),
    ({"properties": {("a",): "a"}}, "a property name is a string, you gave tuple"),
    ({"delay_level": "3"}, "a delay level is a number from 0, and not '3': 3 is 10 s"),
    ({"delay_level": 1.5}, "a delay level is a number from 0, and not 1.5"),
    ({"delay_level": True}, "a delay level is a number from 0, and not True"),
    ({"delay_level": timedelta(seconds=3)}, "a delay level is a number from 0"),
    ({"flag": "1"}, "a flag is a number of 32 bits, and not '1'"),
    ({"deliver_at": 1_795_694_400.5}, "deliver_at is in ms since 1970, and 1795694400.5 looks"),
    ({"deliver_at": NOON.date()}, "deliver_at is a datetime, or ms since 1970, and not datetime."),
    ({"deliver_at": "2027-01-31"}, "deliver_at is a datetime, or ms since 1970, and not '2027-"),
    ({"delay": "3"}, "delay is '3', and not a number of seconds or a timedelta"),
    ({"wait_store_ok": "false"}, "wait_store_ok is True or False, and not 'false'"),
]


@pytest.mark.parametrize("wrong, said", MESSAGES)
def test_an_error_names_the_given_value_and_the_remedy(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageIllegal) as caught:
        Message(**{"topic": "T", "body": b"x", **wrong})
    assert str(caught.value).startswith(said)


def take(messages: object) -> None:
    """Take messages as a listener."""


ANY: Any = None


def any_(value: object) -> Any:
    return value


CALLS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: Producer("g", **any_({"name_srv": "h:1"})),
        "Producer has no argument 'name_srv': did",
    ),
    (
        lambda: PushConsumer("g", take, **any_({"consume_threads": 4})),
        "PushConsumer has no argument 'consume_threads': it is a setting,"
        " settings=ConsumerSettings(consume_threads=...)",
    ),
    (lambda: PullConsumer("g", **any_({"pull_batch": 4})), "ConsumerSettings(pull_batch_size=...)"),
    (lambda: TransactionProducer("g", take, **any_({"zzz": 4})), "it has group, check, namesrv"),
    (lambda: ProducerSettings(**any_({"retry": 3})), "no argument 'retry': did you mean retries?"),
    (lambda: ConsumerSettings(**any_({"consume_thread": 3})), "did you mean consume_threads?"),
    (
        lambda: ConsumerSettings(**any_({"zzz": 3})),
        "no argument 'zzz': it has consume_threads, ",
    ),
    (lambda: ConsumerSettings(consume_threads=any_(2.5)), "consume_threads is 2.5, and not an int"),
    (
        lambda: ConsumerSettings(suspend_ms=any_(timedelta(seconds=2))),
        "suspend_ms is in ms: pass 2",
    ),
    (lambda: ProducerSettings(trace=any_("false")), "trace is True or False, and not 'false'"),
    (lambda: ProducerSettings(retries=any_(True)), "retries is True, and not an integer"),
    (lambda: ProducerSettings(retried_codes=any_(["SYSTEM_BUSY"])), "a code of retried_codes is"),
    (
        lambda: ProducerSettings(retried_codes=any_(2)),
        "retried_codes are a collection of codes, and not 2",
    ),
    (
        lambda: Producer("g", "http://h:9876"),
        "'http://h:9876' is a URL: a name server is host:port",
    ),
    (lambda: Producer("g", ""), "'' names no name server: use host:port"),
    (lambda: Producer("g", []), "[] names no name server: use host:port"),
    (
        lambda: Producer("g", credentials=any_(("a", "b"))),
        "credentials are Credentials(access_key,",
    ),
    (lambda: Producer("g", tls=any_(True)), "tls is a Tls(...), "),
    (lambda: Producer("g", instance_name=any_(3)), "instance_name is a string, and not 3"),
    (lambda: PushConsumer("g", take, begin=any_("first")), "begin is a ConsumeFrom, such as FIRST"),
    (
        lambda: PushConsumer("g", take, begin=ConsumeFrom.TIMESTAMP, begin_ms=any_(NOON)),
        "begin_ms is in ms since 1970, and not a datetime: pass 1795694400000",
    ),
    (
        lambda: PushConsumer("g", take, begin=ConsumeFrom.TIMESTAMP, begin_ms=1_795_694_400),
        "begin_ms is in ms since 1970, and 1795694400 looks like seconds: pass 1795694400000",
    ),
    (
        lambda: PushConsumer("g", take, offsets_folder=any_(3)),
        "offsets_folder is a path, and not 3",
    ),
    (lambda: PushConsumer("g", take).unsubscribe(any_(["T"])), "a topic's name is a string"),
    (lambda: PushConsumer("g", take).subscribe("T", any_(["a"])), "tags are a string such as"),
    (lambda: PullConsumer("g").assign(any_(QUEUE)), "the queues to assign are a list of MessageQ"),
    (lambda: PullConsumer("g").assign(any_(["T"])), "the queues to assign are MessageQueues, and"),
    (lambda: PullConsumer("g").pause(any_(QUEUE)), "the queues to pause or resume are a list"),
    (lambda: PullConsumer("g").committed(any_("T")), "the queue is a MessageQueue, and not 'T'"),
    (lambda: PullConsumer("g").stop(any_("5")), "timeout_s is '5', and not within"),
    (lambda: timestamp_ms("2026-11-21"), "a time is 14 digits, such as 20261121143000, and not"),
    (lambda: timestamp_ms(any_(NOON)), "a time is 14 digits"),
    (lambda: timestamp_ms("20260231000000"), "20260231000000 is no local time: "),
    (lambda: Admin().reset_offsets("g", "T", 1_795_694_400), "time_ms is in ms since 1970, and 17"),
    (lambda: split_batch(any_(MESSAGE)), "a batch is a list of Messages, and not one: put it in"),
    (
        lambda: create_reply_message(any_(MESSAGE), b"x"),
        "a reply is to a message that was received",
    ),
    (lambda: TransactionProducer("g", take, check_threads=any_(1.5)), "check_threads is 1.5, and"),
    (lambda: Admin().create_topic("T", any_("8")), "queue_count is '8', and not an integer"),
    (lambda: Admin().create_topic("T", 0), "queue_count is 0, and not within 1"),
    (lambda: Admin().query_by_key("T", any_(4711)), "a key is a string, and not 4711"),
    (lambda: Admin().query_by_key("T", "k", begin_ms=1_795_694_400), "begin_ms is in ms since"),
    (lambda: Admin().offsets(any_("T")), "the queue is a MessageQueue, and not 'T'"),
    (lambda: Admin().queues(any_(3)), "a topic's name is a string, and not 3"),
]


@pytest.mark.parametrize("wrong, said", CALLS)
def test_an_invalid_argument_is_an_error_at_once(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises((ArgumentIllegal, ConnectionFailed)) as caught:
        wrong()
    assert said in str(caught.value) and isinstance(caught.value, ClientError)


@pytest.mark.parametrize(
    "timeout, said",
    [
        ("3", "timeout_ms is '3', and not within 1"),
        (0.5, "timeout_ms is 0.5 milliseconds: 500 for 0.5 s"),
        (timedelta(seconds=3), "timeout_ms is a number of milliseconds: pass 3000"),
        (0, "timeout_ms is 0, and not within 1"),
        (True, "timeout_ms is True, and not within 1"),
    ],
)
def test_a_timeout_is_in_milliseconds(cluster: Cluster, timeout: Any, said: str) -> None:
    with cluster.producer() as producer:
        for call in (producer.send, producer.send_async, producer.request, producer.request_async):
            with pytest.raises(ArgumentIllegal) as caught:
                call(MESSAGE, timeout)
            assert str(caught.value).startswith(said)
        with pytest.raises(ArgumentIllegal, match="put it in a list"):
            producer.send_batch(any_(MESSAGE))
        assert producer.send_batch(any_(iter([MESSAGE]))).queue.topic == "T"


def test_secrets_and_long_bodies_are_absent_from_errors(cluster: Cluster) -> None:
    with pytest.raises(ArgumentIllegal) as caught:
        Producer("g", credentials=any_(("key", "a-secret")))
    assert "a-secret" not in str(caught.value)
    with cluster.producer() as producer, pytest.raises(ArgumentIllegal) as caught:
        producer.send(any_(bytes(1 << 20)))
    assert len(str(caught.value)) < 300


def test_a_timeout_probably_meant_in_seconds_logs_a_warning(cluster: Cluster) -> None:
    cluster.a.on(SEND, lambda command: None)
    with cluster.producer() as producer, pytest.raises(RequestTimeout) as caught:
        producer.send(MESSAGE, 30, queue=QUEUE)
    assert caught.value.__notes__ == ["the timeout was 30 milliseconds, not seconds"]
