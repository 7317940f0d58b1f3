"""The base class of all actors: state, an address, and one handler per message type.

A real Pykka actor, bound to a dispatcher when its system starts it. These seams of Pykka are used,
each with a test that fails loudly when an upgrade moves it:

    _create_actor_inbox      an Inbox that leads to the address, which outlives the actor
    _create_future           a future that raises on the loop instead of stopping it for ever
    _start_actor_loop        on a thread: Pykka's own; else the dispatcher runs the steps below
    _actor_loop              on a thread: reports the end, however it came
    _actor_loop_setup        on_start; a failure there counts like any other
    _handle_receive          dispatch by type; a BaseException must not stop every actor
    _actor_loop_teardown     refuses, instead of dropping, what still waits
    _handle_failure          the one method called on every failure path: keeps the failure

Only actors on a thread are in Pykka's registry: it is a list searched from the front, and ten
thousand connections would each pay for all the others. A system knows all of its own actors.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from pykka import ActorRegistry, ThreadingActor
from pykka._envelope import Envelope
from structlog import get_logger

from actors.engine.actor_address import ActorAddress, Handler
from actors.engine.future import GuardedFuture
from actors.engine.inbox import BatchEnd, Inbox, Refusable, Stop, asker_of, refuse
from actors.engine.interfaces import ActorDispatcher, System
from actors.engine.timer import TimerHandle
from storage.errors import StoreError

__all__ = [
    "Actor",
    "ActorAddress",
    "BatchEnd",
    "Drain",
    "Exited",
    "Refusable",
    "Started",
    "Stop",
    "TimerHandle",
    "Where",
    "handles",
]

log = get_logger(__name__)

Where: TypeAlias = Literal["loop", "thread"]
A = TypeVar("A", bound="Actor")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Drain:
    """The system is about to stop: `on_drain` is called."""


@dataclass(frozen=True, slots=True)
class Started:
    """Told to the parent: `on_start` has returned, the actor handles its mail now."""

    address: ActorAddress
    incarnation: int


@dataclass(frozen=True, slots=True)
class Exited:
    """Told to the parent: the actor is gone; `failure` is None when it stopped as asked."""

    address: ActorAddress
    incarnation: int
    failure: BaseException | None = None
    message_type: type | None = None
    """What it was handling when it failed; None for on_start, on_stop and sockets."""
    serves_peer: bool = False
    """Whether that message carried a peer's request or answer."""

    @property
    def name(self) -> str:
        return self.address.name


FRAMES_SHOWN = 4
REMARK_CHARS_MAX = 1000
"""An exception's text may quote all that a peer sent."""


class Interrupted(Exception):
    """Stands for a BaseException of a handler, which Pykka would take as the end of everything."""


def handles(
    message_type: type[M], *, reads_only: bool = False
) -> Callable[[Callable[[A, M], None]], Callable[[A, M], None]]:
    """Mark a method as the handler of exactly this type of message (not of its subclasses).

    `reads_only` promises that it changes nothing of its actor: if it fails, its message is refused
    and the actor goes on (docs/decisions/0047).
    """

    def mark(method: Callable[[A, M], None]) -> Callable[[A, M], None]:
        method.handles = message_type  # type: ignore[attr-defined]
        method.reads_only = reads_only  # type: ignore[attr-defined]
        return method

    return mark


