"""Logic that asks servers, as generators: one text for threads and for event loops.

A flow yields a request and receives its answer, or has a ClientError thrown into it. `Client.run`
carries requests out and blocks; `AioClient.run` awaits them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from protocol.frame import RemotingCommand
from troupemq.client.errors import ClientError, understood


class Call(NamedTuple):
    """A request to a server; the answer must be a success."""

    address: str
    command: RemotingCommand
    timeout_ms: float


class Calls(NamedTuple):
    """Send requests at once; receive a list with the answer or the ClientError of each."""

    calls: Sequence[Call]


class LookUpRoute(NamedTuple):
    """Receive the Route of a topic: the cached one, or that of a name server with `again`.

    With `publish`, it is the route for sends; for a missing topic, that of the default topic.
    """

    topic: str
    again: bool = False
    publish: bool = False


class Blocking(NamedTuple):
    """Call a function that blocks, such as one that writes a file; receive its result."""

    work: Callable[[], object]


class WaitFor(NamedTuple):
    """Pass a function to `register`, and wait until it is called; receive False on timeout."""

    register: Callable[[Callable[[], object]], object]
    timeout_s: float


class InTurn(NamedTuple):
    """Run a flow while no other flow of the client runs in turn; receive its result."""

    flow: "Flow[Any]"


Wanted: TypeAlias = Call | Calls | LookUpRoute | Blocking | WaitFor | InTurn
Asked = TypeVar("Asked")
Value = TypeVar("Value")
RouteFlow: TypeAlias = Generator[Call | Blocking, Any, Value]
Flow: TypeAlias = Generator[Wanted, Any, Value]

LONG_BODY_BYTES = 16 << 10
"""Minimum size of a body that may block an event loop; a shorter one takes 11 ms at most."""


def decoded(
    decode: Callable[[bytes | memoryview | None], Value], body: bytes | memoryview | None
) -> Generator[Blocking, Any, Value]:
    """Return the value of an answer's body, long ones decoded on a thread. Raises BadAnswer."""
    if len(body or b"") < LONG_BODY_BYTES:
        return understood(decode, body)
    value: Value = yield Blocking(lambda: understood(decode, body))
    return value


def pause() -> None:
    """Do nothing: an event loop that waits for this work runs other tasks."""


def drive(flow: Generator[Asked, Any, Value], ask: Callable[[Asked], object]) -> Value:
    """Return the result of a flow whose requests `ask` carries out. Raises what the flow raises.

    Flows of receiving/ and of listeners yield other requests as well.
    """
    try:
        call = next(flow)
        while True:
            try:
                answer = ask(call)
            except ClientError as error:
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as done:
        value: Value = done.value
        return value
    finally:
        flow.close()


def finished(work: Coroutine[Any, Any, Value]) -> Value:
    """Return the result of a coroutine that blocks and never suspends, such as one of a thread."""
    try:
        work.send(None)
    except StopIteration as done:
        value: Value = done.value
        return value
    raise RuntimeError(f"{work} waits for an event loop")


class FlowTasks(ABC):
    """Runner of flows, one after the other: at once, after a delay, or periodically."""

    @abstractmethod
    def post(self, work: Callable[[], Flow[None]]) -> None:
        """Run the flow that `work` returns, after those posted before it."""

    @abstractmethod
    def later(self, delay_ms: float, work: Callable[[], Flow[None]]) -> None:
        """Run the flow that `work` returns after `delay_ms`."""

    def every(
        self, interval_ms: float, work: Callable[[], Flow[None]], *, first_ms: float = 0
    ) -> None:
        """Run a flow after `first_ms`, then `interval_ms` after each of its ends."""

        def again() -> Flow[None]:
            try:
                yield from work()
            finally:
                self.later(interval_ms, again)

        self.later(first_ms, again)
