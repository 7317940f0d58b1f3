"""All actors of a process or of a test: addresses, dispatchers, the clock and the disk they use.

    system = ActorSystem.real(disk=RealDisk(), clock=SystemClock())
    system.start([ChildSpec("topics", lambda system: Topics(…)), …])
    answer = system.ask(system.address("topics"), lambda reply: Find("t", reply)).result(1)
    system.stop()

Tests have a simulated one: tests/support/simulation.py.
"""

from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple, Self, TypeAlias

from structlog import get_logger

from actors.engine.actor import Actor, Where
from actors.engine.actor_address import ActorAddress
from actors.engine.dispatchers import Stepper, ThreadDispatcher
from actors.engine.future import Future, MessageRefused, Reply, assert_may_wait
from actors.engine.interfaces import ActorDispatcher
from actors.engine.loop import Loop
from actors.engine.rate_limited_log import RateLimitedLog
from actors.engine.supervisor import ChildSpec, Launch, Ping, Shut, Supervisor
from storage.clock import Clock, SystemClock
from storage.files.disk import Disk

log = get_logger(__name__)

GiveUp: TypeAlias = Callable[[str], None]

START_TIMEOUT_S = 600.0
"""A start may have to recover a large store."""

STOP_TIMEOUT_S = 60.0
LOOP_END_TIMEOUT_S = 5.0
"""With its actors gone, the loop has only its round to finish."""


class StartFailed(Exception):
    """Children did not start; the cause is what the last of them failed with."""


class ActorFigures(NamedTuple):
    """One line of an operator's list of actors."""

    name: str
    is_up: bool
    inbox_depth: int
    """Messages that wait now."""
    handled_count: int
    """Messages handled under this name, over all restarts."""
    incarnation: int
    """How often it has been started."""
    failed_count: int = 0
    """Messages refused because their handlers failed, while the actor went on."""


