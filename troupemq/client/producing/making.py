"""Checks and encodings of a producer's messages, for threads and for event loops."""

from abc import ABC, abstractmethod
from time import monotonic

from troupemq.client.arguments import check_instance, check_timeout
from troupemq.client.errors import MessageIllegal
from troupemq.client.message import Message, MessageQueue, check_sendable
from troupemq.client.producing.queue_choice import QueueChoice, always, check_choice, may_choose
from troupemq.client.producing.sending import (
    EncodedMessage,
    Sender,
    Sending,
    SendResultFuture,
    parcel_of,
)
from troupemq.client.settings import ProducerSettings

LONG_BODY_BYTES = 64 << 10
"""Body size from which compression, 2 ms or more, leaves an asynchronous caller's thread."""


class SendMaker(ABC):
    """Base of producers."""

    settings: ProducerSettings
    _choose: QueueChoice

    @abstractmethod
    def _next_id(self) -> str:
        """Return the id of another message."""

    def _check_message(self, message: Message) -> None:
        check_instance(message, Message, "what is sent is a Message")
        check_sendable(message.topic)
        self._check_size(message.body)

    def _parcel(self, message: Message) -> EncodedMessage:
        self._check_message(message)
        return parcel_of(message, self._next_id())

    def _compressed_parcel(self, message: Message) -> EncodedMessage:
        parcel = self._parcel(message)
        is_long = len(parcel.body) >= self.settings.compress_over_bytes
        return parcel.compressed() if is_long else parcel

    def _check_size(self, body: bytes) -> None:
        limit = self.settings.max_message_bytes
        if len(body) > limit:
            raise MessageIllegal(f"the message body size over max value, MAX: {limit}")

    def _sending(
        self,
        carrier: Sender,
        parcel: EncodedMessage,
        message: Message,
        timeout_ms: float | None,
        queue: MessageQueue | None,
        choose: QueueChoice | None,
        result: SendResultFuture,
        *,
        compresses: bool,
        kind: type[Sending] = Sending,
    ) -> Sending:
        """Return a send that has not started. Raises ArgumentIllegal."""
        settings = self.settings
        check_timeout(timeout_ms)
        if timeout_ms is None:
            timeout_ms = settings.send_timeout_ms
        if queue is not None:
            choose = always(queue)
        elif choose is not None and not may_choose(choose):
            check_choice(choose)
        return kind(
            carrier,
            parcel,
            message,
            choose or self._choose,
            1 + settings.retries if choose is None else 1,
            monotonic() + timeout_ms / 1000,
            settings.try_timeout_ms,
            settings.retried_codes,
            settings.retry_another_broker_when_not_ok,
            result,
            timeout_ms,
            compresses,
        )
