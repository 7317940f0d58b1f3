"""The shared part of producers and consumers: a group, a Client, one start, one stop."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from threading import Lock
from time import monotonic
from typing import ClassVar, Self

from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.arguments import MS_MAX, check_range
from troupemq.client.connection.client import Client
from troupemq.client.errors import ClientClosed
from troupemq.client.message import check_own_group

LAST_TIMEOUT_S = 1.0
"""For what brokers are told in the end, where the time is over already."""


def seconds_to(deadline_s: float) -> float:
    """How long until then, of the monotonic clock; 0 if it is past."""
    return max(0.0, deadline_s - monotonic())


class _State(Enum):
    NEW = "is not started: start it, or use a `with` block"
    RUNNING = "is running"
    STOPPED = "was stopped and does not start again: make a new one"


class ClientMember(ABC):
    """A producer or consumer with a Client of its own. Start it, or use it in a `with` block.

    A start that fails may be tried again; a stopped one does not start again.
    """

    kind: ClassVar[str]
    """What errors call it, as in "the producer is not started", and its group."""

    stop_timeout_s: ClassVar[float]
    """How long a stop waits unless it is told."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None,
        instance_name: str | None,
        ip: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`namesrv`: "host:port;host:port", else NAMESRV_ADDR, else 127.0.0.1:9876.

        `credentials`: else TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY, else requests are not
        signed. `tls`: else as TROUPEMQ_TLS and those beside it say, else without.
        """
        check_own_group(group, self.kind)
        self.group = group
        self._client = Client(namesrv, instance_name, ip, credentials, tls)
        self._state = _State.NEW
        self._state_lock = Lock()

    def start(self) -> None:
        """Begins; does nothing if it runs. Raises ClientClosed after a stop, else ClientError."""
        with self._state_lock:
            if self._state is _State.RUNNING:
                return
            self._check(_State.NEW)
            self._prepare()
            self._state = _State.RUNNING
            self._client.start()
            self._begin()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends what is under way, waiting `timeout_s` for it, and leaves the brokers.

        Does nothing if it is stopped, or another thread is about it. Raises ClientError in a
        callback, which must not wait.
        """
        if timeout_s is not None:
            check_range(timeout_s, 0, MS_MAX, "timeout_s")
        self._client.remoting.check_may_wait()
        with self._state_lock:
            before, self._state = self._state, _State.STOPPED
        if before is _State.NEW:
            self._client.remoting.close()
        if before is not _State.RUNNING:
            return
        deadline_s = monotonic() + (self.stop_timeout_s if timeout_s is None else timeout_s)
        self._finish(deadline_s)
        self._client.stop(max(LAST_TIMEOUT_S, seconds_to(deadline_s)))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()

    @property
    def client_id(self) -> str:
        """How brokers name this client."""
        return self._client.id

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._state is _State.RUNNING

    def check_running(self) -> None:
        """Raises ClientClosed unless it runs."""
        self._check(_State.RUNNING)

    def check_not_stopped(self) -> None:
        """Raise ClientClosed after a stop."""
        if self._state is _State.STOPPED:
            self._check(_State.NEW)

    def _check(self, wanted: _State) -> None:
        state = self._state
        if state is not wanted:
            raise ClientClosed(f"the {self.kind} {state.value}")

    def _prepare(self) -> None:  # noqa: B027 (not every one has something to do)
        """Before the Client starts: what may fail."""

    def _begin(self) -> None:  # noqa: B027 (the same)
        """After the Client started: own threads and timers."""

    @abstractmethod
    def _finish(self, deadline_s: float) -> None:
        """Before the Client leaves the brokers: takes nothing new, and waits for what is under way
        until `deadline_s` of the monotonic clock."""
