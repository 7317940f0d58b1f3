"""Calls to brokers and name servers: one connection per address, one I/O thread for all.

A call sends on its own thread. The I/O thread reads the answers, runs the futures' callbacks, and
fails requests that time out.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from itertools import count
from selectors import EVENT_READ, DefaultSelector
from socket import socket, socketpair
from threading import Lock, Thread, current_thread
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakSet

from protocol.codes import ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand, encode
from protocol.signature import Credentials
from troupemq.client.connection.connection import ConnectionBase, ServerConnection
from troupemq.client.connection.pending import Answer, Waiting
from troupemq.client.errors import (
    FORKED,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
)
from troupemq.client.log import client_logger

if TYPE_CHECKING:
    from ssl import SSLContext

log = client_logger(__name__)

CONNECT_TIMEOUT_MS = 3000
OPAQUE_MASK = 0x7FFFFFFF
JOIN_TIMEOUT_S = 5.0

OnRequest = Callable[[str, RemotingCommand], "RemotingCommand | Answer | None"]
"""Handler of a server's address and request, on the I/O thread; it may return a future."""

Greeting = Callable[[str], RemotingCommand | None]
"""Function that returns the first request on a new connection to an address, or None."""


Connection = TypeVar("Connection", bound=ConnectionBase)


def check_success(answer: RemotingCommand, address: str) -> RemotingCommand:
    """Return the answer. Raises BrokerError unless its code is SUCCESS."""
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark, address)
    return answer


