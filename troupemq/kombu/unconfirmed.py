"""Publications that are not waited for: the transport option `confirm_publish = False`.

The messages for one queue form a line with one request in flight. What is published meanwhile goes
with the next request, as one batch. So a second try never changes the order, and a busy publisher
spends little on each message.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from time import monotonic

from kombu.exceptions import OperationalError

from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import Message, SendResult
from troupemq.client.producing.producer import InFlight
from troupemq.kombu.envelope import QueueMessage
from troupemq.kombu.link import BrokerLink

log = client_logger(__name__)

COUNT_MAX, BYTES_MAX = 1000, 32 << 20
"""Limits of the messages in line and in flight, which a kill of the process loses."""

WAIT_S = 5.0
"""Longest wait for room, and for the messages in flight at the end."""

BATCH_COUNT_MAX, BATCH_BYTES_MAX = 100, 64 << 10
"""Limits of a batch, whose messages share a failure."""

LineName = tuple[str, int]
"""Topic and priority step."""


class Unconfirmed:
    """Messages in flight of one connection; for any thread.

    The producer tries failed requests again. A message that fails for good is logged, and the next
    publication raises its error.
    """

    def __init__(self, link: BrokerLink, failure: BaseException | None = None) -> None:
        """Take the error of an earlier connection, which the next publication raises."""
        self.link = link
        self._lines: dict[LineName, deque[Message]] = {}
        """Messages behind the request in flight; a line without one does not exist."""
        self._in_flight = InFlight(COUNT_MAX, BYTES_MAX)
        self.failure = failure
        self._lock = Lock()

    def publish(self, messages: Sequence[Message]) -> None:
        """Send messages; wait only for room, and raise ClientBusy without.

        Raises OperationalError for an earlier message; then these are not sent. kombu does not take
        it for a failure of this publication, which would be tried again in silence.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            text = f"an earlier message may not be stored, and this one is not sent: {failure}"
            raise OperationalError(text) from failure
        for message in messages:
            self.link.check_message(message)
            self._in_flight.enter(len(message.body), monotonic() + WAIT_S)
            name = message.topic, message.step if isinstance(message, QueueMessage) else 0
            with self._lock:
                line = self._lines.get(name)
                if line is None:
                    self._lines[name] = deque()
                else:
                    line.append(message)
            if line is None:
                self._run(name, [message])

    def flush(self) -> None:
        """Wait for all messages, but no longer than WAIT_S."""
        self._in_flight.wait_empty(WAIT_S)

    def _run(self, name: LineName, group: list[Message]) -> None:
        """Send a group, then the next ones, until one is in flight or the line is empty."""
        while group:
            sent = self._sent(group)
            if not sent.done():
                Future.add_done_callback(sent, partial(self._go_on, name, group))
                return
            group = self._next(name, group, sent)

    def _go_on(self, name: LineName, group: list[Message], sent: Future[SendResult]) -> None:
        self._run(name, self._next(name, group, sent))

    def _sent(self, group: list[Message]) -> Future[SendResult]:
        try:
            if len(group) > 1:
                return self.link.send_batch_async(group)
            return self.link.send_async(group[0])
        except ClientError as error:  # such as that of a link that is stopped
            failed: Future[SendResult] = Future()
            failed.set_exception(error)
            return failed

    def _next(
        self, name: LineName, group: list[Message], sent: Future[SendResult]
    ) -> list[Message]:
        """Note the end of a group; return the next one of its line."""
        error = sent.exception()
        for message in group:
            if error is not None:
                keys = ",".join(message.keys)
                log.error("message not published", topic=name[0], keys=keys, error=str(error))
                self.failure = error
            self._in_flight.leave(len(message.body))
        with self._lock:
            following = self._taken(self._lines[name])
            if not following:
                del self._lines[name]
        return following

    def _taken(self, line: deque[Message]) -> list[Message]:
        """Take the messages of the next request."""
        group: list[Message] = []
        left = BATCH_BYTES_MAX
        while line and len(group) < BATCH_COUNT_MAX:
            size = self._size_in_batch(line[0])
            if group and size > left:
                break
            group.append(line.popleft())
            left -= size
        return group

    def _size_in_batch(self, message: Message) -> int:
        """Return the size; that of a whole batch for one that needs a request of its own.

        A long body is compressed, which batches are not. Delays belong to single messages.
        """
        size = len(message.body) + len(message.tags or "") + sum(map(len, message.keys))
        is_alone = message.is_delayed or size >= self.link.settings.compress_over_bytes
        return BATCH_BYTES_MAX if is_alone else size
