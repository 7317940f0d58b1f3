"""Transport: one connection of kombu."""

import os
import socket
from threading import Condition
from time import monotonic
from typing import Any

from kombu.transport import virtual

from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientBusy,
    ClientClosed,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.kombu.bindings import ANNOUNCE_MS, Bindings
from troupemq.kombu.channel import Channel
from troupemq.kombu.fetching import Demand, Settler
from troupemq.kombu.link import Link
from troupemq.kombu.places import PORT, place_of, without_password
from troupemq.kombu.readers import ReadQueue

DRAIN_S_MIN = 0.1
"""Shortest drain outside of a hub: one receive."""
ALWAYS = float("inf")
WAKES_S = 3600.0
"""Longest wait of a drain without a timeout between two looks."""


class Waker:
    """A pair of sockets that makes an event loop look for messages."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        try:
            self._sender.send(b"\0")
        except OSError:
            return  # full: the loop is awake; closed: the connection has ended

    def drain(self) -> None:
        try:
            while self._receiver.recv(4096):
                pass
        except OSError:
            return

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


class Transport(virtual.Transport):
    """One connection: its channels, and what they share.

    Consumers and publishers may use it as kombu allows, one thread at a time. A child of a fork
    may publish; it gets connections of its own.
    """

    Channel = Channel
    default_port = PORT
    can_parse_url = True
    driver_type = driver_name = "troupemq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectionFailed,
        RequestTimeout,
        RouteNotFound,
        ClientBusy,
        ClientClosed,
        BadAnswer,
    )
    channel_errors = (*virtual.Transport.channel_errors, BrokerError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(("direct", "topic", "fanout"))
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.changed = Condition()
        """Condition of ready messages, of room for more, and of the demand."""
        self.demand = Demand()
        self.read_queues: dict[str, ReadQueue] = {}
        self.ttls_ms: dict[str, float | None] = {}
        """TTL of each declared queue that lasts."""
        self.bindings = Bindings(lambda: self.link)
        self._link: Link | None = None
        self._process_id = os.getpid()
        self._settler: Settler | None = None
        self._waker: Waker | None = None

    @property
    def link(self) -> Link:
        """The requests of this process; started."""
        if self._process_id != os.getpid():  # the parent's threads and sockets are not ours
            self._process_id, self._link = os.getpid(), None
            self.bindings.after_fork()
        if self._link is None or not self._link.is_running:
            client = self.client
            place = place_of(
                client.hostname or "localhost",
                client.alt,
                port=client.port,
                user=client.userid,
                password=client.password,
                space=client.virtual_host,
                ssl=client.ssl,
            )
            link = self._link = Link(place)
            link.start()
            link.every(ANNOUNCE_MS, self.bindings.announce_again)
        return self._link

    @property
    def settler(self) -> Settler:
        if self._settler is None:
            self._settler = Settler()
        return self._settler

    def establish_connection(self) -> "Transport":
        """Raise a ClientError unless a name server answers."""
        try:
            self.link.check()
        except BaseException:
            self._stop_link()
            raise
        return super().establish_connection()  # type: ignore[no-any-return]

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        for reader in self.read_queues.values():
            reader.stop()
        if self._settler is not None and self._process_id == os.getpid():
            self._settler.stop()
            self._settler = None
        self._stop_link()
        if self._waker is not None:
            self._waker.close()
            self._waker = None

    def _stop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None and self._process_id == os.getpid():
            link.stop()

    def verify_connection(self, connection: Any) -> bool:
        return self._link is not None and self._link.is_running

    def driver_version(self) -> str:
        from troupemq import __version__

        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else without_password(uri, mask)

    # --- messages

    def wake(self) -> None:
        """Have ready messages delivered; for any thread."""
        if self._waker is not None:
            self._waker.wake()
        with self.changed:
            self.changed.notify_all()

    def room_changed(self) -> None:
        """Let fetchers look whether they may receive more; for any thread."""
        with self.changed:
            self.changed.notify_all()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what is ready, waiting for it. Raises socket.timeout."""
        until_s = ALWAYS if timeout is None else monotonic() + max(timeout, DRAIN_S_MIN)
        with self.changed:
            self.demand.until_s = max(self.demand.until_s, until_s)
            self.changed.notify_all()
        try:
            while not self._deliver_ready():
                left_s = until_s - monotonic()
                with self.changed:
                    self.changed.wait_for(self._has_ready, min(left_s, WAKES_S))
                if left_s <= 0:
                    raise TimeoutError
        finally:
            if timeout is None and self._waker is None:
                self.demand.until_s = 0.0

    def _has_ready(self) -> bool:
        return any(channel.has_ready for channel in list(self.channels))

    def _deliver_ready(self) -> int:
        return sum(channel.deliver() for channel in list(self.channels))

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in a hub of kombu."""
        if self._waker is None:
            self._waker = Waker()
        self.demand.until_s = ALWAYS
        loop.add_reader(self._waker.fileno(), self.on_readable, connection, loop)
        self.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        if self._waker is not None:
            loop.remove_reader(self._waker.fileno())

    def on_readable(self, connection: Any, loop: Any) -> None:
        if self._waker is not None:
            self._waker.drain()
        self._deliver_ready()
