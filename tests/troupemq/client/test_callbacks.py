"""Functions of the application that cannot work are refused; results without a meaning fail."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any

import pytest

from tests.troupemq.client.cluster import MESSAGE, Cluster
from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.consuming.assignment import (
    averagely,
    by_config,
    by_machine_room,
    consistent_hash,
    share_of,
)
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.idempotent import Idempotent, MemorySeen
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import (
    ArgumentIllegal,
    QueueChoiceFailed,
    ResultUnknown,
)
from troupemq.client.message import MessageQueue
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import RoundRobin, by_hash_of
from troupemq.client.producing.transaction import TransactionProducer


async def coroutine(*_: object) -> None:
    raise AssertionError("nothing awaits it")


async def async_generator(_: object) -> AsyncIterator[None]:
    yield


def generator(_: object) -> Iterator[None]:
    yield


class AsyncObject:
    async def __call__(self, *_: object) -> None:
        raise AssertionError("nothing awaits it")

    async def method(self, *_: object) -> None:
        raise AssertionError("nothing awaits it")


class PlainObject:
    def __call__(self, messages: Sequence[Any]) -> None:
        """Take messages as a listener."""


ASYNC = [
    coroutine,
    async_generator,
    generator,
    AsyncObject(),
    AsyncObject().method,
    partial(coroutine, 1),
    partial(AsyncObject(), 1),
    partial(partial(coroutine, 1), 2),
]
Refused = Callable[[Any], object]


@pytest.mark.parametrize("function", ASYNC)
@pytest.mark.parametrize(
    "take",
    [
        lambda function: PushConsumer("g", function),
        lambda function: PushConsumer("g", function, orderly=True),
        lambda function: PushConsumer("g", print, assign=function),
        lambda function: PullConsumer("g", assign=function),
        lambda function: Idempotent(function, MemorySeen()),
        lambda function: Idempotent(print, MemorySeen(), function),
        lambda function: TransactionProducer("g", function),
        lambda function: Producer("g", choose=function),
    ],
    ids=["push", "orderly", "assign", "pull", "idempotent", "key", "check", "choose"],
)
def test_an_async_or_generator_function_is_refused_at_once(take: Refused, function: object) -> None:
    with pytest.raises(ArgumentIllegal, match=r"async|generator"):
        take(function)


@pytest.mark.parametrize("function", ASYNC)
def test_an_async_local_transaction_is_refused_before_the_half_message(
    cluster: Cluster, function: Any
) -> None:
    with (
        TransactionProducer("pg", print, cluster.namesrv.address) as producer,
        pytest.raises(ArgumentIllegal, match=r"async|generator"),
    ):
        producer.send_in_transaction(MESSAGE, function)


@pytest.mark.parametrize(
    "take, said",
    [
        (lambda: PushConsumer("g", PlainObject), r"the class PlainObject: pass an instance"),  # type: ignore[arg-type]
        (lambda: PushConsumer("g", lambda: None), r"called with 1 arguments \(messages\)"),  # type: ignore[arg-type,misc]
        (lambda: PushConsumer("g", lambda a, b: None), r"called with 1 arguments"),  # type: ignore[arg-type,misc]
        (lambda: Producer("g", choose=by_hash_of), r"by_hash_of itself: call it"),  # type: ignore[arg-type]
        (lambda: Producer("g", choose=RoundRobin), r"the class RoundRobin"),  # type: ignore[arg-type]
        (lambda: PushConsumer("g", print, assign=consistent_hash), r"consistent_hash\(\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: PullConsumer("g", assign=by_config), r"by_config\(\.\.\.\)"),  # type: ignore[arg-type]
        (lambda: TransactionProducer("g", lambda: None), r"called with 1 arguments"),  # type: ignore[arg-type,misc]
        (lambda: Idempotent(print, "seen.db"), r"the store's begin is a function"),  # type: ignore[arg-type]
        (lambda: by_machine_room("hz"), r"rooms are a list of names, and not 'hz'"),
        (lambda: by_config("q"), r"by_config's queues are a list"),  # type: ignore[arg-type]
        (lambda: consistent_hash(0), r"virtual_nodes is 0"),
        (lambda: by_hash_of(None), r"by_hash_of gets a string or an integer, and not None"),  # type: ignore[arg-type]
    ],
)
def test_an_object_that_is_not_callable_is_refused_at_once(
    take: Callable[[], object], said: str
) -> None:
    with pytest.raises(ArgumentIllegal, match=said):
        take()


def test_any_callable_is_accepted() -> None:
    check_callback(PlainObject(), "it", "messages")
    check_callback(PlainObject().__call__, "it", "messages")
    check_callback(partial(by_hash_of, 3), "it")
    check_callback(lambda messages, more=1: None, "it", "messages")
    check_callback(lambda *anything: None, "it", "messages", "more")
    check_callback(print, "it", "messages")


def test_parameters_are_those_of_the_decorator_and_not_of_what_it_wraps() -> None:
    def listen(messages: object, database: object) -> None: ...

    @wraps(listen)
    def with_database(messages: object) -> None:
        listen(messages, None)

    @wraps(lambda messages: None)
    def without_messages() -> None: ...

    check_callback(with_database, "the listener", "messages")
    with pytest.raises(ArgumentIllegal, match=r"called with 1 arguments \(messages\)"):
        check_callback(without_messages, "the listener", "messages")


def test_a_coroutine_as_result_is_closed_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = unknown_result(coroutine(), "choose", "it returns a queue")
        gc.collect()
    assert str(error) == (
        "choose returned a coroutine, and its body has not run: it returns a queue"
    )


@pytest.mark.parametrize(
    "result, said",
    [
        (False, "returned False:"),
        (0, "returned 0:"),
        ("COMMIT", "returned 'COMMIT':"),
        (RoundRobin, "returned the class RoundRobin:"),
        (Future(), "returned a Future, which is not waited for:"),
        (generator(None), "returned a generator, and its body has not run:"),
        (async_generator(None), "returned an async generator, and its body has not run:"),
    ],
)
def test_an_invalid_result_is_named(result: object, said: str) -> None:
    assert f"it {said} wanted" in str(unknown_result(result, "it", "wanted"))


def test_a_future_is_an_invalid_result() -> None:
    loop = asyncio.new_event_loop()
    try:
        assert "a Future, which is not" in str(unknown_result(loop.create_future(), "it", ""))
    finally:
        loop.close()


QUEUES = [MessageQueue("T", "b", number) for number in range(2)]


@pytest.mark.parametrize(
    "result", [None, "ab", 3, [3], ["T"], [MessageQueue("T", "b", 9)], coroutine]
)
def test_an_invalid_assignment_is_an_error_and_not_an_empty_one(
    result: Any,
) -> None:
    def assign(*_: object) -> Any:
        return result() if result is coroutine else result

    with pytest.raises(ResultUnknown):
        share_of(assign, "me", ["me"], QUEUES)


def test_an_assignment_of_a_subset_is_accepted() -> None:
    assert share_of(averagely, "me", ["me"], QUEUES) == frozenset(QUEUES)


def test_a_queue_selector_that_returns_a_coroutine_fails_its_send(cluster: Cluster) -> None:
    hidden: Any = lambda queues, message: coroutine()  # noqa: E731
    with (
        warnings.catch_warnings(),
        cluster.producer() as producer,
        pytest.raises(QueueChoiceFailed, match="its body has not run"),
    ):
        warnings.simplefilter("error")
        producer.send(MESSAGE, choose=hidden)
