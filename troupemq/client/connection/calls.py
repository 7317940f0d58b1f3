"""Logic that asks servers, as generators: one text for threads and for event loops.

A flow yields a `Call` and receives its successful answer, or has a ClientError thrown into it.
`drive` carries the calls out and blocks; aio/calls.py awaits them.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from protocol.command import RemotingCommand
from troupemq.client.errors import ClientError


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a server; the answer must be a success."""

    address: str
    command: RemotingCommand
    timeout_ms: float


Asked = TypeVar("Asked")
Value = TypeVar("Value")
Flow: TypeAlias = Generator[Call, RemotingCommand, Value]


def drive(flow: Generator[Asked, Any, Value], ask: Callable[[Asked], object]) -> Value:
    """Return the result of a flow whose calls `ask` carries out. Raises what the flow raises.

    Flows of receiving/ yield other requests than a Call as well.
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
