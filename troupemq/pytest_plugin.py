"""Fixtures for pytest, which finds them in an installed TroupeMQ: a broker, producer and consumer.

    def test_an_order_is_announced(troupemq_broker, producer):
        place_order(producer, 17)
        troupemq_broker.expect("Orders", keys="17")

A test that uses none of them imports nothing of TroupeMQ but this module.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from troupemq import aio
    from troupemq.client.producing.producer import Producer
    from troupemq.testing.collecting_consumer import CollectingConsumer
    from troupemq.testing.local_broker import LocalBroker

SCOPE = "troupemq_scope"
MARKER = "troupemq"
_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting of the broker's lifetime."""
    parser.addini(
        SCOPE,
        "Lifetime of the fixture troupemq_broker: function (a broker of its own for each test) or"
        " session (one for all tests of a process).",
        default="function",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, and check the setting."""
    scope = config.getini(SCOPE)
    if scope not in ("function", "session"):
        raise pytest.UsageError(f"{SCOPE} is {scope!r}: use function or session")
    config.addinivalue_line(
        "markers",
        "troupemq(topics={name: queues}, settings={name: value}): topics and settings of the"
        " broker that the fixture troupemq_broker starts.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse marks that would have no effect, because all tests share one broker."""
    if config.getini(SCOPE) == "session":
        for item in items:
            if item.get_closest_marker(MARKER) is not None:
                raise pytest.UsageError(
                    f"{item.nodeid} has the mark {MARKER}, which needs a broker of its own:"
                    f" {SCOPE} is session"
                )


def _scope(fixture_name: str, config: pytest.Config) -> Literal["function", "session"]:
    return "session" if config.getini(SCOPE) == "session" else "function"


@pytest.fixture(scope=_scope)
def troupemq_broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """Give a broker with its name server; after its last test, assert that it stops cleanly."""
    was_enabled = gc.isenabled()
    gc.disable()  # imported objects live on; a tenth of the import's time
    try:
        from troupemq.testing.local_broker import running_broker
    finally:
        if was_enabled:
            gc.enable()
    marker = request.node.get_closest_marker(MARKER) or pytest.mark.troupemq
    with running_broker(*marker.args, **marker.kwargs) as broker:
        yield broker


@pytest.fixture(scope="session")
def troupemq_session_broker() -> Iterator[LocalBroker]:
    """Give one broker for all tests of a process: `new_topic` and `new_group` keep them apart."""
    from troupemq.testing.local_broker import running_broker

    with running_broker() as broker:
        yield broker


@pytest.fixture
def troupemq_topic(troupemq_broker: LocalBroker) -> str:
    """Give the name of a new topic with four queues."""
    return troupemq_broker.new_topic()


@pytest.fixture
def troupemq_group(troupemq_broker: LocalBroker) -> str:
    """Give a group name that no other test gets."""
    return troupemq_broker.new_group()


@pytest.fixture
def producer(troupemq_broker: LocalBroker) -> Iterator[Producer]:
    """Give a started producer, which is stopped after the test."""
    from troupemq.client.producing.producer import Producer

    with Producer(f"producers-{next(_numbers)}", troupemq_broker.namesrv) as made:
        yield made


@pytest.fixture
def consumer(
    troupemq_broker: LocalBroker, troupemq_group: str
) -> Callable[..., CollectingConsumer]:
    """Give `troupemq_broker.consume` for a group of this test's own: call it with a topic."""
    return partial(troupemq_broker.consume, group=troupemq_group)


@pytest.fixture
def aio_producer(troupemq_broker: LocalBroker) -> aio.Producer:
    """Give an asyncio producer, which the test starts and stops by `async with`."""
    from troupemq import aio

    return aio.Producer(f"producers-{next(_numbers)}", troupemq_broker.namesrv)


@pytest.fixture
def aio_consumer(troupemq_broker: LocalBroker, troupemq_group: str) -> aio.SimpleConsumer:
    """Give an asyncio SimpleConsumer, which the test starts and stops by `async with`."""
    from troupemq import ConsumeFrom, aio

    first = ConsumeFrom.FIRST_OFFSET
    return aio.SimpleConsumer(troupemq_group, troupemq_broker.namesrv, begin=first)
