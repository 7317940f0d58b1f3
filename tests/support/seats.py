"""The base of a simulated client: a seat in the system, a connection, requests and time.

A client is a plain object that outlives brokers, like a process elsewhere. While a broker runs, the
client has a `Seat`, an actor of the simulated system. The seed thus fixes the order of its
messages, and its time is virtual. Seats start before the broker's own actors and stop after them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.timer import TimerHandle
from actors.network.messages import Buffer
from protocol.frame import RemotingCommand
from protocol.stream import CommandStream
from troupemq.testing.virtual_broker import LocalClient

if TYPE_CHECKING:
    from tests.support.world import World

TIMEOUT_MS = 5_000.0
Taken = Callable[[RemotingCommand | None], None]
"""Called with an answer; with None when none has come in time."""


@dataclass(slots=True)
class Do:
    """Call this on the seat."""

    action: Callable[[], object]


class Seat(Actor):
    """Actor of a client; an exception in it fails the test."""

    def __init__(self, failures: list[BaseException]) -> None:
        super().__init__()
        self._failures = failures

    @handles(Do)
    def on_do(self, message: Do) -> None:
        message.action()

    def on_failure(self, *_: object) -> None:
        assert self.failure is not None
        self._failures.append(self.failure)


class Link(LocalClient):
    """A client's connection, until it breaks: what comes over it is mail for the client's seat."""

    client: "Client"
    is_broken = False

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        for command in CommandStream().receive(b"".join(frames)):
            self.client.seat.tell(Do(partial(self.client.came, self, command)))


class Client:
    """One client: connected or not, until it ends."""

    def __init__(self, world: "World", client_id: str, place: int) -> None:
        """`place` is the number of its seat."""
        self.world, self.client_id, self.place = world, client_id, place
        self.is_alive = True
        self.timeouts = 0
        """Requests without an answer though the connection was whole: there may be none."""
        self._link: Link | None = None
        self._waiting: dict[int, tuple[Taken, TimerHandle | None]] = {}
        world.made.system.run_until(lambda: self.seat.is_up)
        self.do(self.connect)

    # --- told from outside

    @property
    def seat(self) -> ActorAddress:
        return self.world.made.system.address(f"seat_{self.place}")

    def do(self, action: Callable[[], object]) -> None:
        """Has the client do something, on its seat."""
        self.seat.tell(Do(action))

    def connect(self) -> None:
        """On its seat: connects, if it is not connected."""
        if self.is_alive and self._link is None:
            made = self.world.made
            link = Link(made.system, made.broker.service(), port=1000 + self.place)
            link.client = self
            self._link = link
            self.on_connect()

    def lose_link(self, *, silently: bool = False) -> None:
        """The connection breaks; `silently`: the broker is not told."""
        link, self._link = self._link, None
        for _, timer in self._waiting.values():
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        if link is not None:
            link.is_broken = True
            if not silently:
                link.close()

    def lose_broker(self) -> None:
        """The broker is gone, and all timers with it; `connect` comes when there is one again."""
        self.lose_link(silently=True)
        self.on_lost_broker()

    def die(self, *, silently: bool = False) -> None:
        """Ends without a word; `silently`: not even its connection is closed."""
        self.is_alive = False
        self.lose_link(silently=silently)
        self.on_lost_broker()

    # --- for what kind of client it is

    def on_connect(self) -> None:
        """There is a connection."""

    def on_lost_broker(self) -> None:
        """Whatever ran on timers does not run any more."""

    def on_notice(self, command: RemotingCommand) -> None:
        """The broker asks or tells something."""

    def after(self, ms: float, action: Callable[[], None]) -> TimerHandle | None:
        """Does something later, whatever becomes of the connection; not after its end."""

        def act() -> None:
            if self.is_alive:
                action()

        seat = self.seat.receiver
        if isinstance(seat, Seat):
            return seat.after(ms, Do(act))
        return None  # the system is stopping

    def after_linked(self, ms: float, action: Callable[[], None]) -> TimerHandle | None:
        """Does something later, unless this connection has broken by then."""
        link = self._link

        def act() -> None:
            if self._link is link and link is not None:
                action()

        return self.after(ms, act)

    def every(self, ms: float, action: Callable[[], None]) -> None:
        """Does something again and again while this connection lasts."""

        def act() -> None:
            action()
            self.after_linked(ms, act)

        self.after_linked(ms, act)

    def tell(self, command: RemotingCommand) -> None:
        """Sends what is not answered; nothing without a connection."""
        if self._link is not None:
            self._link.start(command)

    def ask(self, command: RemotingCommand, taken: Taken, timeout_ms: float = TIMEOUT_MS) -> None:
        """Sends a request; a connection that breaks takes it along."""
        if self._link is None:
            return
        self._link.start(command)
        opaque = command.opaque

        def time_out() -> None:
            if self._waiting.pop(opaque, None) is not None:
                self.timeouts += 1
                taken(None)

        self._waiting[opaque] = (taken, self.after_linked(timeout_ms, time_out))

    def reply(self, answer: RemotingCommand) -> None:
        """Answers a request of the broker."""
        if self._link is not None:
            self._link.reply(answer)

    def came(self, link: Link, command: RemotingCommand) -> None:
        """Something came over a connection."""
        if link.is_broken:
            return
        if not command.is_response:
            self.on_notice(command)
            return
        taken, timer = self._waiting.pop(command.opaque, (None, None))
        if timer is not None:
            timer.cancel()
        if taken is not None:
            taken(command)
