"""One TCP connection of a client on an event loop: sends requests and delivers their answers.

A request is written at once while few are open. Otherwise all requests of one round of the loop
are written together.
"""

import asyncio
from collections.abc import Callable, Iterator
from ssl import SSLError
from typing import cast

from protocol.frame import RemotingCommand
from remoting.tls import reason_of_tls
from remoting.tls_options import WANTS_TLS
from troupemq.client.connection.connection import (
    DIRECT_SENDS_MAX,
    UNSENT_BYTES_MAX,
    ConnectionBase,
    expect_signs_of_life,
)
from troupemq.client.connection.pending import Waiting, broken_by
from troupemq.client.errors import ClientBusy, ClientError, ConnectionFailed


class AioConnection(ConnectionBase, asyncio.Protocol):
    """A connection to `address`; it accepts requests before it is open."""

    def __init__(
        self,
        address: str,
        on_command: Callable[["AioConnection", RemotingCommand], None],
        on_end: Callable[["AioConnection", ClientError], None],
        loop: asyncio.AbstractEventLoop,
        *,
        has_tls: bool,
    ) -> None:
        """`on_command` takes the peer's requests; `on_end` is called once when it is broken."""
        super().__init__(address, on_command)
        self._on_end, self._loop = on_end, loop
        self._has_tls = has_tls
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._unsent: list[bytes] = []
        self._will_write = self._is_paused = False
        self._transport: asyncio.Transport | None = None

    # --- requests

    def submit(
        self, frame: bytes, opaque: int, waiting: Waiting | None, timeout_ms: float = 0.0
    ) -> None:
        if self.broken_by is not None:
            raise ConnectionFailed(f"{self.address}: {self.broken_by}")
        if self._unsent_bytes + len(frame) > UNSENT_BYTES_MAX:
            raise ClientBusy(
                f"{self.address}: {self._unsent_bytes} bytes are unsent already:"
                " wait for some answers first"
            )
        if waiting is not None:
            step = self._pending.add(opaque, waiting, timeout_ms)
            if step is not None:
                due_s = self._pending.due_ms(step) / 1000
                self._timers[step] = self._loop.call_later(due_s, self._expire, step)
        if self._may_write() and not self._unsent and len(self._pending) <= DIRECT_SENDS_MAX:
            assert self._transport is not None
            self._transport.write(frame)
            return
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if not self._will_write:
            self._will_write = True
            self._loop.call_soon(self._write)

    def _may_write(self) -> bool:
        return self._transport is not None and not self._is_paused

    def _write(self) -> None:
        self._will_write = False
        if self._may_write() and self._unsent:
            assert self._transport is not None
            unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return 0 if self.broken_by is not None else self._unsent_bytes + buffered

    def _expire(self, step: int) -> None:
        self._timers.pop(step, None)
        self._pending.expire(self._pending.due(step), is_open=self.is_open)

    # --- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.broken_by is not None:  # the client was stopped meanwhile
            transport.close()
            return
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        sock = transport.get_extra_info("socket")
        if sock is not None:  # a simulated connection has none
            expect_signs_of_life(sock)
        self.is_open = True
        self._write()

    def data_received(self, data: bytes) -> None:
        if self._goes_on(self._frames.receive(data)) and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Deliver more of what was received, after a turn of everything else on the loop."""
        if self.broken_by is not None:
            return
        if self._goes_on(self._left or self._frames.more()):
            self._loop.call_soon(self._go_on)
        elif self._transport is not None and self.broken_by is None:
            self._transport.resume_reading()

    def _goes_on(self, commands: Iterator[RemotingCommand]) -> bool:
        try:
            return self._deliver(commands)
        except ConnectionFailed as error:
            self.end(error)
            return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        hint = "" if self._has_heard or self._has_tls else f" before it answered{WANTS_TLS}"
        if exc is None:
            self.end(ConnectionFailed(f"{self.address} closed the connection{hint}"))
        else:
            self.end(failed(self.address, exc, "connection lost, ", hint))

    def end(self, reason: ClientError) -> None:
        """Close the connection and fail all open requests; do nothing if it is closed."""
        if self.broken_by is not None:
            return
        self.broken_by = broken_by(reason, self.address)
        self._unsent.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._transport is not None:
            self._transport.abort()
        self._on_end(self, reason)
        self._pending.fail(reason)


def failed(address: str, error: Exception, what: str = "", hint: str = "") -> ConnectionFailed:
    """Return the error of a connection that did not open, or was lost."""
    if isinstance(error, OSError):
        text = reason_of_tls(error)
        text = text if isinstance(error, SSLError) else text.lower()
    else:
        text = str(error)
    return ConnectionFailed(f"{address}: {what}{text}{hint}")
