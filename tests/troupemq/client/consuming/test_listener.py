"""Results of listeners: only None and SUCCESS count as consumed."""

import gc
import logging
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from copy import copy
from datetime import timedelta
from importlib import import_module
from pickle import dumps, loads
from typing import Any, cast

import pytest

from protocol.message import MessageRecord
from protocol.properties import format
from tests.compat.patience import wait_until
from tests.troupemq.client.consuming.test_consuming import QUEUE, SETTINGS, Back, Bench
from troupemq.client.connection.client import Client
from troupemq.client.consuming.consume import SendingBack, level_of
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.idempotent import Idempotent, MemorySeen
from troupemq.client.consuming.listener import (
    DEAD_LETTER,
    REASON_CHARS_MAX,
    ConsumeResult,
    Listener,
    RetryLater,
    TopicListeners,
    call_listener,
    reason_of,
)
from troupemq.client.errors import ArgumentIllegal, BrokerError, ResultUnknown
from troupemq.client.message import Message, MessageView, view_of
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ConsumerSettings
from troupemq.testing import running_broker

troupemq = import_module("troupemq")


async def coroutine() -> None:
    raise AssertionError("nothing awaits it")


def is_error(name: str) -> bool:
    value = getattr(troupemq, name)
    return isinstance(value, type) and issubclass(value, Exception) and value is not RetryLater


FIRST = ConsumeFrom.FIRST_OFFSET
UNKNOWN: list[Any] = [
    False,
    True,
    0,
    "RETRY_LATER",
    "SUCCESS",
    RetryLater,
    ConsumeResult,
    [],
    Future(),
    ValueError("not raised"),
]


def view(offset: int = 0, **properties: str) -> MessageView:
    record = MessageRecord("T", b"x", format(properties), queue_offset=offset, record_bytes=10)
    return view_of(record, QUEUE)


