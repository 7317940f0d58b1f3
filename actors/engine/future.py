"""Answers to wait for: in tests, at start-up and at shutdown, never inside an actor.

Waiting on the loop would stop everything that could bring the answer, so it raises there.
"""

from collections.abc import Callable
from threading import Event, local
from typing import Any, Generic, TypeVar

from pykka import ThreadingFuture

from actors.engine.messages import Message

T = TypeVar("T")


class _Here(local):
    on_loop: bool = False


_here = _Here()


def enter_loop() -> None:
    _here.on_loop = True


def leave_loop() -> None:
    _here.on_loop = False


def assert_may_wait() -> None:
    """Raise RuntimeError on the loop, where waiting would stop every other actor."""
    if _here.on_loop:
        raise RuntimeError("an actor on the loop must not wait for an answer")


class GuardedFuture(ThreadingFuture[T]):
    """Pykka's future, which raises on the loop instead of blocking it for ever."""

    def get(self, *, timeout: float | None = None) -> Any:
        if self._result is None:
            assert_may_wait()
        return super().get(timeout=timeout)


class MessageRefused(Exception):
    """The message was not handled: its actor had stopped, or failed on it."""


class Future(Generic[T]):
    def __init__(self, wait: Callable[[Event, float], None]) -> None:
        self._wait = wait
        self._arrived = Event()
        self._value: T | None = None
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._arrived.is_set()

    def result(self, timeout_s: float) -> T:
        """Return the answer. Raises MessageRefused, TimeoutError, or RuntimeError on the loop."""
        if not self._arrived.is_set():
            assert_may_wait()
            self._wait(self._arrived, timeout_s)
            if not self._arrived.is_set():
                raise TimeoutError(f"no answer within {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def resolve(self, value: T) -> None:
        """Set the answer. The first one counts; later answers and refusals are ignored."""
        if not self._arrived.is_set():
            self._value = value
            self._arrived.set()

    def fail(self, error: Exception) -> None:
        if not self._arrived.is_set():
            self._error = error
            self._arrived.set()


class Reply(Generic[T]):
    """The `reply` in the message of an `ask`: call it with the answer. Any thread."""

    __slots__ = ("future",)

    def __init__(self, future: Future[T]) -> None:
        self.future = future

    def __call__(self, value: T) -> None:
        self.future.resolve(value)

    def refuse(self, remark: str) -> None:
        self.future.fail(MessageRefused(remark))


class Question(Message):
    """Message with the `reply` of an `ask`.

    If no actor handles it, the reply is refused.
    """

    __slots__ = ()

    reply: Callable[[Any], None]

    def on_undelivered(self, remark: str) -> None:
        if isinstance(self.reply, Reply):
            self.reply.refuse(remark)
