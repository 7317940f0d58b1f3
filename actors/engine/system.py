"""All actors of a process or of a test: their addresses, dispatchers, clock and disk.

    system = ActorSystem.real(disk=RealDisk(), clock=SystemClock())
    system.start([ChildSpec("topics", lambda system: Topics(…)), …])
    answer = system.ask(system.address("topics"), lambda reply: Find("t", reply)).result(1)
    system.stop()

Tests have a simulated one: troupemq/testing/simulation.py.
"""

from collections.abc import Callable, Iterable
from threading import Event
from typing import Any, NamedTuple, Self, TypeAlias

from actors.engine.actor import Actor, Where
from actors.engine.actor_address import ActorAddress, Future, MessageRefused, Reply, assert_may_wait
from actors.engine.dispatchers import Stepper, ThreadDispatcher
from actors.engine.interfaces import ActorDispatcher
from actors.engine.loop import Loop
from actors.engine.server_log import RateLimitedLog, get_logger
from actors.engine.supervisor import ChildSpec, Launch, Ping, Shut, Supervisor
from storage.clock import Clock, SystemClock
from storage.files.disk import Disk

log = get_logger(__name__)

GiveUp: TypeAlias = Callable[[str], None]

START_TIMEOUT_S = 600.0
"""Long enough for a start that recovers a large store."""

STOP_TIMEOUT_S = 60.0
LOOP_END_TIMEOUT_S = 5.0
"""Time for the loop to finish its round after its actors have ended."""


class StartFailed(Exception):
    """Children did not start; the cause is the failure of the last one."""


class ActorFigures(NamedTuple):
    """One line of an operator's list of actors."""

    name: str
    is_up: bool
    inbox_depth: int
    handled_count: int
    incarnation: int
    failed_count: int = 0
    """Messages refused because their handlers failed, while the actor went on."""


class ActorSystem:
    """Addresses, dispatchers, clock and disk of all actors; made by `real`."""

    clock: Clock
    disk: Disk
    loop: Stepper

    def __init__(self, disk: Disk, clock: Clock, on_give_up: GiveUp | None) -> None:
        self.disk = disk
        self.clock = clock
        self.rarely = RateLimitedLog(clock.monotonic_ms)
        self.live: set[Actor] = set()
        """Actors that have begun to start and have not ended."""
        self.gave_up: str | None = None
        """Reason for which the supervisor has given up; None while it has not."""
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
        """Make a system on real threads and start its loop; `stop` it after use."""
        system = cls(disk, clock if clock is not None else SystemClock(), on_give_up)
        loop = Loop(system)
        system.loop = loop
        system._start_supervisor()
        loop.start()
        return system

    # --- actors and addresses

    def address(self, name: str) -> ActorAddress:
        address = self._addresses.get(name)
        if address is None:
            address = self._addresses.setdefault(name, ActorAddress(name, self.loop.post))
        return address

    def start(self, *specs: ChildSpec, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start children in order and wait until all are up. Raises StartFailed.

        A failure at the start is retried like any other. StartFailed is raised when the supervisor
        has given up. Not on the loop.
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
        """Start an actor without restarts; see `System.spawn`. Only on the loop."""
        address = ActorAddress(name, self.loop.post)
        address.temporary = True
        self.launch(actor, address, where or actor.where, parent=parent)
        return address

    def launch(
        self, actor: Actor, address: ActorAddress, where: Where, *, parent: ActorAddress | None
    ) -> None:
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
        """Return the figures of all actors with a fixed name. Any thread."""
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

    def up(self, names: Iterable[str]) -> list[ActorAddress]:
        """Return the addresses of those actors that run now; it makes no address. Any thread."""
        found = (self._addresses.get(name) for name in names)
        return [each for each in found if each is not None and each.is_up]

    # --- asking from outside

    def why_not_alive(self, timeout_s: float) -> str:
        """Ask the supervisor over the loop; return an empty text if all is well, else the reason.

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
        """Send the message that `make` builds around a `reply`; return a future of the answer.

        For tests, start-up and shutdown. `result` raises MessageRefused when the actor failed on
        the message, if the message is a Question.
        """
        future: Future[Any] = Future(self._wait)
        address.tell(make(Reply(future)))
        return future

    def _wait(self, arrived: Event, timeout_s: float) -> None:
        arrived.wait(timeout_s)

    # --- the end

    def give_up(self, reason: str) -> None:
        if self.gave_up is None:
            self.gave_up = reason
            if self.on_give_up is not None:
                self.on_give_up(reason)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Drain and stop all children in reverse order, then the dispatchers. Not on the loop.

        A second call returns the result of the first one. The result is False if something failed
        at its end, hung past its deadline, or all of it took longer than `timeout_s`. Then data
        that should have been flushed may not be.
        """
        assert_may_wait()
        if self._stopped is not None:
            return self._stopped
        try:
            unclean = self.ask(self.supervisor, Shut).result(timeout_s)
        except (MessageRefused, TimeoutError) as error:
            log.error("system stop failed", error=f"{type(error).__name__}: {error}")
            unclean = ["supervisor"]
        self._stopped = self.loop.end(LOOP_END_TIMEOUT_S) and not unclean
        self._threads.join(LOOP_END_TIMEOUT_S)
        return self._stopped

    def __repr__(self) -> str:
        return f"<ActorSystem {self.loop!r}>"
