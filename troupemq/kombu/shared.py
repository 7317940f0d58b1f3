"""State that the channels of one connection share."""

import atexit
import os
import socket
from threading import Condition
from typing import Any
from weakref import WeakKeyDictionary

from troupemq.kombu.bindings import ANNOUNCE_MS, Bindings
from troupemq.kombu.fetching import Demand, SettlingThread
from troupemq.kombu.link import BrokerLink
from troupemq.kombu.places import TLS_SCHEME, place_of
from troupemq.kombu.readers import ReadQueue
from troupemq.kombu.unconfirmed import Unconfirmed


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


_failures: WeakKeyDictionary[Any, BaseException] = WeakKeyDictionary()
"""Errors of publications of closed connections, by kombu's Connection, which connects again."""


class Shared:
    """Queues, bindings and requests of one connection.

    In a forked child the requests have connections of their own; the child may publish.
    """

    def __init__(self, client: Any) -> None:
        """Take kombu's Connection; open nothing yet."""
        self._client = client
        self.changed = Condition()
        """Condition of ready messages, of room for more, and of the demand."""
        self.demand = Demand()
        self.read_queues: dict[str, ReadQueue] = {}
        self.ttls_ms: dict[str, float | None] = {}
        """TTL of each declared queue that lasts."""
        self.bindings = Bindings(lambda: self.link)
        self.waker: Waker | None = None
        self._link: BrokerLink | None = None
        self._process_id = os.getpid()
        self._settler: SettlingThread | None = None
        self._unconfirmed: Unconfirmed | None = None

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.is_running

    @property
    def link(self) -> BrokerLink:
        """The requests of this process; started."""
        if self._process_id != os.getpid():  # the parent's threads and sockets are not ours
            self._process_id, self._link = os.getpid(), None
            self.bindings.after_fork()
        if self._link is None or not self._link.is_running:
            client = self._client
            place = place_of(
                client.hostname,
                client.alt,
                port=client.port,
                user=client.userid,
                password=client.password,
                space=client.virtual_host,
                ssl=client.ssl or client.transport_cls == TLS_SCHEME,
            )
            link = self._link = BrokerLink(place)
            link.start()
            link.every(ANNOUNCE_MS, self.bindings.announce_again)
        return self._link

    @property
    def settler(self) -> SettlingThread:
        if self._settler is None:
            self._settler = SettlingThread()
        return self._settler

    @property
    def unconfirmed(self) -> Unconfirmed:
        """Publications of this process that are not waited for before its end."""
        link = self.link
        if self._unconfirmed is None or self._unconfirmed.link is not link:
            self._unconfirmed = Unconfirmed(link, _failures.pop(self._client, None))
            atexit.register(self._flush)
        return self._unconfirmed

    def _flush(self) -> None:
        """Wait for messages in flight; those of a parent process are not ours."""
        if self._unconfirmed is not None and self._process_id == os.getpid():
            self._unconfirmed.flush()

    def close(self) -> None:
        """Stop all threads; a forked child has none to stop but its link's."""
        self._flush()
        atexit.unregister(self._flush)
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        link, self._link = self._link, None
        if self._process_id != os.getpid():
            return
        for reader in self.read_queues.values():
            reader.stop()
        if self._settler is not None:
            self._settler.stop()
            self._settler = None
        if link is not None:
            link.stop()
        if unconfirmed is not None and unconfirmed.failure is not None:
            _failures[self._client] = unconfirmed.failure
        if self.waker is not None:
            self.waker.close()
            self.waker = None

    def wake(self) -> None:
        """Have ready messages delivered; for any thread."""
        waker = self.waker  # a thread that closes the connection sets it to None
        if waker is not None:
            waker.wake()
        self.room_changed()

    def room_changed(self) -> None:
        """Let fetchers look whether they may receive more; for any thread."""
        with self.changed:
            self.changed.notify_all()
