"""Dispatchers, which run an actor on the loop or on a thread of its own.

`Stepper` is the common part of the loop (loop.py) and of the simulation in tests: both run one
message at a time. A thread is Pykka's own.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Thread, current_thread, main_thread
from typing import ClassVar, NamedTuple

from pykka import ActorRegistry

from actors.engine.actor import Actor, Exited, blame
from actors.engine.actor_address import ActorAddress, Receiver
from actors.engine.inbox import Mail, asker_of, refuse
from actors.engine.interfaces import HasFileno, SocketHandler, System
from actors.engine.server_log import get_logger
from actors.engine.timer import TimerHandle, Timers

log = get_logger(__name__)

SLOW_HANDLER_MS = 50.0
"""Limit for a handler on the loop, which blocks all other actors; a longer one is logged."""


class Watch(NamedTuple):
    """Handler of a file descriptor, and the actor that fails if the handler fails."""

    handler: SocketHandler
    owner: Actor


@dataclass(slots=True)
class LongestHandler:
    actor: str = ""
    message: str = ""
    ms: float = 0.0


ENDING_MAX = 64
"""Threads that end at the same time; a system has some twenty."""


class ThreadDispatcher:
    """Dispatcher with one Pykka thread per actor, which drains its inbox in batches."""

    gives_threads = True

    def __init__(self, system: System) -> None:
        self._system = system
        self._ending: deque[Thread] = deque(maxlen=ENDING_MAX)

    def bind(self, actor: Actor) -> None:
        address = actor.address
        mail = address.move_to_thread(self._system.loop.take_waiting(address))
        actor.actor_inbox.read_from(mail, wants_batch_end=actor.wants_batch_end)
        mail.up()
        ActorRegistry.register(actor.actor_ref)

    def begin(self, actor: Actor) -> None:
        raise AssertionError("a thread begins by itself")

    def stop_asked(self, actor: Actor) -> None:
        pass  # Actor checks after each message

    def gone(self, actor: Actor) -> None:
        self._ending.append(current_thread())
        address = actor.address
        if actor.incarnation != address.incarnation or actor not in self._system.live:
            return  # it was abandoned
        queue = address.own_queue()
        assert queue is not None
        queue.down()
        self._system.live.discard(actor)
        report_exit(actor)

    def abandon(self, actor: Actor) -> None:
        ActorRegistry.unregister(actor.actor_ref)
        actor.actor_stopped.set()
        self._system.live.discard(actor)
        actor.address.close(f"{actor.name} did not stop in time")

    def must_raise(self, error: BaseException | None) -> bool:
        return False

    def join(self, timeout_s: float) -> None:
        """Wait for threads whose actors have ended: they still have a few steps to go."""
        for thread in [*self._ending]:
            thread.join(timeout_s)


def report_exit(actor: Actor) -> None:
    """Send Exited to the parent; close the address if the actor is never restarted."""
    address = actor.address
    if address.temporary:
        address.close(actor.remark())
    if address.parent is not None:
        address.parent.tell(
            Exited(
                address, actor.incarnation, actor.failure, actor.failed_on, actor.failed_for_peer
            )
        )


@dataclass(slots=True)
class Begin:
    actor: Actor


@dataclass(slots=True)
class Arm:
    """Request from another thread to arm a timer."""

    timer: TimerHandle


class Stepper:
    """Dispatcher that runs actors one message at a time, all on the same thread."""

    gives_threads = False
    wants_batch_end: ClassVar[bool] = False

    def __init__(self, system: System, mail: Mail, name: str) -> None:
        self.system = system
        self.post = mail
        self.timers = Timers()
        self.longest = LongestHandler()
        self.slow_handler_count = 0
        self.slow_handler_ms = SLOW_HANDLER_MS
        self.round_count = 0
        self.address = ActorAddress(name, mail, self)
        self._stopping: dict[Actor, None] = {}
        self._watches: dict[int, Watch] = {}

    @property
    def here(self) -> bool:
        """Whether the caller runs on the thread of these actors."""
        raise NotImplementedError

    def end(self, timeout_s: float) -> bool:
        """End the dispatcher after the last actor; return False if a handler blocks it."""
        raise NotImplementedError

    def depths(self) -> Counter[ActorAddress]:
        raise NotImplementedError

    def take_waiting(self, address: ActorAddress) -> list[object]:
        raise NotImplementedError

    def put_first(self, address: ActorAddress, messages: list[object]) -> None:
        """Put messages before all others that wait for this actor."""
        raise NotImplementedError

    # --- the life of an actor

    def bind(self, actor: Actor) -> None:
        assert actor.address.own_queue() is None, "an address stays with its dispatcher"

    def begin(self, actor: Actor) -> None:
        self.address.tell(Begin(actor))

    def _on_begin(self, message: Begin) -> None:
        actor = message.actor
        if actor not in self.system.live:
            return  # abandoned before it began
        actor._actor_loop_setup()
        if actor.actor_stopped.is_set():
            self.gone(actor)
            return
        address = actor.address
        self.put_first(address, address.go_up(actor))

    def stop_asked(self, actor: Actor) -> None:
        self._stopping[actor] = None

    def _stop_the_ready(self) -> None:
        for actor in tuple(self._stopping):
            self._stop_if_ready(actor)

    def _stop_if_ready(self, actor: Actor) -> None:
        try:
            if actor.must_stop():
                self._end(actor)
        except BaseException as error:
            self._failed(actor, error, None)

    def _end(self, actor: Actor) -> None:
        actor._stop()
        self.gone(actor)

    def abandon(self, actor: Actor) -> None:
        self._end_now(actor)  # it does not hang: its second Stop waits behind a backlog

    def _end_now(self, actor: Actor) -> None:
        actor.stop_at_once = True
        self._stop_if_ready(actor)

    def _end_all(self) -> None:
        """End the remaining actors: orphans of stopped parents, then the supervisor."""
        live = [*self.system.live]  # a copy, because threads may leave the set meanwhile
        left = [actor for actor in live if actor.dispatcher is self]
        for actor in sorted(left, key=lambda actor: actor is self.system.supervisor.receiver):
            if actor.address is not self.system.supervisor:
                log.warning("orphan actor ended", actor=actor.name)
            self._end_now(actor)
            actor.address.close(f"{actor.name} has stopped")  # no actor is restarted any more

    def gone(self, actor: Actor) -> None:
        live = self.system.live
        if actor not in live:
            return
        live.discard(actor)
        self._stopping.pop(actor, None)
        for fd in actor.watched:
            watch = self._watches.get(fd)
            if watch is not None and watch.owner is actor:
                self._unwatch_fd(fd)
        address = actor.address
        # Searching for the actor's messages takes time for all messages of all actors, and ten
        # thousand actors may end at once. Messages for an actor that is never restarted are refused
        # on delivery.
        waiting = [] if address.temporary else self.take_waiting(address)
        if actor.failure is None:
            address.go_down(waiting)
        else:
            address.go_down([])
            for message in waiting:
                refuse(message, actor.remark())
        report_exit(actor)

    def _socket_failed(self, owner: Actor, error: BaseException) -> None:
        """Fail the actor that owns a socket: a peer's bytes cannot end the process."""
        owner.failed_for_peer = True
        self._failed(owner, error, None)

    def _failed(self, receiver: Receiver, error: BaseException, message: object) -> None:
        """Fail `receiver` after its handler raised; `message` is what it handled, or None."""
        if self.must_raise(error):
            raise error
        if not isinstance(receiver, Actor):
            log.critical("dispatcher failed", exc_info=error)
            self.system.give_up(f"the dispatcher failed: {type(error).__name__}: {error}")
            return
        if message is not None:
            if isinstance(error, Exception) and receiver.survives(message):
                receiver.fail_message(message, error)
                return
            receiver.failed_for_peer = asker_of(message) is not None
            if type(message) not in receiver.handlers:
                error = TypeError(
                    f"{type(receiver).__name__} does not handle {type(message).__name__}"
                )
            receiver.failed_on = type(message)
        receiver._handle_failure(type(error), error, error.__traceback__)
        refuse(message, receiver.remark())
        try:
            receiver.on_failure(type(error), error, error.__traceback__)
        except Exception:  # the actor has failed already; the rest must be answered all the same
            log.exception("on_failure failed", actor=receiver.name)
        blame(asker_of(message))
        self.gone(receiver)

    def must_raise(self, error: BaseException | None) -> bool:
        """Return whether an exception must leave the loop, as the user's KeyboardInterrupt must."""
        return not isinstance(error, Exception) and current_thread() is main_thread()

    def join(self, timeout_s: float) -> None:
        pass  # all on one thread

    def _slow(self, receiver: Receiver, message: str, ms: float) -> None:
        name = receiver.name if isinstance(receiver, Actor) else type(receiver).__name__
        if ms > self.longest.ms:
            self.longest = LongestHandler(name, message, ms)
        if ms > self.slow_handler_ms:
            self.slow_handler_count += 1
            log.warning("slow handler", actor=name, message=message, ms=round(ms, 1))

    def take_longest(self) -> LongestHandler:
        """Return and reset the slowest handler call. Any thread."""
        found, self.longest = self.longest, LongestHandler()
        return found

    @property
    def native_thread_id(self) -> int:
        """Kernel's id of the dispatcher's own thread; 0 if it has no thread."""
        return 0

    def tell_in_next_round(self, address: ActorAddress, message: object) -> None:
        """Send like `address.tell`, but serve the sockets first; for long work in pieces."""
        address.tell(message)

    # --- timers

    def arm(self, timer: TimerHandle) -> None:
        raise NotImplementedError

    def _on_arm(self, message: Arm) -> None:
        self.timers.arm(message.timer)

    # --- sockets

    def watch(
        self, sock: HasFileno, events: int, handler: SocketHandler, *, owner: Actor | None = None
    ) -> None:
        actor = owner if owner is not None else handler
        assert isinstance(actor, Actor), "a watch belongs to an actor"
        fd = sock.fileno()
        self._watches[fd] = Watch(handler, actor)
        if isinstance(actor.watched, set):
            actor.watched.add(fd)
        elif fd not in actor.watched:
            actor.watched = {*actor.watched, fd} if actor.watched else (fd,)
        self._watch_fd(fd, events)

    def modify(self, sock: HasFileno, events: int) -> None:
        raise NotImplementedError

    def unwatch(self, sock: HasFileno) -> None:
        fd = sock.fileno()
        watch = self._watches.get(fd)
        if watch is not None:
            owner = watch.owner
            if isinstance(owner.watched, set):
                owner.watched.discard(fd)
            else:
                owner.watched = ()
            self._unwatch_fd(fd)

    def _watch_fd(self, fd: int, events: int) -> None:
        raise NotImplementedError

    def _unwatch_fd(self, fd: int) -> None:
        raise NotImplementedError

    handlers: ClassVar[Mapping[type, Callable[..., object]]] = {Begin: _on_begin, Arm: _on_arm}