class RequestSender(Generic[Connection]):
    """Requests of a client, numbered and signed with its account, and answers to its servers."""

    def __init__(self, on_request: OnRequest, credentials: Credentials | None) -> None:
        self._on_request, self._credentials = on_request, credentials
        self._connections: dict[str, Connection] = {}
        self._opaque = count(1)
        self.check_address: Callable[[str], None] = lambda address: None
        """Check before each request is signed; raises ClientError to keep it from that server."""

        self.on_lost: Callable[[str], None] = lambda address: None
        """Called when an open connection to an address breaks, on the thread of its answers."""

    def framed(self, command: RemotingCommand, address: str = "") -> bytes:
        """Return the frame of a request to `address`, numbered and signed. Raises ClientError."""
        if address:
            self.check_address(address)
        command.opaque = next(self._opaque) & OPAQUE_MASK
        if self._credentials is not None:
            self._credentials.sign(command, time_ns() // 1_000_000)
        return encode(command)

    def _connection(self, address: str) -> Connection:
        """Return the connection, or a new one. Raises ClientError."""
        raise NotImplementedError

    def call_for(
        self, waiting: Waiting, address: str, command: RemotingCommand, timeout_ms: float
    ) -> None:
        """Send a request; call `waiting` with its answer, or at once for an immediate error."""
        try:
            frame = self.framed(command, address)
            self._connection(address).submit(frame, command.opaque, waiting, timeout_ms)
        except ClientError as error:
            waiting.set_exception(error)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request without an answer. Raises ClientError if nothing was sent."""
        command.flag |= ONEWAY_FLAG
        frame = self.framed(command, address)
        self._connection(address).submit(frame, command.opaque, None)

    def is_connected(self, address: str) -> bool:
        """Return whether there is an open connection that is not known to be broken."""
        connection = self._connections.get(address)
        return connection is not None and connection.is_open and connection.broken_by is None

    def _lost(self, connection: Connection, reason: ClientError) -> None:
        if connection.is_open and not isinstance(reason, ClientClosed):
            self.on_lost(connection.address)

    def _command(self, connection: Connection, command: RemotingCommand) -> None:
        response = self._on_request(connection.address, command)
        if response is None or command.is_oneway:
            return
        if isinstance(response, RemotingCommand):
            connection.answer(response)
        else:
            response.add_done_callback(lambda done: connection.answer(done.result()))


class Remoting(RequestSender[ServerConnection]):
    """All connections of a client; its I/O thread starts with the first call."""

    def __init__(
        self,
        on_request: OnRequest,
        greeting: Greeting = lambda address: None,
        credentials: Credentials | None = None,
        tls: "SSLContext | None" = None,
    ) -> None:
        """Open nothing yet. With `credentials` every request is signed."""
        super().__init__(on_request, credentials)
        self._tls = tls
        self._greeting = greeting
        self._lock = Lock()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._changed: deque[ServerConnection] = deque()
        self._sleeps_until_s = 0.0
        self._selector: DefaultSelector
        self._wake_receiver: socket
        self._wake_sender: socket
        self._opened = False
        self._closed = False
        self._closed_by = "the client is stopped"
        self._released = False
        self._thread = Thread(target=self._run, name="troupemq-io", daemon=True)
        _all.add(self)

    # --- any thread

    def call(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Return the answer with any code. Blocks; raises ClientError, always on the I/O thread."""
        self.check_may_wait()
        return self.call_async(address, command, timeout_ms).result()

    def ask(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Return a successful answer. Blocks; raises BrokerError for any other code."""
        return check_success(self.call(address, command, timeout_ms), address)

    def call_async(self, address: str, command: RemotingCommand, timeout_ms: float) -> Answer:
        """Return a future of the answer; its callbacks run on the I/O thread. Raises nothing."""
        answer: Answer = Future()
        answer.set_running_or_notify_cancel()
        self.call_for(answer, address, command, timeout_ms)
        return answer

    def runs_on_this_thread(self) -> bool:
        """Return whether the caller is on the I/O thread, which must not wait for an answer."""
        return current_thread() is self._thread

    def check_may_wait(self) -> None:
        """Raise ClientError on the I/O thread."""
        if self.runs_on_this_thread():
            raise ClientError("a callback must not wait for an answer: the answers come after it")

    def later(self, delay_ms: float, task: Callable[[], None]) -> None:
        """Run `task` on the I/O thread after `delay_ms`; it must not block.

        At the close all remaining tasks run, so that waiting callers learn of the end.
        """
        due_s = monotonic() + delay_ms / 1000
        with self._lock:
            if not self._released:
                heappush(self._timers, (due_s, next(self._order), task))
        if self._released:
            task()
        elif due_s < self._sleeps_until_s:
            self._wake()

    def close(self) -> None:
        """Close all connections; open requests fail with ClientClosed."""
        with self._lock:
            was_closed, self._closed = self._closed, True
        if was_closed:
            return
        if self._thread.ident is None:
            self._release()
            return
        self._wake()
        if current_thread() is not self._thread:
            self._thread.join(JOIN_TIMEOUT_S)

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's sockets; calls raise ClientClosed.

        A copy would keep the connection open after the parent's end. The thread is the parent's.
        """
        self._lock = Lock()  # another thread of the parent may have held it
        self._closed = self._released = True
        self._closed_by = f"the client {FORKED}"
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abandon()
        if self._opened:
            self._opened = False
            self._selector.close()
            self._wake_receiver.close()
            self._wake_sender.close()

    def _connection(self, address: str) -> ServerConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.broken_by is None:
            return connection
        greeting = self._greeting(address)
        with self._lock:
            if self._closed:
                raise ClientClosed(self._closed_by)
            connection = self._connections.get(address)
            if connection is not None and connection.broken_by is None:
                return connection
            if not self._opened:
                self._open()
            connection = self._new_connection(address)
            if greeting is not None:
                self._greet(connection, greeting)
            self._connections[address] = connection
            if self._thread.ident is None:
                self._thread.start()
        self._look_again(connection)
        self.later(CONNECT_TIMEOUT_MS, lambda: self._check_open(connection))
        return connection

    def _new_connection(self, address: str) -> ServerConnection:
        if self._tls is None:
            return ServerConnection(address, self._command, self._look_again, self.later)
        from troupemq.client.connection.tls_connection import TlsConnection  # loads OpenSSL

        return TlsConnection(address, self._command, self._look_again, self.later, self._tls)

    def _open(self) -> None:
        self._selector = DefaultSelector()
        self._wake_receiver, self._wake_sender = socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, EVENT_READ)
        self._opened = True

    def _greet(self, connection: ServerConnection, greeting: RemotingCommand) -> None:
        """Send the greeting one way: if it fails, the next heartbeat makes up for it."""
        connection.submit(self.framed(greeting), greeting.opaque, None)

    def _look_again(self, connection: ServerConnection) -> None:
        self._changed.append(connection)
        self._wake()

    def _wake(self) -> None:
        if not self._opened:
            return
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            return  # Full: the thread is awake already. Closed: the thread has ended.

    # --- the I/O thread

    def _run(self) -> None:
        try:
            while not self._closed:
                self._run_due()
                for key, events in self._selector.select(self._sleep_s()):
                    if key.data is None:
                        self._drain_wakes()
                    else:
                        self._ready(key.data, partial(key.data.ready, events))
                self._sleeps_until_s = 0.0
                while self._changed:
                    self._watch(self._changed.popleft())
        finally:  # also after an error of this thread: fail all calls that wait for an answer
            self._closed = True
            self._release()

    def _sleep_s(self) -> float | None:
        """Return the time to the next timer. From here on a new timer knows it must wake."""
        self._sleeps_until_s = float("inf")
        with self._lock:
            if self._closed:
                return 0.0
            if not self._timers:
                return None
            self._sleeps_until_s = self._timers[0][0]
        return max(0.0, self._sleeps_until_s - monotonic())

    def _drain_wakes(self) -> None:
        try:
            while self._wake_receiver.recv(4096):
                pass
        except BlockingIOError:
            return

    def _run_due(self) -> None:
        now_s = monotonic()
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > now_s:
                    return
                _, _, task = heappop(self._timers)
            task()

    def _ready(self, connection: ServerConnection, step: Callable[[], bool]) -> None:
        """Let a connection receive and send; what it has received too much waits for its turn."""
        goes_on = False
        try:
            goes_on = step()
        except ConnectionFailed as error:
            if not connection.has_another_address():
                self._end(connection, error)
                return
            self._leave_address(connection)
        self._watch(connection)
        if goes_on:
            self.later(0, lambda: self._ready(connection, connection.go_on))

    def _leave_address(self, connection: ServerConnection) -> None:
        if connection.watched:
            self._selector.unregister(connection.socket)
            connection.watched = 0
        connection.leave_address()

    def _watch(self, connection: ServerConnection) -> None:
        try:
            connection.connect()
        except ConnectionFailed as error:
            self._end(connection, error)
            return
        wanted = connection.wanted()
        if wanted == connection.watched:
            return
        if connection.watched:
            self._selector.modify(connection.socket, wanted, connection)
        else:
            self._selector.register(connection.socket, wanted, connection)
        connection.watched = wanted

    def _check_open(self, connection: ServerConnection) -> None:
        if connection.is_open or connection.broken_by is not None:
            return
        if connection.has_another_address():  # this one may be that of a dead machine
            self._leave_address(connection)
            self._watch(connection)
            self.later(CONNECT_TIMEOUT_MS, lambda: self._check_open(connection))
            return
        reason = f"{connection.address}: no connection in {CONNECT_TIMEOUT_MS} ms"
        self._end(connection, ConnectionFailed(reason))

    def _end(self, connection: ServerConnection, reason: ClientError) -> None:
        if connection.broken_by is not None:
            return
        if connection.watched:
            self._selector.unregister(connection.socket)
            connection.watched = 0
        with self._lock:
            if self._connections.get(connection.address) is connection:
                del self._connections[connection.address]
        log.debug("connection closed", address=connection.address, reason=str(reason))
        connection.fail(reason)
        self._lost(connection, reason)

    def _release(self) -> None:
        for connection in list(self._connections.values()):
            self._end(connection, ClientClosed("the client is stopped"))
        with self._lock:
            self._released = True
            timers, self._timers = self._timers, []
        for _, _, task in sorted(timers, key=lambda timer: timer[:2]):
            task()
        if not self._opened:
            return
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()


_all: "WeakSet[Remoting]" = WeakSet()


def _abandon_all() -> None:
    for remoting in list(_all):
        remoting.abandon()


os.register_at_fork(after_in_child=_abandon_all)
