"""Listeners: their signature, their results, and their calls."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from troupemq.client.arguments import MS_MAX, check_integer, check_range, delay_milliseconds
from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.errors import ArgumentIllegal, ResultUnknown
from troupemq.client.message import MessageView

RISING_DELAY = 0
"""Delay level that lets the broker choose: by default 10 s for the first retry, then longer."""

DEAD_LETTER = -1
"""Delay level that makes the message a dead letter at once."""

DELAY_LEVEL_MAX = (1 << 31) - 1
REASON_CHARS_MAX = 500
RESULTS = "a listener returns None, a ConsumeResult or a RetryLater(...)"


class ConsumeResult(Enum):
    """Result of a listener call, for all its messages."""

    SUCCESS = "SUCCESS"
    RETRY_LATER = "RETRY_LATER"


class RetryLater(Exception):
    """A retry with details, returned or raised by a listener: for some messages, or with a delay.

        def listen(messages):
            failed = [each for each in messages if not book(each)]
            return RetryLater(failed, delay_level=5, reason="no stock") if failed else None

    Without details, a listener may return ConsumeResult.RETRY_LATER.
    """

    def __init__(
        self,
        messages: Sequence[MessageView] | None = None,
        delay_level: int = RISING_DELAY,
        suspend_ms: float | None = None,
        reason: str | None = None,
        *,
        seconds: float | timedelta | None = None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments.

        * `messages`: the failed ones, None for all; the others are consumed. An orderly queue
          continues with the first failed message and repeats those behind it.
        * `delay_level`: level of the broker for the retry, or DEAD_LETTER; ignored when orderly.
        * `suspend_ms`: pause of an orderly queue. [default: `suspend_queue_ms` of the settings]
        * `reason`: text that is stored with the retry and the dead letter.
        * `seconds`: delay instead of a level. Brokers of RocketMQ take the next longer level.
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
        if seconds is not None:
            seconds = delay_milliseconds(seconds, "RetryLater's seconds") / 1000
            if delay_level != RISING_DELAY:
                raise ArgumentIllegal("RetryLater has a delay_level or seconds, and not both")
        super().__init__(reason or "RetryLater")
        self.messages, self.delay_level = messages, delay_level
        self.suspend_ms, self.reason = suspend_ms, reason
        self.seconds: float | None = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copies and pickles from the arguments of `__init__`."""
        given = self.messages, self.delay_level, self.suspend_ms, self.reason
        return partial(type(self), seconds=self.seconds), given

    def of(self, messages: Sequence[MessageView]) -> "RetryLater":
        """Return the same retry of these messages."""
        reason = reason_of(self)
        return RetryLater(messages, self.delay_level, self.suspend_ms, reason, seconds=self.seconds)


Result: TypeAlias = ConsumeResult | RetryLater | None

Listener = Callable[[Sequence[MessageView]], Result]
"""Function of up to `consume_batch_size` messages of one queue, one by default; not async.

None means SUCCESS. An exception or an invalid result means RETRY_LATER for all messages. Many
threads call it concurrently. When orderly, calls for one queue are sequential and in order.
"""


Called = TypeVar("Called")


class ListenersByTopic(Generic[Called]):
    """The listeners of a consumer: one for all topics, and those of single topics."""

    def __init__(self, otherwise: Called | None, check: Callable[[object, str], None]) -> None:
        """Take the listener of topics without one of their own, if there is one.

        `check` raises ArgumentIllegal for one that cannot be called.
        """
        self._check = check
        if otherwise is not None:
            check(otherwise, "the listener")
        self._otherwise = otherwise
        self._of_topic: dict[str, Called] = {}

    def set(self, topic: str, listener: Called | None) -> None:
        """Set the listener of a topic.

        Raises ArgumentIllegal if the topic has no listener at all.
        """
        if listener is not None:
            self._check(listener, "the listener")
            self._of_topic[topic] = listener
        elif self._otherwise is None and topic not in self._of_topic:
            raise ArgumentIllegal(
                f"no listener for {topic}: pass one to PushConsumer or to subscribe"
            )

    def of(self, topic: str) -> Called:
        """Return the listener of a topic. Raises ResultUnknown without one."""
        listener = self._of_topic.get(topic, self._otherwise)
        if listener is None:
            raise ResultUnknown(
                f"no listener for {topic}, to which this consumer did not subscribe"
            )
        return listener


