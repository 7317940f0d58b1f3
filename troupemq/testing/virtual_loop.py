"""An asyncio event loop in virtual time, whose connections lead to simulated servers.

Where an ordinary loop sleeps, this one lets the servers work; when they have nothing to do, the
clock jumps to the next timer. Nothing is read from the machine: no socket, no thread, no clock.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from sys import modules
from threading import get_ident
from time import monotonic, time, time_ns
from types import FunctionType, ModuleType
from typing import Any, Protocol, TypeVar

from protocol.frame import RemotingCommand
from protocol.stream import CommandStream

Value = TypeVar("Value")

RESOLUTION_S = 1e-6
"""Timers within a microsecond fire together: sums of floats are not exact."""
STEPS_MAX = 8
"""Maximum steps of the servers between two rounds of the clients."""


class VirtualServers(Protocol):
    """The simulated servers that a loop runs, and their clock."""

    def now_s(self) -> float:
        """Return the virtual time since the start."""

    def now_ns(self) -> int:
        """Return the virtual wall clock."""

    def step(self) -> bool:
        """Do one piece of work; return False without any."""

    def run_until(self, predicate: Callable[[], bool], limit_ms: float) -> bool:
        """Run and let time pass, at most `limit_ms`; return whether the predicate holds."""

    def connected(self, address: str, transport: "VirtualTransport") -> "ServerSide":
        """Return the server's end of a new connection. Raises ConnectionRefusedError."""


class ServerSide(Protocol):
    """Server's end of a connection."""

    def deliver(self, command: RemotingCommand) -> None:
        """Take one request or answer of the client."""

    def close(self) -> None:
        """Learn that the client has gone."""


class VirtualTransport(asyncio.Transport):
    """Client's end of a connection; bytes arrive in order, in a later round of the loop."""

    def __init__(self, loop: "VirtualLoop", protocol: asyncio.Protocol, address: str) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol
        self._frames = CommandStream()
        self._is_closing = self._is_paused = False
        self._server = loop.servers.connected(address, self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            for command in self._frames.receive(bytes(data)):
                self._server.deliver(command)

    def came(self, data: bytes) -> None:
        """Take bytes of the server."""
        self._loop.call_soon(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if self._is_paused:
            self.came(data)
        elif not self._is_closing:
            self._protocol.data_received(data)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def lose(self, error: Exception | None) -> None:
        """Break the connection, as seen by the client."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    def close(self) -> None:
        if not self._is_closing:
            self._server.close()
            self.lose(None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop of simulated clients. The order of their work and the servers' is drawn."""

    def __init__(self, servers: VirtualServers, random: Random) -> None:
        super().__init__()
        self.servers = servers
        self._draw = random
        self._selector = self
        self._clock_resolution = RESOLUTION_S
        self._ready: Any

    def time(self) -> float:
        return self.servers.now_s()

    def select(self, timeout_s: float | None) -> Sequence[object]:
        """Let the servers work until a client has work to do, for at most this virtual time."""
        if timeout_s == 0:  # clients have work: the servers are other processes and go on
            for _ in range(self._draw.randrange(STEPS_MAX)):
                if not self.servers.step():
                    break
        else:
            assert timeout_s is not None, "no timer of any client is left"
            self.servers.run_until(lambda: bool(self._ready), timeout_s * 1000)
        return ()

    def _process_events(self, event_list: Sequence[object]) -> None:
        """Do nothing: work of this loop comes by `call_soon`."""

    def _write_to_self(self) -> None:
        """Do nothing: only one thread calls this loop."""

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        **_: object,
    ) -> tuple[VirtualTransport, asyncio.Protocol]:
        """Connect to a simulated server. Raises ConnectionRefusedError for any other address."""
        protocol = protocol_factory()
        transport = VirtualTransport(self, protocol, f"{host}:{port}")
        self.call_soon(protocol.connection_made, transport)
        await asyncio.sleep(0)
        return transport, protocol

    def run_in_executor(
        self, executor: object, func: Callable[..., Value], *args: object
    ) -> asyncio.Future[Value]:
        """Call the function here and now, for threads would have an order of their own."""
        done: asyncio.Future[Value] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


@contextmanager
def virtual_clock(servers: VirtualServers, package: str) -> Iterator[None]:
    """Give the modules of a package the servers' clock in the place of the machine's.

    Other threads keep the machine's: those of a client of another broker would wait for days.
    Raises RuntimeError inside of another such block.
    """
    if _in_use:
        raise RuntimeError("there can be one simulated broker at a time in a process")
    here = get_ident()
    instead: dict[object, Callable[[], float]] = {
        monotonic: lambda: servers.now_s() if get_ident() == here else monotonic(),
        time: lambda: servers.now_ns() / 1e9 if get_ident() == here else time(),
        time_ns: lambda: servers.now_ns() if get_ident() == here else time_ns(),
    }
    changed: list[Callable[[], None]] = []
    for name, module in [*modules.items()]:
        if name == package or name.startswith(f"{package}."):
            for names, function in _named(module):
                taken = {each: value for each, value in names.items() if _is_clock(value)}
                changed.append(partial(names.update, taken))
                names.update({each: instead[value] for each, value in taken.items()})
                if function is not None and any(map(_is_clock, function.__defaults__ or ())):
                    before = function.__defaults__ or ()
                    changed.append(partial(setattr, function, "__defaults__", before))
                    function.__defaults__ = tuple(
                        instead[each] if _is_clock(each) else each for each in before
                    )
    _in_use.append(servers)
    try:
        yield
    finally:
        _in_use.remove(servers)
        for undo in changed:
            undo()


def _is_clock(value: object) -> bool:
    return value is monotonic or value is time or value is time_ns


def _named(module: ModuleType) -> Iterator[tuple[dict[str, Any], FunctionType | None]]:
    """Yield the names of a module, then the functions of its classes with their default values."""
    yield vars(module), None
    for kind in [*vars(module).values()]:
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            for function in [*vars(kind).values()]:
                if isinstance(function, FunctionType):
                    yield function.__kwdefaults__ or {}, function


_in_use: list[VirtualServers] = []