@pytest.mark.parametrize("result", UNKNOWN)
@pytest.mark.parametrize("orderly", [False, True])
def test_an_unknown_result_is_a_failure_and_an_error_line(
    orderly: bool, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    back = Back(retries_max=0)
    results = iter([result, None])
    bench = Bench(lambda views: next(results), orderly, ConsumerSettings(), back)
    bench.put(0)
    with caplog.at_level(logging.ERROR):
        bench.tasks.advance(0)
    assert len(back.given) == 1 and "the listener returned" in back.reasons[0]
    (record,) = caplog.records
    assert record.message.startswith("listener failed group=g topic=T")


def test_a_coroutine_of_a_lambda_is_a_failure_and_is_closed() -> None:
    hidden: Any = lambda views: coroutine()  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = call_listener(hidden, [view()])
        gc.collect()
    assert isinstance(outcome.error, ResultUnknown) and outcome.failed is not None
    assert "returned a coroutine, and its body has not run" in outcome.reason


@pytest.mark.parametrize("result", UNKNOWN)
def test_an_unknown_result_within_idempotent_is_a_failure(result: Any) -> None:
    results = iter([result, None])
    listener = Idempotent(lambda views: next(results), MemorySeen())
    assert call_listener(listener, [view(KEYS="a")]).error is not None
    assert call_listener(listener, [view(KEYS="a")]).failed is None
    assert next(results, "called twice") == "called twice"


@pytest.mark.parametrize("key", [None, "", 3, coroutine])
def test_messages_without_a_key_are_distinguished(key: Any) -> None:
    seen: list[Sequence[MessageView]] = []

    def key_of(view: MessageView) -> Any:
        return key() if key is coroutine else key

    listener = Idempotent(seen.append, MemorySeen(), key_of)
    for offset in range(2):
        outcome = call_listener(listener, [view(offset)])
        assert "key returned" in outcome.reason and outcome.failed is not None
    assert seen == []


def test_an_unknown_result_of_the_key_store_does_not_count_as_consumed() -> None:
    class Forgetful(MemorySeen):
        def begin(self, key: str) -> Any:
            super().begin(key)
            return True

    outcome = call_listener(Idempotent(print, Forgetful()), [view(KEYS="a")])
    assert "the store's begin returned True" in outcome.reason and outcome.failed is not None


@pytest.mark.parametrize("orderly", [False, True])
def test_retry_later_can_be_raised(orderly: bool, caplog: pytest.LogCaptureFixture) -> None:
    def listen(views: Sequence[MessageView]) -> None:
        raise RetryLater(views[1:], DEAD_LETTER, reason="no such book")

    back = Back(retries_max=0)
    bench = Bench(listen, orderly, SETTINGS, back)
    bench.put(0, 1)
    bench.tasks.advance(0)
    level = 0 if orderly else DEAD_LETTER  # when orderly, how often it was tried
    assert (back.given, back.reasons) == ([(1, level)], ["no such book"])
    assert bench.queue.committable() == 2
    assert caplog.records == []


def test_retry_later_can_be_raised_as_a_class() -> None:
    def listen(views: Sequence[MessageView]) -> None:
        raise RetryLater

    outcome = call_listener(listen, [view()])
    assert outcome.error is None and outcome.failed is not None
    assert outcome.failed.messages is None


def test_retry_later_for_foreign_messages_fails_the_whole_batch() -> None:
    outcome = call_listener(lambda views: RetryLater([view()]), [view()])
    assert "messages that this call did not get" in outcome.reason
    assert outcome.failed is not None and outcome.failed.messages is None


@pytest.mark.parametrize(
    "options, said",
    [
        ({"messages": "the database is down"}, "a text is reason="),
        ({"messages": 3}, "a list of those that failed, and not 3"),
        ({"messages": view()}, "a list of those that failed"),
        ({"messages": ["an id"]}, "are messages, and not 'an id'"),
        ({"delay_level": "3"}, "delay_level is '3', and not an integer"),
        ({"delay_level": -2}, "delay_level is -2"),
        ({"suspend_ms": "1s"}, "suspend_ms is"),
        ({"reason": 3}, "reason is a string, and not 3"),
    ],
)
def test_retry_later_names_invalid_arguments(options: Any, said: str) -> None:
    with pytest.raises(ArgumentIllegal, match=said):
        RetryLater(**options)


def test_a_failure_is_logged_with_message_attempt_and_next_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def listen(views: Sequence[MessageView]) -> None:
        raise ValueError("the database\nis down")

    class Told(Back):
        def next_try(
            self, view: MessageView, delay_level: int, seconds: float | None = None
        ) -> str:
            return SendingBack(cast(Client, None), "g", 16, False).next_try(view, delay_level)

    back = Told()
    bench = Bench(listen, False, ConsumerSettings(), back)
    failing = view(0, UNIQ_KEY="ID0", KEYS="order-1 order-2")
    failing.reconsume_times = 2
    bench.queue.put([failing], 1)
    bench.consuming.submit(bench.queue, [failing])
    with caplog.at_level(logging.ERROR):
        bench.tasks.advance(0)
    (record,) = caplog.records
    line, _, trace = record.message.partition("\n")
    assert line == (
        "listener failed group=g topic=T queue=T@b:0 id=ID0 keys=order-1,order-2 attempt=3"
        " next_try='in 1m (delay level 5)' error='ValueError: the database is down'"
    )
    assert "Traceback" in trace and "is down" in trace
    assert back.reasons == ["ValueError: the database is down"]
    failing.reconsume_times = 16
    assert back.next_try(failing, 0) == "none, dead letter in %DLQ%g"


def test_the_reason_of_a_retry_is_its_text_else_its_cause() -> None:
    caused = RetryLater()
    caused.__cause__ = OSError("no route")
    assert reason_of(caused) == "OSError: no route"
    assert reason_of(RetryLater(reason="closed")) == "closed"
    assert reason_of(RetryLater()) == "the listener asked for a retry"
    assert reason_of(ValueError("a\x01b\x02c\nd")) == "ValueError: a b c d"
    assert len(reason_of(ValueError("x" * 10_000))) == REASON_CHARS_MAX


def test_an_exception_without_a_text_is_a_failure_like_others() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def listen(views: Sequence[MessageView]) -> None:
        raise Mute

    back = Back()
    bench = Bench(listen, False, ConsumerSettings(), back)
    bench.put(0)
    bench.tasks.advance(0)
    assert (back.given, back.reasons) == ([(0, 0)], ["Mute"])
    assert bench.queue.committable() == 1


def test_a_long_result_is_truncated_in_the_error() -> None:
    long: Any = lambda views: "x" * 10_000_000  # noqa: E731
    assert len(str(call_listener(long, [view()]).error)) < 500


def test_a_delay_in_seconds_is_a_level_where_brokers_have_no_timers() -> None:
    levels = {0: 1, 1: 1, 2: 2, 10: 3, 11: 4, 3600: 17, 7200: 18, 100_000: 18}
    assert {seconds: level_of(seconds) for seconds in levels} == levels
    later = RetryLater(seconds=timedelta(minutes=1), reason="later")
    assert later.seconds == 60
    copied = later.of([view(0)])
    assert (copied.seconds, copied.reason) == (60, "later")
    with pytest.raises(ArgumentIllegal, match="and not both"):
        RetryLater(delay_level=3, seconds=1)
    told = SendingBack(cast(Client, None), "g", 16, False).next_try(view(0), 0, 11)
    assert told == "in 11 s, or in 30s without timers"


def test_each_topic_has_its_listener_and_the_others_the_one_of_the_consumer() -> None:
    got: list[tuple[str, str]] = []

    def noting(name: str) -> Listener:
        return lambda views: got.extend((name, each.topic) for each in views)

    with running_broker(topics={"Orders": 1, "Payments": 1}) as broker:
        consumer = PushConsumer("g", noting("rest"), broker.namesrv, begin=FIRST)
        with consumer, Producer("shop", broker.namesrv) as shop:
            consumer.subscribe("Orders")
            consumer.subscribe("Payments", listener=noting("payments"))
            shop.send(Message("Orders", b"x"))
            shop.send(Message("Payments", b"x"))
            wait_until(lambda: len(got) == 2, "both")
    assert sorted(got) == [("payments", "Payments"), ("rest", "Orders")]


def test_a_topic_without_any_listener_is_refused() -> None:
    consumer = PushConsumer("g", namesrv="127.0.0.1:9876")
    with pytest.raises(ArgumentIllegal, match="no listener for Orders"):
        consumer.subscribe("Orders")
    consumer.subscribe("Orders", listener=lambda views: None)
    consumer.subscribe("Orders", "paid")
    with pytest.raises(ArgumentIllegal, match="the listener is"):
        consumer.subscribe("Orders", listener="no function")  # type: ignore[arg-type]


def test_retries_of_several_topics_go_to_their_listeners_and_fail_apart() -> None:
    views = [view(0), view(1)]
    views[1] = view_of(MessageRecord("U", b"x", b"", queue_offset=1, record_bytes=10), QUEUE)
    listeners = TopicListeners(None)
    listeners.set("T", lambda _: RetryLater(delay_level=4, reason="no stock"))
    listeners.set("U", lambda _: None)
    failed = call_listener(listeners, views).failed
    assert failed is not None
    assert (failed.messages, failed.delay_level, failed.reason) == ([views[0]], 4, "no stock")
    assert call_listener(TopicListeners(None), views).failed is not None


def test_a_retry_can_be_raised_in_another_process() -> None:
    """Such an exception broke the pool of processes: it could not be made again."""
    for retry in (
        RetryLater(reason="no stock"),
        RetryLater([view()], 5, 100.0, "later"),
        RetryLater(seconds=timedelta(minutes=1)),
    ):
        for copied in (loads(dumps(retry)), copy(retry)):
            assert vars(copied) == vars(retry)
            assert str(copied) == str(retry)


@pytest.mark.parametrize("name", [each for each in troupemq.__all__ if is_error(each)])
def test_errors_can_be_raised_in_another_process(name: str) -> None:
    kind = getattr(troupemq, name)
    error = kind(1, "no", "b") if kind is BrokerError else kind("no")
    copied = loads(dumps(error))
    assert (type(copied), str(copied), vars(copied)) == (kind, str(error), vars(error))
