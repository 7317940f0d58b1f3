"""Base of producers and consumers: a group, a Client, one start and one stop."""

import atexit
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from threading import Lock
from time import monotonic
from typing import ClassVar, Self, TypeAlias
from weakref import WeakSet

from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.arguments import MS_MAX, check_range
from troupemq.client.connection.client import Client, ClientCore
from troupemq.client.errors import FORKED, ClientClosed
from troupemq.client.log import client_logger
from troupemq.client.message import check_own_group

log = client_logger(__name__)

LAST_TIMEOUT_S = 1.0
"""Minimum time for the last requests to brokers, even after the deadline of a stop."""


def seconds_to(deadline_s: float) -> float:
    """Return the seconds to a monotonic deadline; 0 if it is past."""
    return max(0.0, deadline_s - monotonic())


Work: TypeAlias = Mapping[str, Callable[[], int]]
"""Counters of in-flight work, such as sends or handlers, by name."""


class StopReport:
    """Log line of a stop: what was in flight, what of it is left, and the offsets committed."""

    def __init__(self, kind: str, group: str, work: Work) -> None:
        """Count the work at the begin of a stop."""
        self._kind, self._group, self._work = kind, group, work
        self._begun_s = monotonic()
        self._before = {name: count() for name, count in work.items()}

    def log(self, offsets: int | None) -> None:
        """Write the line; work that is left is a warning. Without counters there is no line."""
        if not self._work:
            return
        left = {name: count() for name, count in self._work.items()}
        counts = {**self._before, **{f"{name}_left": count for name, count in left.items()}}
        if offsets is not None:
            counts["offsets"] = offsets
        took_ms = round((monotonic() - self._begun_s) * 1000)
        say = log.warning if any(left.values()) else log.info
        say("client stopped", kind=self._kind, group=self._group, took_ms=took_ms, **counts)


class LifecycleState(Enum):
    NEW = "is not started: start it, or use a `with` block"
    RUNNING = "is running"
    STOPPED = "was stopped and does not start again: make a new one"
    FORKED = FORKED


class Lifecycle(ABC):
    """Owner of a client with one start and one stop, of threads or of an event loop."""

    kind: ClassVar[str]
    """Name of the class in errors, such as "the producer is not started"."""

    stop_timeout_s: ClassVar[float]
    """Default timeout of `stop`."""

    group: str = ""
    _client: ClientCore
    _state = LifecycleState.NEW

    @property
    def client_id(self) -> str:
        """Id of this client at the brokers, `ip@instance`; complete after the start."""
        return self._client.id

    @property
    def is_running(self) -> bool:
        """Whether it is started and not stopped."""
        return self._state is LifecycleState.RUNNING

    def check_running(self) -> None:
        """Raise ClientClosed unless it runs."""
        self._check(LifecycleState.RUNNING)

    def check_not_stopped(self) -> None:
        """Raise ClientClosed after a stop, and in a forked process."""
        if self._state in (LifecycleState.STOPPED, LifecycleState.FORKED):
            self._check(LifecycleState.NEW)

    def _check(self, wanted: LifecycleState) -> None:
        state = self._state
        if state is not wanted:
            raise ClientClosed(f"the {self.kind} {state.value}")

    def _begin(self) -> None:  # noqa: B027 (optional)
        """Start own threads, tasks and timers, after the client has started."""

    @abstractmethod
    def _work(self) -> Work:
        """Return the counters of in-flight work by name."""


class ClientMember(Lifecycle):
    """A producer or consumer with its own Client; call `start` and `stop`, or use `with`.

    A failed start may be repeated; after a stop, make a new one.
    """

    finishes_at_exit: ClassVar[bool] = False
    """Whether the end of the process waits for in-flight work, which would be lost."""

    exit_hint: ClassVar[str] = ""
    """Hint in the log if it still runs at the end of the process, as by a mistake."""

    _client: Client

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None,
        instance_name: str | None,
        ip: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address.

        * `namesrv`: "host:port;host:port". [default: NAMESRV_ADDR, else 127.0.0.1:9876]
        * `credentials`: [default: TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY, else unsigned]
        * `tls`: [default: TROUPEMQ_TLS and its related variables, else plain TCP]
        """
        check_own_group(group, self.kind)
        self.group = group
        self._client = Client(namesrv, instance_name, ip, credentials, tls)
        self._state_lock = Lock()
        _members.add(self)

    def start(self) -> None:
        """Start; do nothing if it runs. Raises ClientError: ClientClosed after a stop."""
        with self._state_lock:
            if self._state is LifecycleState.RUNNING:
                return
            self._check(LifecycleState.NEW)
            self._prepare()
            self._state = LifecycleState.RUNNING
            self._client.start()
            self._begin()

    def stop(self, timeout_s: float | None = None) -> None:
        """Finish in-flight work within `timeout_s`, then unregister from the brokers.

        The log line "client stopped" says what it waited for (docs/sending.md). Does nothing if it
        is stopped or another thread stops it. Raises ClientError in a callback
        on the I/O thread, which must not block.
        """
        if timeout_s is not None:
            check_range(timeout_s, 0, MS_MAX, "timeout_s")
        self._client.remoting.check_may_wait()
        with self._state_lock:
            before, self._state = self._state, LifecycleState.STOPPED
        if before is LifecycleState.NEW:
            self._client.remoting.close()
        if before is not LifecycleState.RUNNING:
            return
        report = StopReport(self.kind, self.group, self._work())
        deadline_s = monotonic() + (self.stop_timeout_s if timeout_s is None else timeout_s)
        report.log(self._finish(deadline_s))
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

    def _prepare(self) -> None:
        """Run the steps of a start that may fail, before the Client starts."""

    @abstractmethod
    def _finish(self, deadline_s: float) -> int | None:
        """Reject new work and wait for in-flight work, until `deadline_s` (monotonic).

        Return the number of committed offsets; None for a client without any.
        """


_members: "WeakSet[ClientMember]" = WeakSet()


def _refuse_all() -> None:
    """In a forked child: all calls raise ClientClosed, and a stop waits for no thread."""
    for member in list(_members):
        member._state_lock = Lock()  # another thread of the parent may have held it
        if member._state is not LifecycleState.STOPPED:
            member._state = LifecycleState.FORKED


os.register_at_fork(after_in_child=_refuse_all)


def _finish_work() -> None:
    """At the end of the process: stop members that were not, if their work would be lost."""
    for member in [each for each in _members if each.is_running]:
        if member.exit_hint:
            hint = member.exit_hint
            log.warning("running at exit", kind=member.kind, group=member.group, hint=hint)
        if member.finishes_at_exit and any(count() for count in member._work().values()):
            member.stop()


atexit.register(_finish_work)
