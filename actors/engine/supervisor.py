"""Starts children in order, restarts failed ones, and stops all in reverse order.

Owns: the children.
Receives: Started, Exited (from each child and its dispatcher); Launch, Ping, Shut (from
ActorSystem).
Sends: Drain, Stop (to children).

It does one thing at a time. Its plan is a queue of steps. The next step begins when the last one is
done, as Started, Exited or a timer reports. A child that fails during another step is restarted
after that step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from actors.engine.actor import Actor, Drain, Exited, Started, Stop, TimerHandle, Where, handles
from actors.engine.actor_address import ActorAddress, Question
from actors.engine.inbox import refuse
from actors.engine.interfaces import System
from actors.engine.messages import ChildAddress
from actors.engine.server_log import get_logger

log = get_logger(__name__)

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]

BACK_OFF_FIRST_MS = 10.0
BACK_OFF_MAX_MS = 1_000.0
"""A restart waits 10 ms, then twice as long each time; 10 ms again after a quiet period."""

LAST_DEADLINE_MS = 1_000.0
"""Time after the deadline of a stop, for a thread that can still end at once."""

FAILURES_MAX = 5
FAILURES_WITHIN_MS = 10_000.0
"""More failures within that time, of all children together, make the supervisor give up."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Plan for an actor: how to make it, where it runs, and what follows its end."""

    name: str
    factory: Callable[[System], Actor]
    where: Where | None = None
    """None: as its class declares."""
    restart: Restart = "permanent"
    """permanent: whenever it ends; transient: when it fails; temporary: never."""
    group: str | None = None
    """Group that restarts together: stopped in reverse order, started in order.
    """
    stop_deadline_ms: float = 5_000.0
    fatal: tuple[type[BaseException], ...] = ()
    """Failures that a restart cannot repair: the supervisor gives up at once."""


@dataclass(slots=True)
class Launch(Question):
    """Start these children in order; `reply` with None, or with the failure."""

    specs: Sequence[ChildSpec]
    reply: Callable[[BaseException | None], None]


@dataclass(slots=True)
class Shut(Question):
    """Stop all children; `reply` with the names of those that failed or hung."""

    reply: Callable[[list[str]], None]


@dataclass(slots=True)
class Ping(Question):
    """Check that the loop runs; `reply` with the reason why the supervisor gave up, or ""."""

    reply: Callable[[str], None]


@dataclass(slots=True)
class Proceed:
    """The pause of step `serial` is over."""

    serial: int


@dataclass(slots=True)
class StopDeadline:
    """The child's deadline to end has passed."""

    child: "Child"
    incarnation: int
    is_last: bool = False


@dataclass(slots=True, eq=False)
class Child:
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
    """One step of the plan; `begin` returns whether it is done, else a message will report it."""

    begin: Callable[[], bool]
    starts: Child | None = None


class Supervisor(Actor):
    """Actor that owns the children. Runs on the loop; the system starts it once."""

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

    # --- messages from the system

    @handles(Launch)
    def launch(self, message: Launch) -> None:
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
        message.reply(f"gave up: {self._gave_up}" if self._gave_up is not None else "")

    @handles(Shut)
    def shut(self, message: Shut) -> None:
        """Drain and stop all children in reverse order; drop all other steps of the plan."""
        self._shut = message
        self._plan.clear()
        self._refuse_launches(RuntimeError("the system is stopping"))
        running = [child for child in self.children.values() if child.is_running]
        for child in reversed(running):
            child.address.tell(Drain())
        self._plan.extend(self._stop_step(child) for child in reversed(running))
        self._plan.append(Step(lambda: self._finished(message)))
        if self._under_way is not None and self._under_way.state == "starting":
            self._stop_step(self._under_way).begin()  # it ends as soon as on_start has returned
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._go_on()

    # --- messages from children

    @handles(Started)
    def started(self, message: Started) -> None:
        child = self._child(message.address, message.incarnation)
        if child is None or child.state != "starting":
            return
        child.state = "up"
        tell = log.debug if message.incarnation == 1 else log.info
        tell("actor started", actor=child.spec.name, incarnation=message.incarnation)
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
            log.debug("actor stopped", actor=child.spec.name)
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
            log.warning(
                "actor stop overdue",
                actor=child.spec.name,
                deadline_ms=child.spec.stop_deadline_ms,
            )
            child.address.tell(Stop(at_once=True, incarnation=message.incarnation))
            message.is_last = True
            self.after(LAST_DEADLINE_MS, message)
            return
        log.error("actor stop timed out", actor=child.spec.name)
        actor.dispatcher.abandon(actor)
        self._unclean.append(child.spec.name)
        child.state = "down"
        child.actor = None
        if self._shut is None:
            # a second owner beside the hanging one would be worse than no owner
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
            except Exception as error:  # a failed __init__ counts like a failed on_start
                child.address.incarnation += 1
                incarnation = child.address.incarnation
                log.error("actor creation failed", actor=child.spec.name, exc_info=error)
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

    def _child(self, address: ChildAddress, incarnation: int) -> Child | None:
        child = self.children.get(address.name)
        if child is None or child.address.incarnation != incarnation:
            return None
        return child

    def _wants_restart(self, child: Child) -> bool:
        restart = child.spec.restart
        return restart == "permanent" or (restart == "transient" and child.failure is not None)

    def _may_restart(self, child: Child, *, serves_peer: bool) -> bool:
        """Count the failure; return False if there were too many.

        A failure on what a peer sent is not counted: no peer may end this process, nor make the
        pauses longer. That peer loses its connection (docs/decisions/0047).
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
        """Plan to stop the group, to pause, and to start it.

        A child that failed in its start step goes first, because the rest of the plan waits for it.
        """
        pause_ms = BACK_OFF_FIRST_MS if serves_peer else child.back_off_ms
        log.warning("actor restart scheduled", actor=child.spec.name, in_ms=pause_ms)
        pause = self._pause_step(pause_ms)
        if not serves_peer:
            child.back_off_ms = min(child.back_off_ms * 2, BACK_OFF_MAX_MS)
        if first:  # it was being started: everything after it in the plan waits for it
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
        log.critical("supervisor gave up", error=f"{type(failure).__name__}: {failure}")
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
        failure = self.failure or RuntimeError("the loop has ended")
        self._refuse_launches(failure)
        refuse(self._shut, f"{type(failure).__name__}: {failure}")
