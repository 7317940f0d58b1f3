"""Starts children in order, restarts what fails, and stops everything in reverse.

Owns: the children, and the right to start and stop them.   Told by: every child's dispatcher
(Started, Exited), the system (Launch, Ping, Shut, Watched).   Tells: its children Drain and Stop.

It does one thing at a time: its plan is a queue of steps, and the next step begins when the last
one is done, which is when Started, Exited or a timer says so. A child that fails while something
else is under way is restarted after it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from structlog import get_logger

from actors.engine.actor import Actor, Drain, Exited, Started, Stop, TimerHandle, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import refuse
from actors.engine.interfaces import System

log = get_logger(__name__)

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]

BACK_OFF_FIRST_MS = 10.0
BACK_OFF_MAX_MS = 1_000.0
"""A restart waits 10 ms, then twice as long each time; 10 ms again after a quiet period."""

LAST_DEADLINE_MS = 1_000.0
"""After the deadline of a stop: for a thread that can still leave when told to do so at once."""

FAILURES_MAX = 5
FAILURES_WITHIN_MS = 10_000.0
"""More failures than this in that time, of all children together: it is not going to work."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to make an actor, where it runs, and what to do when it ends."""

    name: str
    factory: Callable[[System], Actor]
    where: Where | None = None
    """None: where its class says."""
    restart: Restart = "permanent"
    """permanent: whenever it ends; transient: when it fails; temporary: never."""
    group: str | None = None
    """When one of a group fails, the others are stopped, in reverse, and all start in order."""
    stop_deadline_ms: float = 5_000.0
    fatal: tuple[type[BaseException], ...] = ()
    """Failures that a restart cannot mend: the supervisor gives up at once."""


@dataclass(slots=True)
class Launch:
    """Start these children, one after the other; `reply` with None, or with why it did not work."""

    specs: Sequence[ChildSpec]
    reply: Callable[[BaseException | None], None]


@dataclass(slots=True)
class Shut:
    """Stop all children; `reply` with the names of those that failed or were stuck."""

    reply: Callable[[list[str]], None]


@dataclass(slots=True)
class Ping:
    """Is the loop going round, and has nobody given up? `reply` with why not; empty if so."""

    reply: Callable[[str], None]


@dataclass(slots=True)
class Proceed:
    """The pause of step `serial` is over."""

    serial: int


@dataclass(slots=True)
class StopDeadline:
    """The child should have ended by now."""

    child: "Child"
    incarnation: int
    is_last: bool = False


@dataclass(slots=True, eq=False)
class Child:
    """A child and what is known of it."""

    spec: ChildSpec
    address: ActorAddress
    state: Literal["down", "starting", "up", "stopping"] = "down"
    actor: Actor | None = None
    failure: BaseException | None = None
    back_off_ms: float = BACK_OFF_FIRST_MS
    failed_at_ms: float = field(default=float("-inf"))

    @property
    def is_running(self) -> bool:
        return self.state != "down"


@dataclass(slots=True)
class Step:
    """One thing to do: `begin` is True if it is done at once, False if a message will say so."""

    begin: Callable[[], bool]
    starts: Child | None = None