class Actor(ThreadingActor):
    """State, an address, and one handler per message type.

    Open files and sockets in `on_start`, which runs where the handlers run; `__init__` runs in the
    thread that creates the actor and knows no system yet.
    """

    where: ClassVar[Where] = "loop"
    """The dispatcher, unless the child spec names another. Whatever blocks belongs on a thread."""

    use_daemon_thread = True  # past the deadline of a stop the process must be able to exit

    handlers: ClassVar[dict[type, Handler]] = {}
    wants_batch_end: ClassVar[bool] = False
    reading_handlers: ClassVar[frozenset[type]] = frozenset()
    """The message types whose handlers change nothing of the actor."""
    _handler_names: ClassVar[dict[type, str]] = {}

    system: System
    """Set before `on_start`: `.clock`, `.disk`, `.loop`, `.address(name)`."""
    address: ActorAddress
    dispatcher: ActorDispatcher
    actor_inbox: Inbox
    incarnation: int = 0

    stopping: bool = False
    """Stop has arrived; `can_stop` decides when."""
    stop_at_once: bool = False
    """`can_stop` is not asked any more."""
    failure: BaseException | None = None
    failed_on: type | None = None
    failed_for_peer: bool = False
    watched: tuple[()] | tuple[int] | set[int] = ()
    """File descriptors that the loop watches for this actor, a set if there are more than one; kept
    by the loop."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {
            method.handles: name
            for name, method in vars(cls).items()
            if isinstance(getattr(method, "handles", None), type)
        }
        cls._handler_names = {**cls._handler_names, **own}
        # by name, so that a method overridden without @handles is the one that is called
        cls.handlers = {kind: getattr(cls, name) for kind, name in cls._handler_names.items()}
        cls.wants_batch_end = BatchEnd in cls.handlers
        reading = {kind for kind, name in own.items() if vars(cls)[name].reads_only}
        cls.reading_handlers = (cls.reading_handlers - own.keys()) | reading

    # --- what an actor may override, besides its handlers

    def on_drain(self) -> None:
        """The system is about to stop: take no new work, answer those who only wait."""

    def can_stop(self) -> bool:
        """Asked after Stop, and then after everything that happens, until it is True.

        False while something is unfinished: mail and sockets are served meanwhile. `on_stop`
        follows at once when it is True, or when the deadline of the stop has passed.
        """
        return True

    # --- what an actor may call

    @property
    def name(self) -> str:
        return self.address.name

    def after(self, delay_ms: float, message: object) -> TimerHandle:
        """Tells this actor `message` in `delay_ms`, unless it has ended by then."""
        due_ms = self.system.clock.monotonic_ms() + delay_ms
        timer = TimerHandle(self.address, message, due_ms)
        self.system.loop.arm(timer)
        return timer

    def every(self, interval_ms: float, message: object) -> TimerHandle:
        """Tells this actor `message` every `interval_ms`, the first time after one interval."""
        assert interval_ms > 0, interval_ms
        due_ms = self.system.clock.monotonic_ms() + interval_ms
        timer = TimerHandle(self.address, message, due_ms, interval_ms)
        self.system.loop.arm(timer)
        return timer

    def stop(self) -> None:
        """Stops this actor behind the mail that is waiting; as if its supervisor had asked."""
        self.address.tell(Stop())

    def must_stop(self) -> bool:
        """Whether a stopping actor has come to its end. For dispatchers."""
        return self.stop_at_once or self.can_stop()

    # --- failures

    def survives(self, message: object) -> bool:
        """Return whether a handler that failed on `message` cannot have changed this actor."""
        return type(message) in self.reading_handlers

    def fail_message(self, message: object, error: Exception) -> None:
        """Refuse `message`, whose handler failed; log the bug. The actor goes on."""
        self.address.failed += 1
        remark, peer, kind = failure_text(error), asker_of(message), type(message).__name__
        self.system.rarely.warn(
            "request handler failed",
            of=(self.name, kind),
            actor=self.name,
            message=kind,
            peer=getattr(peer, "remote", None),
            error=remark,
            at=raised_at(error),
            hint="this is a bug: report this line",
        )
        refuse(message, remark)
        blame(peer)

    # --- messages every actor knows

    def _on_stop(self, message: Stop) -> None:
        if message.incarnation not in (None, self.incarnation):
            return
        self.stopping = True
        self.stop_at_once = self.stop_at_once or message.at_once
        self.dispatcher.stop_asked(self)

    def _on_drain(self, _: Drain) -> None:
        self.on_drain()

    def _on_envelope(self, envelope: Envelope[Any]) -> None:
        """Mail through a Pykka ref, off the threads: `ref.ask(…)`, `ref.stop()`, a proxy."""
        try:
            response = super()._handle_receive(envelope.message)
            if envelope.reply_to is not None:
                envelope.reply_to.set(response)
        except Exception:
            if envelope.reply_to is not None:
                envelope.reply_to.set_exception()
            raise
        if self.actor_stopped.is_set():
            self.dispatcher.gone(self)

    def on_receive(self, message: Any) -> None:
        self.handler_of(message)(self, message)

    @classmethod
    def handler_of(cls, message: object) -> Handler:
        """The handler of a message; TypeError if there is none, which is a bug of the teller."""
        try:
            return cls.handlers[type(message)]
        except KeyError:
            raise TypeError(f"{cls.__name__} does not handle {type(message).__name__}") from None

    # --- Pykka's seams

    @staticmethod
    def _create_actor_inbox() -> Inbox:
        return Inbox()

    @staticmethod
    def _create_future() -> GuardedFuture[Any]:
        return GuardedFuture()

    def _start_actor_loop(self) -> None:
        if self.dispatcher.gives_threads:
            super()._start_actor_loop()
        else:
            self.dispatcher.begin(self)

    def _actor_loop(self) -> None:
        try:
            super()._actor_loop()
        except BaseException:  # the loop itself broke
            self._handle_failure(*sys.exc_info())
            self._actor_loop_teardown()
        finally:
            self.dispatcher.gone(self)

    def _actor_loop_setup(self) -> None:
        try:
            super()._actor_loop_setup()
        except BaseException:
            self._handle_failure(*sys.exc_info())
            if self.dispatcher.must_raise(self.failure):
                raise
        if not self.actor_stopped.is_set() and self.address.parent is not None:
            self.address.parent.tell(Started(self.address, self.incarnation))

    def _handle_receive(self, message: Any) -> Any:
        handler = self.handlers.get(type(message))
        try:
            if handler is None:
                response = super()._handle_receive(message)
            else:
                response = handler(self, message)
                if type(message) is not BatchEnd:
                    self.address.handled += 1
            if self.stopping and not self.actor_stopped.is_set() and self.must_stop():
                self._stop()
        except BaseException as error:
            if isinstance(error, Exception) and self.survives(message):
                self.fail_message(message, error)
                return None
            self.failed_on = type(message)
            self.failed_for_peer = asker_of(message) is not None
            self._handle_failure(type(error), error, error.__traceback__)
            refuse(message, self.remark())
            blame(asker_of(message))
            if isinstance(error, Exception):
                raise
            raise Interrupted(self.remark()) from error
        return response

    def _actor_loop_teardown(self) -> None:
        queue = self.address.own_queue()
        if queue is not None:
            queue.down()
            if self.failure is not None:
                queue.refuse_waiting(self.remark())

    def _handle_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        if self.failure is not None:
            return
        self.failure = exception_value
        log.error(
            "actor failed",
            actor=self.name,
            message=self.failed_on.__name__ if self.failed_on is not None else None,
            error=self.remark(),
            exc_info=None if isinstance(exception_value, StoreError) else exception_value,
        )

    def remark(self) -> str:
        """What those are told whose messages this actor can no longer handle."""
        if self.failure is None:
            return f"{self.name} has stopped"
        return failure_text(self.failure)


def failure_text(error: BaseException) -> str:
    """Return the type and the text of `error`, REMARK_CHARS_MAX characters at most."""
    return f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]


def raised_at(error: BaseException) -> str:
    """Return file and line of the innermost frames of `error`, the one that raised it first."""
    frames = extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))


def blame(peer: Any) -> None:
    """Tell a peer's connection that a handler failed on what it sent; None: no peer sent it."""
    note = getattr(peer, "note_failure", None)
    if note is not None:
        note()


def _base_handlers() -> dict[type, str]:
    return {Stop: "_on_stop", Drain: "_on_drain", Envelope: "_on_envelope"}


Actor._handler_names = _base_handlers()
Actor.handlers = {kind: getattr(Actor, name) for kind, name in Actor._handler_names.items()}
