"""Bindings of exchanges and queues that all processes share, in a topic of their own.

Each record is a JSON object with the exchange, its type, the queue, the routing key, and whether
the binding ended. A record without a queue says that queues which live with their connection read
the exchange's topic. Each broker stores each record, so that any may be down. Records are written
again each day, before brokers delete them with their log.

A topic exchange compares word by word, for keys come from other processes.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic, time_ns
from typing import Any

from kombu.transport.virtual import exchange

from troupemq.client.errors import (
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.log import client_logger
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.kombu.link import BrokerLink, pulled

KEY_CHARS_MAX = 255
"""Length of a routing key in AMQP."""


def is_match(pattern: str, key: str) -> bool:
    """Return whether a routing key matches: `*` is any word, and `#` any number of words."""
    reached = {0}
    """Places in the pattern up to which it matches; the time is at most words times words."""
    words = pattern.split(".")
    _pass_hashes(words, reached)
    for word in key.split("."):
        following = set()
        for place in reached:
            if place == len(words):
                continue
            if words[place] == "#":
                following.add(place)
            elif words[place] in ("*", word):
                following.add(place + 1)
        reached = following
        _pass_hashes(words, reached)
    return len(words) in reached


def _pass_hashes(words: list[str], reached: set[int]) -> None:
    """Add the places behind each `#`, which also stands for no word."""
    for place, word in enumerate(words):
        if word == "#" and place in reached:
            reached.add(place + 1)


class LinearTopicExchange(exchange.TopicExchange):
    """Topic exchange without the regular expressions of kombu, whose time has no bound."""

    def lookup(
        self, table: Iterable[tuple[str, Any, str]], exchange: str, routing_key: str, default: Any
    ) -> set[str]:
        if len(routing_key) > KEY_CHARS_MAX:
            return set()
        return {queue for pattern, _, queue in table if is_match(pattern, routing_key)}

    def prepare_bind(
        self, queue: str, exchange: str, routing_key: str, arguments: Any
    ) -> tuple[str, None, str]:
        return routing_key, None, queue


EXCHANGE_TYPES = {
    "direct": exchange.DirectExchange,
    "topic": LinearTopicExchange,
    "fanout": exchange.FanoutExchange,
}

log = client_logger(__name__)

FRESH_S = 1.0
"""Age up to which the table is used for a message that it finds queues for."""
RETRIED_S = 0.05
"""Age up to which it is used for a message that it finds none for."""
LASTS_MS = 86_400_000
"""Age at which a record is written again."""
ANNOUNCE_MS = 3_600_000
TIMEOUT_S = 5.0

Bound = tuple[str, str]
"""Queue and routing key."""


@dataclass
class Exchange:
    """Type, queues and readers of one exchange."""

    type: str = "direct"
    bound: dict[Bound, int] = field(default_factory=dict)
    """Time of each record, in ms since 1970."""
    readers_ms: int = 0
    """Time of the record about readers; 0: no queue reads the topic."""


class Bindings:
    """The shared table as one connection knows it; for any thread."""

    def __init__(self, link: Callable[[], BrokerLink]) -> None:
        self._link = link
        self._exchanges: dict[str, Exchange] = {}
        self._own: dict[tuple[str, str, str], str] = {}
        """Type of the exchange by exchange, queue and key; an empty queue stands for readers."""
        self._next: dict[MessageQueue, int] = {}
        """Offset of the next record in each queue that has been read."""
        self._read_s = float("-inf")
        self._lock = Lock()

    def after_fork(self) -> None:
        self._lock = Lock()

    def find(self, exchange: str) -> Exchange:
        return self._exchanges.get(exchange) or Exchange()

    def refresh(self, age_max_s: float) -> bool:
        """Read new records if the last time is `age_max_s` ago; return whether that was so.

        Raises ClientError.
        """
        if monotonic() - self._read_s <= age_max_s:
            return False
        with self._lock:
            self._read()
        return True

    def _read(self) -> None:
        link = self._link()
        topic = link.place.bindings
        link.ensure_topic(topic, 1)
        begun_s = monotonic()
        views: list[MessageView] = []
        following: dict[MessageQueue, int] = {}
        for queue in link.readable(topic):
            try:
                found, following[queue] = _records(link, queue, self._next.get(queue, 0))
            except (ConnectionFailed, RequestTimeout, RouteNotFound) as error:
                if queue not in self._next:  # bindings that are not known
                    raise
                log.warning("bindings not read", broker=queue.broker_name, error=str(error))
            else:
                views += found
        for view in sorted(views, key=lambda each: each.store_timestamp_ms):
            self._take(view)
        self._next.update(following)
        self._read_s = begun_s

    def _take(self, view: MessageView) -> None:
        try:
            record = json.loads(view.body)
            name, queue, key = (str(record[each]) for each in ("exchange", "queue", "key"))
            kind, ends = str(record["type"]), bool(record.get("ends"))
            if kind not in EXCHANGE_TYPES or len(key) > KEY_CHARS_MAX:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            log.warning("binding not understood", id=view.message_id)
            return
        exchange = self._exchanges.setdefault(name, Exchange())
        exchange.type = kind
        if not queue:
            exchange.readers_ms = view.store_timestamp_ms
        elif ends:
            exchange.bound.pop((queue, key), None)
        else:
            exchange.bound[queue, key] = view.store_timestamp_ms

    # --- changes

    def bind(self, exchange: str, kind: str, queue: str, key: str) -> None:
        """Announce a binding, unless a record of it is young enough. Raises ClientError.

        An empty queue stands for those that read the exchange's topic.
        """
        self._own[exchange, queue, key] = kind
        self.refresh(FRESH_S)
        self._announce(((exchange, queue, key, kind),))

    def unbind(self, exchange: str, queue: str, key: str) -> None:
        """Announce the end of a binding. Raises ClientError."""
        kind = self._own.pop((exchange, queue, key), self.find(exchange).type)
        self.refresh(FRESH_S)
        if (queue, key) in self.find(exchange).bound:
            self._send(exchange, queue, key, kind, ends=True)

    def announce_again(self) -> None:
        """Announce own bindings whose records are old. Logs failures."""
        try:
            self.refresh(FRESH_S)
            self._announce((*names, kind) for names, kind in list(self._own.items()))
        except ClientError as error:
            log.warning("bindings not announced", error=str(error))

    def _announce(self, bindings: Iterable[tuple[str, str, str, str]]) -> None:
        for name, queue, key, kind in bindings:
            found = self.find(name)
            told_ms = found.bound.get((queue, key), 0) if queue else found.readers_ms
            if told_ms < time_ns() // 1_000_000 - LASTS_MS:
                self._send(name, queue, key, kind)

    def _send(self, exchange: str, queue: str, key: str, kind: str, **more: Any) -> None:
        link = self._link()
        record = {"exchange": exchange, "type": kind, "queue": queue, "key": key, **more}
        link.send_to_all(Message(link.place.bindings, json.dumps(record).encode()))
        self._read_s = float("-inf")


def _records(link: BrokerLink, queue: MessageQueue, offset: int) -> tuple[list[MessageView], int]:
    """Return the records of a queue from `offset` on, and the next offset. Raises ClientError."""
    views: list[MessageView] = []
    while True:
        found, following = pulled(link.pull(queue, offset, held_ms=0), queue)
        views += found
        if following == offset or (not found and following < offset):
            return views, offset
        offset = following