class Supervisor(Actor):
    """Owns the children. Runs on the loop; the system starts it and nobody restarts it."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        super().__init__()
        self._give_up = give_up
        self.children: dict[str, Child] = {}
        self._plan: deque[Step] = deque()
        self._under_way: Child | None = None
        self._pause: TimerHandle | None = None
        self._serial = 0
        self._failures_ms: deque[float] = deque()
        self._launches: list[Launch] = []
        self._shut: Shut | None = None
        self._gave_up: BaseException | None = None
        self._unclean: list[str] = []

    # --- told by the system

    @handles(Launch)
    def launch(self, message: Launch) -> None:
        """Adds children behind those that are there."""
        if self._shut is not None or self._gave_up is not None:
            message.reply(self._gave_up or RuntimeError("the system is stopping"))
            return
        for spec in message.specs:
            if spec.name in self.children:
                message.reply(ValueError(f"there is a child {spec.name} already"))
                return
            child = Child(spec, self.system.address(spec.name))
            self.children[spec.name] = child
            self._plan.append(self._start_step(child))
        self._launches.append(message)
        self._plan.append(Step(lambda: self._launched(message)))
        self._go_on()

    @handles(Ping)
    def ping(self, message: Ping) -> None:
        """Says so from the loop."""
        message.reply(f"gave up: {self._gave_up}" if self._gave_up is not None else "")

    @handles(Shut)
    def shut(self, message: Shut) -> None:
        """Drains and stops all children in reverse; ends whatever else was planned."""
        self._shut = message
        self._plan.clear()
        self._refuse_launches(RuntimeError("the system is stopping"))
        running = [child for child in self.children.values() if child.is_running]
        for child in reversed(running):
            child.address.tell(Drain())
        self._plan.extend(self._stop_step(child) for child in reversed(running))
        self._plan.append(Step(lambda: self._finished(message)))
        if self._under_way is not None and self._under_way.state == "starting":
            self._stop_step(self._under_way).begin()  # it leaves as soon as on_start has returned
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._go_on()

    # --- told by children

    @handles(Started)
    def started(self, message: Started) -> None:
        child = self._child(message.address, message.incarnation)
        if child is None or child.state != "starting":
            return
        child.state = "up"
        tell = log.debug if message.incarnation == 1 else log.info
        tell("started", actor=child.spec.name, incarnation=message.incarnation)
        self._done(child)

    @handles(Exited)
    def exited(self, message: Exited) -> None:
        child = self._child(message.address, message.incarnation)
        if child is None or child.state == "down":
            return
        was = child.state
        child.state = "down"
        child.actor = None
        child.failure = message.failure
        if message.failure is None:
            log.debug("stopped", actor=child.spec.name)
        elif self._shut is not None:
            self._unclean.append(child.spec.name)
        if self._shut is not None:
            child.address.close(f"{child.spec.name} has stopped")
        elif was == "stopping":
            pass  # for its group's sake: it is in the plan already
        elif not self._wants_restart(child):
            child.address.close(f"{child.spec.name} has stopped")
        elif self._may_restart(child, serves_peer=message.serves_peer):
            self._plan_restart(child, first=was == "starting", serves_peer=message.serves_peer)
        self._done(child)

    @handles(Proceed)
    def proceed(self, message: Proceed) -> None:
        if self._pause is not None and message.serial == self._serial:
            self._pause = None
            self._go_on()

    @handles(StopDeadline)
    def stop_deadline(self, message: StopDeadline) -> None:
        child = message.child
        actor = child.actor
        if child.state != "stopping" or actor is None or actor.incarnation != message.incarnation:
            return
        if not message.is_last:
            log.warning("late", actor=child.spec.name, deadline_ms=child.spec.stop_deadline_ms)
            child.address.tell(Stop(at_once=True, incarnation=message.incarnation))
            message.is_last = True
            self.after(LAST_DEADLINE_MS, message)
            return
        log.error("stuck", actor=child.spec.name)
        actor.dispatcher.abandon(actor)
        self._unclean.append(child.spec.name)
        child.state = "down"
        child.actor = None
        if self._shut is None:
            # a second owner beside the one that is stuck would be worse than none
            self._stop_trying(RuntimeError(f"{child.spec.name} did not stop in time"))
        self._done(child)

    # --- the plan

    def _go_on(self) -> None:
        while self._plan and self._under_way is None and self._pause is None:
            if not self._plan.popleft().begin():
                return

    def _done(self, child: Child) -> None:
        if self._under_way is child:
            self._under_way = None
        self._go_on()

    def _start_step(self, child: Child) -> Step:
        def start() -> bool:
            if child.is_running:
                return True
            self._under_way = child
            child.state = "starting"
            try:
                child.actor = child.spec.factory(self.system)
                where = child.spec.where or child.actor.where
                self.system.launch(child.actor, child.address, where, parent=self.address)
            except Exception as error:  # an __init__ that failed: like on_start
                child.address.incarnation += 1
                incarnation = child.address.incarnation
                log.error("not made", actor=child.spec.name, exc_info=error)
                self.address.tell(Exited(child.address, incarnation, error))
            return False

        return Step(start, child)

    def _stop_step(self, child: Child) -> Step:
        def stop() -> bool:
            if not child.is_running:
                return True
            self._under_way = child
            child.state = "stopping"
            child.address.tell(Stop(incarnation=child.address.incarnation))
            deadline = StopDeadline(child, child.address.incarnation)
            self.after(child.spec.stop_deadline_ms, deadline)
            return False

        return Step(stop)

    def _pause_step(self, ms: float) -> Step:
        def pause() -> bool:
            self._serial += 1
            self._pause = self.after(ms, Proceed(self._serial))
            return False

        return Step(pause)

    def _launched(self, message: Launch) -> bool:
        self._launches.remove(message)
        message.reply(None)
        return True

    def _finished(self, message: Shut) -> bool:
        for child in self.children.values():
            child.address.close(f"{child.spec.name} has stopped")
        message.reply(self._unclean)
        return True

    # --- restarts

    def _child(self, address: ActorAddress, incarnation: int) -> Child | None:
        child = self.children.get(address.name)
        if child is None or child.address.incarnation != incarnation:
            return None
        return child

    def _wants_restart(self, child: Child) -> bool:
        restart = child.spec.restart
        return restart == "permanent" or (restart == "transient" and child.failure is not None)

    def _may_restart(self, child: Child, *, serves_peer: bool) -> bool:
        """Count the failure; return False if there were too many.

        A failure on what a peer sent counts for nothing: no peer may end this process, nor make
        the pauses longer. That peer loses its connection (docs/decisions/0047).
        """
        if isinstance(child.failure, child.spec.fatal):
            self._stop_trying(child.failure)
            return False
        if serves_peer:
            return True
        now_ms = self.system.clock.monotonic_ms()
        if now_ms - child.failed_at_ms > FAILURES_WITHIN_MS:
            child.back_off_ms = BACK_OFF_FIRST_MS
        child.failed_at_ms = now_ms
        failures = self._failures_ms
        failures.append(now_ms)
        while failures[0] < now_ms - FAILURES_WITHIN_MS:
            failures.popleft()
        if len(failures) > FAILURES_MAX:
            self._stop_trying(child.failure or RuntimeError(f"{child.spec.name} keeps ending"))
            return False
        return True

    def _plan_restart(self, child: Child, *, first: bool, serves_peer: bool) -> None:
        """Plans to stop the group, to pause, and to start it; at once or behind the plan."""
        pause_ms = BACK_OFF_FIRST_MS if serves_peer else child.back_off_ms
        log.warning("restarting", actor=child.spec.name, in_ms=pause_ms)
        pause = self._pause_step(pause_ms)
        if not serves_peer:
            child.back_off_ms = min(child.back_off_ms * 2, BACK_OFF_MAX_MS)
        if first:  # it was being started: everything behind it in the plan waits for it
            self._plan.extendleft([self._start_step(child), pause])
            return
        if any(step.starts is child for step in self._plan):
            return  # its group is being restarted
        group = [child]
        if child.spec.group is not None:
            group = [c for c in self.children.values() if c.spec.group == child.spec.group]
        self._plan.extend(self._stop_step(other) for other in reversed(group) if other is not child)
        self._plan.append(pause)
        self._plan.extend(self._start_step(other) for other in group)

    def _stop_trying(self, failure: BaseException) -> None:
        if self._gave_up is not None:
            return
        self._gave_up = failure
        self._plan.clear()
        log.critical("gave up", error=f"{type(failure).__name__}: {failure}")
        self._refuse_launches(failure)
        self._give_up(f"{type(failure).__name__}: {failure}")

    def _refuse_launches(self, failure: BaseException) -> None:
        launches, self._launches = self._launches, []
        for message in launches:
            message.reply(failure)

    def on_failure(self, *_: object) -> None:
        self._give_up(f"the supervisor failed: {self.remark()}")
        self.on_stop()

    def on_stop(self) -> None:
        """Who still waits for an answer is told that there will be none."""
        failure = self.failure or RuntimeError("the loop has ended")
        self._refuse_launches(failure)
        refuse(self._shut, f"{type(failure).__name__}: {failure}")
