"""Listeners: their signature, their answers, and how they are called."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from troupemq.client.arguments import MS_MAX, check_integer, check_range
from troupemq.client.callbacks import unknown_result
from troupemq.client.errors import ArgumentIllegal, ResultUnknown
from troupemq.client.message import MessageView

RISING_DELAY = 0
"""The delay level that lets the broker choose: 10 s for the first return, more for each further."""

DEAD_LETTER = -1
"""The delay level that makes a dead letter at once."""

DELAY_LEVEL_MAX = (1 << 31) - 1
REASON_CHARS_MAX = 500
RESULTS = "a listener returns None, a ConsumeResult or a RetryLater(...)"


class ConsumeResult(Enum):
    """What a listener says of the messages it was given."""

    SUCCESS = "SUCCESS"
    RETRY_LATER = "RETRY_LATER"


class RetryLater(Exception):
    """RETRY_LATER with details, returned or raised: for some of the messages only, or at another
    time."""

    def __init__(
        self,
        messages: Sequence[MessageView] | None = None,
        delay_level: int = RISING_DELAY,
        suspend_ms: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Raise ArgumentIllegal for arguments that cannot be meant.

        `messages` are those that failed, None for all; the others are consumed. An orderly queue
        goes on with the first of them, so there it is the last ones that can have failed.
        `delay_level` says when they come again: a level of the broker's, or DEAD_LETTER for never;
        it does not count when orderly. `suspend_ms` is how long an orderly queue rests, None for
        what the settings say. `reason` goes with the message, to its dead letter.
        """
        if messages is not None:
            if isinstance(messages, str | bytes | MessageView) or not isinstance(
                messages, Iterable
            ):
                raise ArgumentIllegal(
                    f"RetryLater's messages are a list of those that failed, and not {messages!r}:"
                    " a text is reason=..., a level is delay_level=..."
                )
            messages = messages if isinstance(messages, Sequence) else list(messages)
            for each in messages:
                if not isinstance(each, MessageView):
                    raise ArgumentIllegal(f"RetryLater's messages are messages, and not {each!r}")
        check_integer(delay_level, DEAD_LETTER, DELAY_LEVEL_MAX, "RetryLater's delay_level")
        if suspend_ms is not None:
            check_range(suspend_ms, 0, MS_MAX, "RetryLater's suspend_ms")
        if reason is not None and not isinstance(reason, str):
            raise ArgumentIllegal(f"RetryLater's reason is a string, and not {reason!r}")
        super().__init__(reason or "RetryLater")
        self.messages, self.delay_level = messages, delay_level
        self.suspend_ms, self.reason = suspend_ms, reason


Result: TypeAlias = ConsumeResult | RetryLater | None

Listener = Callable[[Sequence[MessageView]], Result]
"""Gets messages of one queue, one unless consume_batch_size says more. None means SUCCESS; an
exception, and a result that is none of these, means RETRY_LATER, for all of them. It is not async.
Called by many threads at once; orderly, never twice at once for one queue, and with its messages in
their order."""

_FAILED = RetryLater()


@dataclass(frozen=True)
class Outcome:
    """The result of one call: `failed` says which messages come again, None that all succeeded."""

    result: Result
    error: BaseException | None
    failed: RetryLater | None

    @property
    def reason(self) -> str:
        """Why it failed, on one line."""
        return reason_of(self.error if self.error is not None else self.failed)

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


def reason_of(failure: BaseException | None) -> str:
    """Return why a listener failed: an exception's name and text on one line."""
    if isinstance(failure, RetryLater):
        if failure.reason is None and failure.__cause__ is not None:
            return reason_of(failure.__cause__)
        text = failure.reason or "the listener asked for a retry"
    else:
        try:
            text = f"{type(failure).__name__}: {failure}"
        except Exception:  # its own __str__ failed
            text = type(failure).__name__
    words = "".join(char if char.isprintable() else " " for char in text).split()
    return " ".join(words)[:REASON_CHARS_MAX]


def failure_of(result: object, views: Sequence[MessageView]) -> RetryLater | None:
    """Return what a listener's result says of its messages, None for success.

    Raises ResultUnknown for a result that says nothing: it must not count as success.
    """
    if result is None or result is ConsumeResult.SUCCESS:
        return None
    if result is ConsumeResult.RETRY_LATER:
        return _FAILED
    if not isinstance(result, RetryLater):
        raise unknown_result(result, "the listener", RESULTS)
    given = {id(view) for view in views}
    if not all(id(view) in given for view in result.messages or ()):
        raise ResultUnknown("RetryLater names messages that this call did not get")
    return result


def call_listener(listener: Listener, views: Sequence[MessageView]) -> Outcome:
    """Call it; raise nothing, whatever the application does."""
    try:
        try:
            result: Result = listener(views)
        except RetryLater as raised:
            result = raised
        failed = failure_of(result, views)
    except BaseException as error:  # whatever it is, sys.exit too: the messages come again
        return Outcome(None, error, _FAILED)
    return _FINE if failed is None else Outcome(result, None, failed)
