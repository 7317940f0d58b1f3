"""Base class of all actors.

An actor has state, an address, and one handler per message type. It is a Pykka actor that its
system binds to a dispatcher at the start. These methods override internals of Pykka; each has a
test that fails when an upgrade of Pykka moves them:

    _create_actor_inbox      an Inbox that leads to the address, which outlives the actor
    _create_future           a future that raises on the loop instead of blocking it for ever
    _start_actor_loop        on a thread: Pykka's own; else the dispatcher runs the steps below
    _actor_loop              on a thread: reports every kind of end
    _actor_loop_setup        on_start; a failure there counts like any other
    _handle_receive          dispatch by type; a BaseException must not stop every actor
    _actor_loop_teardown     refuses the messages that wait, instead of dropping them
    _handle_failure          called once on every failure path: keeps the failure

Only actors on a thread are in Pykka's registry. It is a list that is searched from the front, so
ten thousand connections would each pay for all others. A system knows all of its own actors.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from pykka import ActorRegistry, ThreadingActor
from pykka._envelope import Envelope

from actors.engine.actor_address import ActorAddress, GuardedFuture, Handler
from actors.engine.inbox import Inbox, asker_of, refuse
from actors.engine.interfaces import ActorDispatcher, System
from actors.engine.messages import AskFigures, BatchEnd, Drain, Exited, Started, Stop
from actors.engine.server_log import get_logger
from actors.engine.timer import TimerHandle
from storage.errors import StoreError, reason_of

__all__ = [
    "Actor",
    "ActorAddress",
    "AskFigures",
    "BatchEnd",
    "Drain",
    "Exited",
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


FRAMES_SHOWN = 4
REMARK_CHARS_MAX = 1000
"""Limit because an exception's text may quote all that a peer sent."""


class Interrupted(Exception):
    """Replacement for a handler's BaseException, which would end all actors of Pykka."""


def handles(
    message_type: type[M], *, reads_only: bool = False
) -> Callable[[Callable[[A, M], None]], Callable[[A, M], None]]:
    """Mark a method as the handler of exactly this message type, not of its subclasses.

    `reads_only` promises that the handler changes nothing of its actor. If such a handler fails,
    its message is refused and the actor goes on (docs/decisions/0047).
    """

    def mark(method: Callable[[A, M], None]) -> Callable[[A, M], None]:
        method.handles = message_type  # type: ignore[attr-defined]
        method.reads_only = reads_only  # type: ignore[attr-defined]
        return method

    return mark


