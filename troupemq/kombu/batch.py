"""Publications of a block `with producer.batch():`, sent together."""

from collections.abc import Callable
from typing import Any

from kombu.exceptions import BatchPublishError

from troupemq.client.errors import ClientError
from troupemq.client.message import Message
from troupemq.kombu.envelope import Payload


class PublishBatch:
    """Messages of one producer that wait until the block ends, or until there are `max_size`."""

    def __init__(self, channel: Any, send: Callable[..., Any], max_size: int) -> None:
        """Take kombu's channel, and a function that sends a message and returns a future."""
        self.channel, self._send, self._max_size = channel, send, max_size
        self._messages: list[Message] = []
        self._failure: ClientError | None = None

    def publish(self, message: Payload, exchange: str, routing_key: str, **_: Any) -> None:
        """Keep a message for each queue that it is routed to. Raises BatchPublishError."""
        self._check()
        routed = self.channel.routed(message, exchange, routing_key)
        if self._messages and len(self._messages) + len(routed) > self._max_size:
            self.flush()
        self._messages += routed
        if len(self._messages) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Send what waits, and return when it is stored.

        Raises BatchPublishError if it may not be stored; after that the batch takes no more.
        """
        self._check()
        messages, self._messages = self._messages, []
        sent = []
        for message in messages:
            try:
                sent.append(self._send(message, wait_for_room=True))
            except ClientError as error:
                self._failure = self._failure or error
        for each in sent:
            try:
                each.result()
            except ClientError as error:
                self._failure = self._failure or error
        self._check()

    def discard(self) -> None:
        """Drop what waits, after an exception in the block."""
        self._messages.clear()

    def close(self) -> None:
        """Drop what waits, at the end of the block."""
        self._messages.clear()

    def _check(self) -> None:
        if self._failure is not None:
            text = f"some messages of the batch may not be stored: {self._failure}"
            raise BatchPublishError(text) from self._failure
