"""Sender of copies of stored messages, one at a time, rate-limited, without duplicates.

Each copy bears a mark: a key or message id by which brokers find it. Progress is committed only
for copies that were sent, so after an interruption a few copies may be sent but uncommitted. A
copy is therefore looked up by its mark before it is sent in these cases:

* All copies since the committed progress were already present.
* An earlier try to send it was not answered.
* `doubts_all` is set, because another run may have sent the same copies.

Any producer of the topic can send a message that bears a mark. Only one with the body and the
properties of the copy counts as the copy.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from protocol.compression import CompressionError
from protocol.properties import TAGS
from troupemq.client.admin import Admin
from troupemq.client.errors import ClientError, MessageIllegal, RouteNotFound
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import QueueChoice

TRIES = 5


class Copier:
    """Copier with counts of copies sent and copies already present (`found`)."""

    def __init__(
        self, rate: float, wait: Callable[[float], object], *, doubts_all: bool = False
    ) -> None:
        """Initialize the copier.

        `rate`: messages a second. `wait`: sleeps for a number of seconds.
        """
        self._doubts_all = doubts_all
        self._pause_s = 1 / rate
        self._wait = wait
        self._next_s = 0.0
        self._in_doubt = True
        self._readable: dict[str, frozenset[MessageQueue]] = {}
        """Queues that consumers read, by topic."""
        self.sent = 0
        self.found = 0

    def begin(self) -> None:
        """Start with a new source queue, which has its own committed progress."""
        self._in_doubt = True
        self._readable.clear()

    def copy(
        self, message: Message, mark: str, choose: QueueChoice, admin: Admin, producer: Producer
    ) -> None:
        """Send the message unless it is present.

        Raises ClientError; MessageIllegal for a message that no broker accepts.
        """
        if self._in_doubt and _is_there(admin, message, mark):
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
        """Send with retries: with `choose`, the producer itself tries only once."""
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
            if _is_there(admin, message, mark):
                return

    def _readable_of(self, topic: str, admin: Admin) -> frozenset[MessageQueue]:
        """Return the queues that consumers read; messages in other queues reach no consumer."""
        if topic not in self._readable:
            with suppress(RouteNotFound):  # the send then raises it
                self._readable[topic] = frozenset(admin.queues(topic))
        return self._readable.get(topic, frozenset())


def _is_there(admin: Admin, message: Message, mark: str) -> bool:
    try:
        return any(_is_copy(each, message) for each in admin.query_by_key(message.topic, mark))
    except RouteNotFound:
        return False


def _is_copy(view: MessageView, message: Message) -> bool:
    wanted = {**message.properties, **message.system_properties}
    if message.tags:
        wanted[TAGS] = message.tags
    try:
        return view.body == message.body and wanted.items() <= view.properties.items()
    except CompressionError:
        return False
