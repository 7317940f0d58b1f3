"""Bindings of several brokers, of which one fails."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kombu", reason="kombu is not installed")

from troupemq.client.errors import ClientError, ConnectionFailed, RouteNotFound
from troupemq.client.message import Message, MessageQueue
from troupemq.kombu import bindings
from troupemq.kombu.bindings import Bindings
from troupemq.kombu.link import BrokerLink
from troupemq.kombu.places import KombuPlace

FIRST, SECOND = (MessageQueue("kb-bindings", name, 0) for name in ("first", "second"))


class Link:
    """The records of two brokers, in memory."""

    place = KombuPlace(("a:9876",))

    def __init__(self) -> None:
        self.listed = [FIRST, SECOND]
        self.stored: dict[MessageQueue, list[bytes]] = {FIRST: [], SECOND: []}
        self.failures: dict[MessageQueue, ClientError] = {}

    def store(self, queue: MessageQueue, name: str) -> None:
        record = {"exchange": "news", "type": "direct", "queue": name, "key": "k"}
        self.stored[queue].append(json.dumps(record).encode())

    def ensure_topic(self, topic: str, queue_count: int) -> None:
        assert (topic, queue_count) == (self.place.bindings, 1)

    def readable(self, topic: str) -> list[MessageQueue]:
        return self.listed

    def pull(self, queue: MessageQueue, offset: int, held_ms: int) -> Callable[[], Any]:
        def answer() -> Any:
            if queue in self.failures:
                raise self.failures[queue]
            found = self.stored[queue][offset:]
            views = [SimpleNamespace(body=each, store_timestamp_ms=1) for each in found]
            return views, len(self.stored[queue])

        return answer


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(bindings, "pulled", lambda answer, queue: answer())
    return Link()


@pytest.fixture
def table(link: Link) -> Bindings:
    return Bindings(lambda: link)  # type: ignore[arg-type,return-value]


def bound(table: Bindings) -> set[str]:
    table.refresh(0.0)
    return {queue for queue, _ in table.find("news").bound}


def test_failure_of_one_broker_loses_no_binding_of_another(link: Link, table: Bindings) -> None:
    """Messages would find no queue, and be dropped without a word."""
    link.store(FIRST, "one")
    link.store(SECOND, "two")
    link.failures[SECOND] = ConnectionFailed("second: connection refused")
    with pytest.raises(ConnectionFailed):
        table.refresh(0.0)  # its bindings are not known yet
    link.failures.clear()
    assert bound(table) == {"one", "two"}


def test_broker_that_is_down_stops_no_publication(link: Link, table: Bindings) -> None:
    link.store(SECOND, "two")
    assert bound(table) == {"two"}
    link.failures[SECOND] = RouteNotFound("no master of the broker second is known")
    link.store(FIRST, "one")
    assert bound(table) == {"one", "two"}
    link.store(SECOND, "three")
    link.failures.clear()
    assert bound(table) == {"one", "two", "three"}


def test_broker_that_joins_later_is_read(link: Link, table: Bindings) -> None:
    link.listed = [FIRST]
    link.store(SECOND, "two")
    assert bound(table) == set()
    link.listed = [FIRST, SECOND]
    assert bound(table) == {"two"}


def test_each_broker_that_can_be_reached_stores_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    third = MessageQueue("kb-bindings", "third", 0)
    link, sent = BrokerLink(KombuPlace(("a:9876",))), list[MessageQueue | None]()

    def send(message: Message, queue: MessageQueue | None = None) -> Any:
        sent.append(queue)
        if queue == SECOND:
            raise ConnectionFailed("second: connection refused")
        return SimpleNamespace(queue=FIRST)

    monkeypatch.setattr(link, "send", send)
    monkeypatch.setattr(link, "queues", lambda topic: (FIRST, SECOND, third))
    link.send_to_all(Message("kb-bindings", b"{}"))
    assert sent == [None, SECOND, third]