class Actor(ThreadingActor):
    """State, an address, and one handler per message type.

    Open files and sockets in `on_start`, which runs where the handlers run. `__init__` runs in the
    thread that creates the actor, and has no system yet.
    """

    where: ClassVar[Where] = "loop"
    """The dispatcher, unless the child spec names another. An actor that blocks needs a thread."""

    use_daemon_thread = True  # the process must be able to exit past the deadline of a stop

    handlers: ClassVar[dict[type, Handler]] = {}
    wants_batch_end: ClassVar[bool] = False
    reading_handlers: ClassVar[frozenset[type]] = frozenset()
    """Types of messages that change nothing of the actor."""
    _handler_names: ClassVar[dict[type, str]] = {}

    system: System
    """Set before `on_start`: `.clock`, `.disk`, `.loop`, `.address(name)`."""
    address: ActorAddress
    dispatcher: ActorDispatcher
    actor_inbox: Inbox
    incarnation: int = 0

    stopping: bool = False
    """Stop has arrived; `can_stop` decides when the actor ends."""
    stop_at_once: bool = False
    """The actor ends without a further call of `can_stop`."""
    failure: BaseException | None = None
    failed_on: type | None = None
    failed_for_peer: bool = False
    watched: tuple[()] | tuple[int] | set[int] = ()
    """Descriptors that the loop watches for this actor; kept by the loop, a set if several."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {
            method.handles: name
            for name, method in vars(cls).items()
            if isinstance(getattr(method, "handles", None), type)
        }
        cls._handler_names = {**cls._handler_names, **own}
        # By name, so that a method overridden without @handles is called.
        cls.handlers = {kind: getattr(cls, name) for kind, name in cls._handler_names.items()}
        cls.wants_batch_end = BatchEnd in cls.handlers
        reading = {kind for kind, name in own.items() if vars(cls)[name].reads_only}
        cls.reading_handlers = (cls.reading_handlers - own.keys()) | reading

    # --- what an actor may override, besides its handlers

    def on_drain(self) -> None:
        """Take no new work and answer waiting requests: the system is about to stop."""

    def can_stop(self) -> bool:
        """Return whether the actor has finished its work.

        Called after Stop, and then after every event, until it is True. While it is False, messages
        and sockets are served. `on_stop` follows at once when it is True, or at the deadline of the
        stop.
        """
        return True

    # --- what an actor may call

    @property
    def name(self) -> str:
        return self.address.name

    def after(self, delay_ms: float, message: object) -> TimerHandle:
        """Send `message` to this actor in `delay_ms`, unless it has ended by then."""
        due_ms = self.system.clock.monotonic_ms() + delay_ms
        timer = TimerHandle(self.address, message, due_ms)
        self.system.loop.arm(timer)
        return timer

    def every(self, interval_ms: float, message: object) -> TimerHandle:
        """Send `message` to this actor every `interval_ms`, first after one interval."""
        assert interval_ms > 0, interval_ms
        due_ms = self.system.clock.monotonic_ms() + interval_ms
        timer = TimerHandle(self.address, message, due_ms, interval_ms)
        self.system.loop.arm(timer)
        return timer

    def stop(self) -> None:
        """Stop this actor after the messages in its inbox, as if its supervisor had asked."""
        self.address.tell(Stop())

    def must_stop(self) -> bool:
        """Return whether a stopping actor must end now; for dispatchers."""
        return self.stop_at_once or self.can_stop()

    # --- failures

    def survives(self, message: object) -> bool:
        """Return whether a handler that failed on `message` cannot have changed this actor."""
        return type(message) in self.reading_handlers

    def note_unread(self, error: OSError) -> str:
        """Log that the disk refused a read, once a minute; return the reason."""
        self.system.rarely.warn(
            "store read failed", of=self.name, file=error.filename, reason=reason_of(error)
        )
        return f"the disk cannot be read: {error.strerror}"

    def fail_message(self, message: object, error: Exception) -> None:
        """Refuse `message` after its handler failed, and log the bug; the actor goes on."""
        self.address.failed += 1
        if isinstance(error, OSError):  # the disk's fault, not the peer's
            reason = self.note_unread(error)
            refuse(message, reason)
            return
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

    # --- messages that every actor handles

    def _on_stop(self, message: Stop) -> None:
        if message.incarnation not in (None, self.incarnation):
            return
        self.stopping = True
        self.stop_at_once = self.stop_at_once or message.at_once
        self.dispatcher.stop_asked(self)

    def _on_drain(self, _: Drain) -> None:
        self.on_drain()

    def _on_envelope(self, envelope: Envelope[Any]) -> None:
        """Handle a message that came through a Pykka ref on the loop: `ref.ask(…)`, a proxy."""
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
        """Return the handler of a message. Raises TypeError without one: a bug of the sender."""
        try:
            return cls.handlers[type(message)]
        except KeyError:
            raise TypeError(f"{cls.__name__} does not handle {type(message).__name__}") from None

    # --- overridden internals of Pykka

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
        except BaseException:  # Pykka's loop itself failed
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
        if self.failure is None:
            return f"{self.name} has stopped"
        return failure_text(self.failure)


def failure_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]


def raised_at(error: BaseException) -> str:
    """Return file and line of the innermost frames of `error`, the raising one first."""
    frames = extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))


def blame(peer: Any) -> None:
    """Report to `peer`, if any, that a handler failed on its message."""
    note = getattr(peer, "note_failure", None)
    if note is not None:
        note()


def _base_handlers() -> dict[type, str]:
    return {Stop: "_on_stop", Drain: "_on_drain", Envelope: "_on_envelope"}


Actor._handler_names = _base_handlers()
Actor.handlers = {kind: getattr(Actor, name) for kind, name in Actor._handler_names.items()}
