"""Protocols between an actor, its dispatcher and their system.

The three use each other. These protocols declare what the types need, so that no file imports its
user. A parameter that takes an `Actor` has the type `Any`: naming the class would close the circle.

SnapshotRef holds a table's latest snapshot: one actor publishes it, any thread reads it. A
published snapshot never changes; a newer one replaces it. Reading and replacing an attribute are
single steps of the interpreter, so no thread needs a lock.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import RateLimitedLog
from actors.engine.timer import TimerHandle
from storage.clock import Clock
from storage.files.disk import Disk


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class SocketHandler(Protocol):
    """Object that is called when a socket is ready: the actor itself, or a part of it."""

    def on_readable(self) -> None: ...

    def on_writable(self) -> None: ...


class ActorDispatcher(Protocol):
    gives_threads: bool

    def bind(self, actor: Any) -> None:
        """Prepare the address and the inbox before the start."""

    def begin(self, actor: Any) -> None:
        """Start an actor that has no thread of its own."""

    def stop_asked(self, actor: Any) -> None:
        """Call `can_stop` of the actor from now on: it has received Stop."""

    def gone(self, actor: Any) -> None:
        """Handle the end of the actor, of whatever kind."""

    def abandon(self, actor: Any) -> None:
        """Treat a hanging actor as ended, and never restart it."""

    def must_raise(self, error: BaseException | None) -> bool:
        """Return whether an exception is meant for the program, not for the actor."""

    def join(self, timeout_s: float) -> None:
        """Wait for the threads of actors that have ended."""


class LoopOfActors(Protocol):
    @property
    def round_count(self) -> int:
        """Rounds so far; each of them serves the sockets once."""

    @property
    def here(self) -> bool: ...

    def arm(self, timer: TimerHandle) -> None:
        """Arm a timer. Any thread."""

    def tell_in_next_round(self, address: ActorAddress, message: object) -> None:
        """Send like `address.tell`, but serve the sockets first. Only on the loop."""

    def watch(
        self, sock: HasFileno, events: int, handler: SocketHandler, *, owner: Any = None
    ) -> None:
        """Call `handler` when `sock` is ready for `events` (select.EPOLLIN, EPOLLOUT).

        `owner` is the actor that fails if the handler fails, and the watch ends with it. The
        default is the handler itself. The descriptor must be non-blocking: a call may find nothing
        to do if other handlers closed and opened sockets in the same round. Only on the loop.
        """

    def modify(self, sock: HasFileno, events: int) -> None: ...

    def unwatch(self, sock: HasFileno) -> None:
        """Stop watching a socket; call it before closing the socket."""

    def depths(self) -> Counter[ActorAddress]:
        """Return how many messages wait for each actor. Any thread; takes time for all messages."""

    def take_waiting(self, address: ActorAddress) -> list[object]: ...


class System(Protocol):
    clock: Clock
    disk: Disk
    supervisor: ActorAddress
    rarely: RateLimitedLog
    """Rate limiter for warnings that peers can cause."""

    @property
    def loop(self) -> LoopOfActors: ...

    @property
    def live(self) -> set[Any]:
        """Actors that have begun to start and have not ended."""

    def address(self, name: str) -> ActorAddress:
        """Return the address of this name, also before its actor starts."""

    def up(self, names: Iterable[str]) -> list[ActorAddress]:
        """Return the addresses of those actors that run now; it makes no address. Any thread."""

    def spawn(
        self, actor: Any, name: str, *, where: Any = None, parent: ActorAddress | None = None
    ) -> ActorAddress:
        """Start an actor that is never restarted, under an address of its own. Only on the loop.

        `address(name)` does not find it: `name` is for logs. `parent` receives Started and Exited.
        The spawning actor must stop it (`address.tell(Stop())`), for instance before its own
        `can_stop` is True.
        """

    def launch(
        self, actor: Any, address: ActorAddress, where: Any, *, parent: ActorAddress | None
    ) -> None:
        """Bind an actor to an address and a dispatcher, and start it; for the supervisor."""

    def give_up(self, reason: str) -> None:
        """Record that restarts do not help; called once, on the loop."""


T = TypeVar("T")


class SnapshotRef(Generic[T]):
    """Reference to the latest snapshot. Only the owner of the table sets `value`."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value: T = value
