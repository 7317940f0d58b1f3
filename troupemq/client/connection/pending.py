"""Requests of one connection that have no answer yet, and the text of their failures."""

from collections.abc import Callable
from concurrent.futures import Future
from math import ceil, inf
from time import monotonic
from typing import Protocol

from protocol.frame import RemotingCommand
from troupemq.client.errors import ClientError, RequestTimeout

EXPIRY_STEP_MS = 10
"""Requests that time out within one step share a timer."""


class Waiting(Protocol):
    """Receiver of an answer, such as a Future; exactly one of its methods is called, once."""

    def set_result(self, answer: RemotingCommand, /) -> object: ...

    def set_exception(self, error: ClientError, /) -> object: ...


Answer = Future[RemotingCommand]


class PendingAnswers:
    """Receivers of answers, by the opaque of their request.

    `add` and `due` are for one thread at a time; answers may come on another one.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: dict[int, Waiting] = {}
        self._expiring: dict[int, list[int]] = {}  # step → opaque

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opaque: int, waiting: Waiting, timeout_ms: float) -> int | None:
        """Note a request; return its expiry step if no other request has it.

        One with the timeout `inf` ends with its connection, and leaves nothing here before.
        """
        self._waiting[opaque] = waiting
        if timeout_ms == inf:
            return None
        step = ceil((monotonic() * 1000 + timeout_ms) / EXPIRY_STEP_MS)
        expiring = self._expiring.get(step)
        if expiring is not None:
            expiring.append(opaque)
            return None
        self._expiring[step] = [opaque]
        return step

    @staticmethod
    def due_ms(step: int) -> float:
        """Return the time until a step expires."""
        return step * EXPIRY_STEP_MS - monotonic() * 1000

    def due(self, step: int) -> list[int]:
        """Return the requests of a step, to be expired."""
        return self._expiring.pop(step, [])

    def expire(self, opaques: list[int], *, is_open: bool) -> None:
        """Fail those of the requests that have no answer with RequestTimeout."""
        state = "did not answer in time" if is_open else "could not be reached in time"
        for opaque in opaques:
            waiting = self._waiting.pop(opaque, None)
            if waiting is not None:
                waiting.set_exception(RequestTimeout(f"{self._address} {state}"))

    def answered(self, answer: RemotingCommand) -> None:
        """Hand an answer over; drop one that nothing waits for any more."""
        waiting = self._waiting.pop(answer.opaque, None)
        if waiting is not None:
            waiting.set_result(answer)

    def fail(self, reason: ClientError) -> None:
        """Fail all requests."""
        while self._waiting:
            _, waiting = self._waiting.popitem()
            waiting.set_exception(type(reason)(*reason.args))  # a copy each: notes are added


def broken_by(reason: ClientError, address: str) -> str:
    """Return why a connection is broken, without its address."""
    return str(reason).removeprefix(f"{address}: ")


Later = Callable[[float, Callable[[], None]], None]
"""Function that runs a task after a number of ms."""
