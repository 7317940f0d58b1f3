"""Listeners: their signature, their answers, and how they are called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from troupemq.client.log import client_logger
from troupemq.client.message import MessageView

log = client_logger(__name__)

RISING_DELAY = 0
"""The delay level that lets the broker choose: 10 s for the first return, more for each further."""

DEAD_LETTER = -1
"""The delay level that makes a dead letter at once."""


class ConsumeResult(Enum):
    """What a listener says of the messages it was given."""

    SUCCESS = "SUCCESS"
    RETRY_LATER = "RETRY_LATER"


@dataclass(frozen=True)
class RetryLater:
    """RETRY_LATER with details: for some of the messages only, or at another time."""

    messages: Sequence[MessageView] | None = None
    """Those that failed; None for all. The others are consumed. An orderly queue goes on with the
    first of them, so there it is the last ones that can have failed."""

    delay_level: int = RISING_DELAY
    """When they come again: a level of the broker's; DEAD_LETTER for never. Not when orderly."""

    suspend_ms: int | None = None
    """How long an orderly queue rests; None for what the settings say."""


Result: TypeAlias = ConsumeResult | RetryLater | None

Listener = Callable[[Sequence[MessageView]], Result]
"""Gets messages of one queue, one unless consume_batch_size says more; None means SUCCESS, an
exception RETRY_LATER, for all of them. Called by many threads at once; orderly, never twice at once
for one queue, and with its messages in their order."""

_FAILED = RetryLater()


@dataclass(frozen=True)
class Outcome:
    """What came of one call: `failed` says which messages come again, None that all is well."""

    result: Result
    error: BaseException | None
    failed: RetryLater | None

    def split(
        self, views: Sequence[MessageView]
    ) -> tuple[Sequence[MessageView], Sequence[MessageView]]:
        """The messages that are consumed, and those that failed."""
        if self.failed is None:
            return views, ()
        if self.failed.messages is None:
            return (), views
        failed = {id(view) for view in self.failed.messages}
        return (
            [view for view in views if id(view) not in failed],
            [view for view in views if id(view) in failed],
        )


_FINE = Outcome(None, None, None)


def call_listener(listener: Listener, views: Sequence[MessageView], group: str) -> Outcome:
    """Calls it; raises nothing, whatever the application does."""
    try:
        result = listener(views)
    except BaseException as error:  # whatever it is, sys.exit too: the messages come again
        where = str(views[0].queue)
        log.error("listener failed", group=group, queue=where, exc_info=True)
        return Outcome(None, error, _FAILED)
    if result is None:
        return _FINE
    if isinstance(result, RetryLater):
        return Outcome(result, None, result)
    return Outcome(result, None, _FAILED if result is ConsumeResult.RETRY_LATER else None)
