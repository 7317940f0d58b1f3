"""A broker for the tests of one file, and connections of kombu to it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from troupemq.testing import LocalBroker, running_broker

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with running_broker() as made:
        yield made


@pytest.fixture
def connect(broker: LocalBroker) -> Iterator[Connect]:
    """Return a function that makes connections; each is like another process."""
    import kombu

    made = []

    def connection(**options: Any) -> Any:
        url = f"troupemq://{broker.namesrv}//"
        made.append(kombu.Connection(url, transport="troupemq.kombu:Transport", **options))
        return made[-1]

    yield connection
    for each in made:
        each.release()
