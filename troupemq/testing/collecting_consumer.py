"""Consumers of `consume`, which keep what they consume."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeAlias

from troupemq.client.callbacks import check_callback
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import Result
from troupemq.client.message import MessageView
from troupemq.client.settings import ConsumerSettings

COMMIT_MS = 20
"""Interval at which consumers commit their offsets."""

Handler: TypeAlias = Callable[[Sequence[MessageView]], Result]
_numbers = count(1)


class CollectingConsumer(PushConsumer):
    """Push consumer that keeps the messages it has consumed, and the errors of its handler."""

    def __init__(self, group: str, handler: Handler | None, namesrv: str, orderly: bool) -> None:
        self.received: list[MessageView] = []
        """Messages that were handled without an error, in order."""
        self.errors: list[Exception] = []
        if handler is not None:
            check_callback(handler, "handler", "messages")
        self._handler = handler
        settings = ConsumerSettings(commit_interval_ms=COMMIT_MS)
        super().__init__(
            group,
            self._handle,
            namesrv,
            orderly=orderly,
            begin=ConsumeFrom.FIRST_OFFSET,
            settings=settings,
            instance_name=f"{group}-{next(_numbers)}",
        )

    def _handle(self, messages: Sequence[MessageView]) -> Result:
        try:
            result = None if self._handler is None else self._handler(messages)
        except Exception as error:
            self.errors.append(error)
            raise
        self.received += messages
        return result
