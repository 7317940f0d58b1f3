"""Transport: one connection of kombu."""

from time import monotonic
from typing import Any

from kombu.transport import virtual

from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientClosed,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.kombu.channel import Channel
from troupemq.kombu.places import PORT
from troupemq.kombu.shared import Shared, Waker

DRAIN_S_MIN = 0.1
"""Shortest drain outside of a hub: one receive."""
ALWAYS = float("inf")
WAKES_S = 3600.0
"""Longest wait of a drain without a timeout between two looks."""


class Transport(virtual.Transport):
    """One connection and its channels, for one thread at a time."""

    Channel = Channel
    default_port = PORT
    driver_type = driver_name = "troupemq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectionFailed,
        RequestTimeout,
        RouteNotFound,
        ClientClosed,
        BadAnswer,
    )
    # No ClientBusy: kombu would close the connection with what is in flight.
    channel_errors = (*virtual.Transport.channel_errors, BrokerError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(("direct", "topic", "fanout")),
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.shared = Shared(client)

    def establish_connection(self) -> "Transport":
        """Raise a ClientError unless a name server answers."""
        try:
            self.shared.link.check()
        except BaseException:
            self.shared.close()
            raise
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self.shared.close()

    def verify_connection(self, connection: Any) -> bool:
        return self.shared.is_connected

    # --- messages

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what is ready, waiting for it. Raises TimeoutError."""
        shared = self.shared
        until_s = ALWAYS if timeout is None else monotonic() + max(timeout, DRAIN_S_MIN)
        with shared.changed:
            shared.demand.until_s = max(shared.demand.until_s, until_s)
            shared.changed.notify_all()
        try:
            while not self._deliver_ready(one_read=True):
                left_s = until_s - monotonic()
                with shared.changed:
                    shared.changed.wait_for(self._has_ready, min(left_s, WAKES_S))
                if left_s <= 0:
                    raise TimeoutError
        finally:
            if timeout is None and shared.waker is None:
                shared.demand.until_s = 0.0

    def _has_ready(self) -> bool:
        return any(channel.has_ready for channel in list(self.channels))

    def _deliver_ready(self, *, one_read: bool = False) -> int:
        return sum(channel.deliver(one_read=one_read) for channel in list(self.channels))

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in a hub of kombu."""
        shared = self.shared
        if shared.waker is None:
            shared.waker = Waker()
        shared.demand.until_s = ALWAYS
        loop.add_reader(shared.waker.fileno(), self.on_readable, connection, loop)
        shared.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        if self.shared.waker is not None:
            loop.remove_reader(self.shared.waker.fileno())

    def on_readable(self, connection: Any, loop: Any) -> None:
        if self.shared.waker is not None:
            self.shared.waker.drain()
        self._deliver_ready()