def by_topic(views: Sequence[MessageView]) -> list[tuple[str, Sequence[MessageView]]]:
    """Return messages by topic: retries of a group may be of several topics."""
    topics = dict.fromkeys(view.topic for view in views)
    if len(topics) == 1:
        return [(views[0].topic, views)]
    return [(topic, [view for view in views if view.topic == topic]) for topic in topics]


class TopicListeners(ListenersByTopic[Listener]):
    """Listener that hands the messages of each topic to the listener of that topic."""

    def __init__(self, otherwise: Listener | None) -> None:
        """Take the listener of topics without one of their own. Raises ArgumentIllegal."""
        super().__init__(otherwise, lambda value, what: check_callback(value, what, "messages"))

    def __call__(self, views: Sequence[MessageView]) -> Result:
        """Call the listeners of these messages."""
        parts = by_topic(views)
        if len(parts) == 1:
            return self.of(views[0].topic)(views)
        return retry_of([(call_listener(self.of(topic), own), own) for topic, own in parts])


FAILED = RetryLater()


class Outcome(NamedTuple):
    """Outcome of one listener call; `failed` names the messages to retry, None for a success."""

    result: Result
    error: BaseException | None
    failed: RetryLater | None

    @property
    def reason(self) -> str:
        """Reason of the failure, on one line."""
        return reason_of(self.error if self.error is not None else self.failed)

    def split(
        self, views: Sequence[MessageView]
    ) -> tuple[Sequence[MessageView], Sequence[MessageView]]:
        """Return the consumed messages and the failed ones."""
        if self.failed is None:
            return views, ()
        if self.failed.messages is None:
            return (), views
        failed = {id(view) for view in self.failed.messages}
        return (
            [view for view in views if id(view) not in failed],
            [view for view in views if id(view) in failed],
        )


FINE = Outcome(None, None, None)


def retry_of(
    outcomes: Sequence[tuple[Outcome, Sequence[MessageView]]],
) -> RetryLater | None:
    """Return one retry for the failed messages of several calls, None without any."""
    failed: list[MessageView] = []
    last: Outcome | None = None
    for outcome, views in outcomes:
        if outcome.failed is not None:
            failed += outcome.split(views)[1]
            last = outcome
    if last is None or last.failed is None:
        return None
    retry = last.failed
    return RetryLater(
        failed, retry.delay_level, retry.suspend_ms, last.reason, seconds=retry.seconds
    )


def reason_of(failure: BaseException | None) -> str:
    """Return the reason of a failure on one line: an exception's name and text."""
    if isinstance(failure, RetryLater):
        if failure.reason is None and failure.__cause__ is not None:
            return reason_of(failure.__cause__)
        text = failure.reason or "the listener asked for a retry"
    else:
        try:
            text = f"{type(failure).__name__}: {failure}"
        except Exception:  # the exception's __str__ failed
            text = type(failure).__name__
    words = "".join(char if char.isprintable() else " " for char in text).split()
    return " ".join(words)[:REASON_CHARS_MAX]


def failure_of(result: object, views: Sequence[MessageView]) -> RetryLater | None:
    """Return the retry that a listener's result asks for, None for a success.

    Raises ResultUnknown for an invalid result, which must not count as a success.
    """
    if result is None or result is ConsumeResult.SUCCESS:
        return None
    if result is ConsumeResult.RETRY_LATER:
        return FAILED
    if not isinstance(result, RetryLater):
        raise unknown_result(result, "the listener", RESULTS)
    given = {id(view) for view in views}
    if not all(id(view) in given for view in result.messages or ()):
        raise ResultUnknown("RetryLater names messages that this call did not get")
    return result


def call_listener(listener: Listener, views: Sequence[MessageView]) -> Outcome:
    """Call the listener and return the outcome; raise nothing."""
    try:
        try:
            result: Result = listener(views)
        except RetryLater as raised:
            result = raised
        failed = failure_of(result, views)
    except BaseException as error:  # retry after any exception, also sys.exit
        return Outcome(None, error, FAILED)
    return FINE if failed is None else Outcome(result, None, failed)
