"""Sends copies of stored messages: one after the other, at a rate, none twice.

Each copy bears a mark, a key or a message id by which brokers find it. What is committed has been
sent. As copies go one after the other, only the first ones behind that can be in doubt after an
interruption: they are looked up by their marks before they are sent. So is a copy whose send had no
answer, before it is tried again; and each of them, where others may have sent the same ones.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from troupemq.client.admin import Admin
from troupemq.client.errors import ClientError, MessageIllegal, RouteNotFound
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import QueueChoice

TRIES = 5


class Copier:
    """Counts what it sends, and what it finds there already."""

    def __init__(
        self, rate: float, wait: Callable[[float], object], *, doubts_all: bool = False
    ) -> None:
        """`rate`: messages a second. `wait` is called with seconds between two of them.

        `doubts_all`: each copy is looked up before it is sent.
        """
        self._doubts_all = doubts_all
        self._pause_s = 1 / rate
        self._wait = wait
        self._next_s = 0.0
        self._in_doubt = True
        self._readable: dict[str, frozenset[MessageQueue]] = {}
        """By topic."""
        self.sent = 0
        self.found = 0

    def begin(self) -> None:
        """What follows is of another queue, with commits of its own."""
        self._in_doubt = True
        self._readable.clear()

    def copy(
        self, message: Message, mark: str, choose: QueueChoice, admin: Admin, producer: Producer
    ) -> None:
        """Until it is there, once. Raises ClientError; MessageIllegal if it never can be."""
        if self._in_doubt and _is_there(admin, message.topic, mark):
            self.found += 1
            return
        self._in_doubt = self._doubts_all
        self._wait(max(0.0, self._next_s - monotonic()))
        self._next_s = max(self._next_s, monotonic()) + self._pause_s
        self._send(message, mark, choose, admin, producer)
        self.sent += 1

    def _send(
        self, message: Message, mark: str, choose: QueueChoice, admin: Admin, producer: Producer
    ) -> None:
        """With a choice of its own a send has one try only."""
        readable = self._readable_of(message.topic, admin)

        def choose_readable(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            return choose([each for each in queues if each in readable] or queues, message)

        for number in range(1, TRIES + 1):
            try:
                producer.send(message, choose=choose_readable)
                return
            except MessageIllegal:
                raise
            except ClientError:
                if number == TRIES:
                    raise
            self._wait(number)
            if _is_there(admin, message.topic, mark):
                return

    def _readable_of(self, topic: str, admin: Admin) -> frozenset[MessageQueue]:
        """Return the queues that consumers read; messages in other queues reach no consumer."""
        if topic not in self._readable:
            with suppress(RouteNotFound):  # then the send says so
                self._readable[topic] = frozenset(admin.queues(topic))
        return self._readable.get(topic, frozenset())


def _is_there(admin: Admin, topic: str, mark: str) -> bool:
    try:
        return bool(admin.query_by_key(topic, mark, 1))
    except RouteNotFound:
        return False
