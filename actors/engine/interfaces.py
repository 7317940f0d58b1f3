"""Protocols between an actor, its dispatcher and their system.

The three use each other; here is what of it the types need, so that no file imports its user. Where
a method takes an `Actor` it says `Any`: naming the class would close the circle again.
"""

from collections import Counter
from typing import Any, Protocol

from actors.engine.actor_address import ActorAddress
from actors.engine.rate_limited_log import RateLimitedLog
from actors.engine.timer import TimerHandle
from storage.clock import Clock
from storage.files.disk import Disk


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class SocketHandler(Protocol):
    """Whoever is called when a socket is ready: the actor itself, or a part of it."""

    def on_readable(self) -> None:
        """There is something to read, the end of the stream, or an error to collect."""

    def on_writable(self) -> None:
        """There is room to write."""


class ActorDispatcher(Protocol):
    """Runs actors."""

    gives_threads: bool

    def bind(self, actor: Any) -> None:
        """Prepares the address and the inbox of an actor that is about to start."""

    def begin(self, actor: Any) -> None:
        """Starts an actor that has no thread of its own."""

    def stop_asked(self, actor: Any) -> None:
        """The actor got Stop: ask it `can_stop` from now on."""

    def gone(self, actor: Any) -> None:
        """The actor has ended, one way or another."""

    def abandon(self, actor: Any) -> None:
        """The actor hangs: as if it had ended, but nobody may take its place."""

    def must_raise(self, error: BaseException | None) -> bool:
        """Whether an exception is not the actor's, but meant for the program."""


class LoopOfActors(Protocol):
    """The loop, as actors use it: timers and sockets."""

    @property
    def round_count(self) -> int:
        """Rounds until now: in each of them sockets are looked at."""

    @property
    def here(self) -> bool:
        """Whether this is the loop's thread."""

    def arm(self, timer: TimerHandle) -> None:
        """Arms a timer; any thread."""

    def tell_in_next_round(self, address: ActorAddress, message: object) -> None:
        """As `address.tell`, but sockets are looked at first. Only on the loop."""

    def watch(
        self, sock: HasFileno, events: int, handler: SocketHandler, *, owner: Any = None
    ) -> None:
        """Calls `handler` when `sock` is ready for `events` (select.EPOLLIN, EPOLLOUT).

        `owner` is the actor that fails if the handler does, and with which the watch ends; the
        handler itself unless given. The descriptor must be non-blocking: after others closed and
        opened sockets in the same round a call may find nothing to do. Only on the loop.
        """

    def modify(self, sock: HasFileno, events: int) -> None:
        """Changes the events that are waited for."""

    def unwatch(self, sock: HasFileno) -> None:
        """Forgets a socket; call it before closing the socket."""

    def depths(self) -> Counter[ActorAddress]:
        """How many messages wait for each actor. Any thread; looks at all mail."""

    def take_waiting(self, address: ActorAddress) -> list[object]:
        """Takes out the mail that waits for one actor."""


class System(Protocol):
    """The system of an actor, as the actor uses it."""

    clock: Clock
    disk: Disk
    supervisor: ActorAddress
    rarely: RateLimitedLog
    """For warnings that strangers can cause."""

    @property
    def loop(self) -> LoopOfActors: ...

    @property
    def live(self) -> set[Any]:
        """The actors that have begun to start and have not ended."""

    def address(self, name: str) -> ActorAddress:
        """The address of this name; the same one every time, also before its actor starts."""

    def spawn(
        self, actor: Any, name: str, *, where: Any = None, parent: ActorAddress | None = None
    ) -> ActorAddress:
        """Starts an actor that is never restarted, under an address of its own. Only on the loop.

        The address is in no list: `name` is for logs. `parent` is told Started and Exited. Whoever
        spawns stops it (`address.tell(Stop())`), for instance before its own `can_stop` is True.
        """

    def launch(
        self, actor: Any, address: ActorAddress, where: Any, *, parent: ActorAddress | None
    ) -> None:
        """Binds an actor to an address and a dispatcher, and starts it. For the supervisor."""

    def give_up(self, reason: str) -> None:
        """Called once, on the loop, when restarting does not help."""