class ActorSystem:
    """Made by `real`."""

    clock: Clock
    disk: Disk
    loop: Stepper

    def __init__(self, disk: Disk, clock: Clock, on_give_up: GiveUp | None) -> None:
        self.disk = disk
        self.clock = clock
        self.rarely = RateLimitedLog(clock.monotonic_ms)
        self.live: set[Actor] = set()
        """The actors that have begun to start and have not ended."""
        self.gave_up: str | None = None
        """Why the supervisor has given up; None as long as it has not."""
        self.on_give_up = on_give_up
        self._stopped: bool | None = None
        self._addresses: dict[str, ActorAddress] = {}
        self._threads: ActorDispatcher = ThreadDispatcher(self)

    @classmethod
    def real(
        cls,
        *,
        disk: Disk,
        clock: Clock | None = None,
        on_give_up: GiveUp | None = None,
    ) -> Self:
        """A system on real threads; its loop runs at once. `stop` it."""
        system = cls(disk, clock if clock is not None else SystemClock(), on_give_up)
        loop = Loop(system)
        system.loop = loop
        system._start_supervisor()
        loop.start()
        return system

    # --- actors and addresses

    def address(self, name: str) -> ActorAddress:
        """The address of this name; the same one every time, also before its actor starts."""
        address = self._addresses.get(name)
        if address is None:
            address = self._addresses.setdefault(name, ActorAddress(name, self.loop.post))
        return address

    def start(self, *specs: ChildSpec, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts children in order and waits until all are up. Raises StartFailed.

        A failure at the start is retried like any other; StartFailed comes when the supervisor has
        given up. Not on the loop.
        """
        future = self.ask(self.supervisor, lambda reply: Launch(specs, reply))
        failure = future.result(timeout_s)
        if failure is not None:
            raise StartFailed(f"{type(failure).__name__}: {failure}") from failure

    def spawn(
        self,
        actor: Actor,
        name: str,
        *,
        where: Where | None = None,
        parent: ActorAddress | None = None,
    ) -> ActorAddress:
        """Starts an actor that is never restarted, under an address of its own. Only on the loop.

        The address is in no list: `name` is for logs. `parent` is told Started and Exited. Whoever
        spawns stops it (`address.tell(Stop())`), for instance before its own `can_stop` is True.
        """
        address = ActorAddress(name, self.loop.post)
        address.temporary = True
        self.launch(actor, address, where or actor.where, parent=parent)
        return address

    def launch(
        self, actor: Actor, address: ActorAddress, where: Where, *, parent: ActorAddress | None
    ) -> None:
        """Binds an actor to an address and a dispatcher, and starts it. For the supervisor."""
        assert self.loop.here or not self.live, "actors are started on the loop"
        address.parent = parent
        address.incarnation += 1
        actor.system = self
        actor.address = address
        actor.incarnation = address.incarnation
        actor.dispatcher = self._threads if where == "thread" else self.loop
        actor.actor_inbox.bind(address.tell)
        self.live.add(actor)
        actor.dispatcher.bind(actor)
        actor._start_actor_loop()

    def _start_supervisor(self) -> None:
        self.supervisor = self.address("supervisor")
        self.launch(Supervisor(self.give_up), self.supervisor, "loop", parent=None)

    def figures(self) -> list[ActorFigures]:
        """What can be seen from outside of the actors with a name of their own. Any thread."""
        depths = self.loop.depths()
        return [
            ActorFigures(
                address.name,
                address.is_up,
                queue.qsize() if (queue := address.own_queue()) is not None else depths[address],
                address.handled,
                address.incarnation,
                address.failed,
            )
            for address in list(self._addresses.values())
        ]

    def actors(self) -> dict[str, Actor]:
        """The actors with a name of their own that live now, for who shows figures. Any thread."""
        return {each.name: each for each in [*self.live] if not each.address.temporary}

    # --- asking from outside

    def why_not_alive(self, timeout_s: float) -> str:
        """Asks the supervisor, over the loop like everybody: empty if it answers that all is well.

        Not on the loop.
        """
        if self.gave_up is not None:
            return f"gave up: {self.gave_up}"
        try:
            answer: str = self.ask(self.supervisor, Ping).result(timeout_s)
        except (MessageRefused, TimeoutError):
            return f"the loop has not answered for {timeout_s:g} s"
        return answer

    def ask(self, address: ActorAddress, make: Callable[[Reply[Any]], object]) -> Future[Any]:
        """Tells the message that `make` builds around a `reply`; the future has the answer.

        For tests, start-up and shutdown. `result` raises MessageRefused when the actor died with
        the message, if that has `refuse` or keeps the reply in a field `reply`.
        """
        future: Future[Any] = Future(self._wait)
        address.tell(make(Reply(future)))
        return future

    def _wait(self, arrived: Event, timeout_s: float) -> None:
        arrived.wait(timeout_s)

    # --- the end

    def give_up(self, reason: str) -> None:
        """Called once, on the loop, when restarting does not help."""
        if self.gave_up is None:
            self.gave_up = reason
            if self.on_give_up is not None:
                self.on_give_up(reason)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Drains and stops all children in reverse order, then the dispatchers. Not on the loop.

        A second call only says again how the first one ended.

        False if something failed at its end, was stuck past its deadline, or all of it took longer
        than `timeout_s`: what should have been flushed may not be.
        """
        assert_may_wait()
        if self._stopped is not None:
            return self._stopped
        try:
            unclean = self.ask(self.supervisor, Shut).result(timeout_s)
        except (MessageRefused, TimeoutError) as error:
            log.error("not stopped", error=f"{type(error).__name__}: {error}")
            unclean = ["supervisor"]
        self._stopped = self.loop.end(LOOP_END_TIMEOUT_S) and not unclean
        return self._stopped

    def __repr__(self) -> str:
        return f"<ActorSystem {self.loop!r}>"
