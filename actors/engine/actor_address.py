"""Actor addresses that stay valid across restarts.

An address delivers to its receiver: the actor itself, or a stand-in.

    state                      receiver on the loop       a message sent now
    not started, or down       DownReceiver               is kept, up to KEPT_MAX, then refused
    up, on the loop            the actor                  is handled on the loop
    up, on a thread            ThreadForwarder            waits in the thread's queue
    stopped for good           DownReceiver, closed       is refused

A Future is an answer to wait for: in tests, at start-up and at shutdown, never inside an actor.
Waiting on the loop would stop everything that could bring the answer, so it raises there.
"""

from collections.abc import Callable, Mapping
from threading import Event, local
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from pykka import ThreadingFuture

from actors.engine.inbox import KEPT_MAX, Mail, ThreadMail, refuse
from actors.engine.messages import Message

Handler: TypeAlias = Callable[[Any, Any], object]


class Receiver(Protocol):
    """Object to which the loop delivers: `handlers[type(message)](receiver, message)`."""

    @property
    def handlers(self) -> Mapping[type, Handler]: ...

    @property
    def wants_batch_end(self) -> bool: ...


class _Every(dict[type, Handler]):
    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._handler = handler

    def __missing__(self, message_type: type) -> Handler:
        return self._handler


class DownReceiver:
    """Receiver that buffers messages while its actor is down."""

    wants_batch_end: ClassVar[bool] = False
    handlers: ClassVar[Mapping[type, Handler]]

    def __init__(self, address: "ActorAddress") -> None:
        self._address = address
        self.kept: list[object] = []
        self.remark: str | None = None

    def keep(self, message: object) -> None:
        # the loop has counted the message, which is handled later or never
        self._address.handled -= 1
        if self.remark is not None:
            refuse(message, self.remark)
        elif len(self.kept) >= KEPT_MAX:
            refuse(message, f"more than {KEPT_MAX} messages wait for {self._address.name}")
        else:
            self.kept.append(message)

    def close(self, remark: str) -> None:
        self.remark = self.remark or remark  # the first reason is the real one
        kept, self.kept = self.kept, []
        for message in kept:
            refuse(message, self.remark)


DownReceiver.handlers = _Every(DownReceiver.keep)


class ThreadForwarder:
    """Receiver on the loop that forwards messages sent just before the thread started."""

    wants_batch_end: ClassVar[bool] = False
    handlers: ClassVar[Mapping[type, Handler]]

    def __init__(self, address: "ActorAddress") -> None:
        self._address = address

    def forward(self, message: object) -> None:
        self._address.handled -= 1
        self._address.tell(message)


ThreadForwarder.handlers = _Every(ThreadForwarder.forward)


class ActorAddress:
    """Target for messages to an actor; made by `ActorSystem.address`. Safe in every thread."""

    __slots__ = (
        "__weakref__",
        "_append",
        "_mail",
        "failed",
        "handled",
        "incarnation",
        "name",
        "parent",
        "receiver",
        "temporary",
    )

    def __init__(self, name: str, mail: Mail, receiver: Receiver | None = None) -> None:
        self.name = name
        self.handled = 0
        """Messages handled under this name, over all restarts; without BatchEnd."""
        self.failed = 0
        """Messages refused because their handlers failed, while the actor went on."""
        self.incarnation = 0
        self.parent: ActorAddress | None = None
        """Receiver of Started and Exited."""
        self.temporary = False
        """The actor is never restarted, so the address closes with it."""
        self.receiver: Receiver = receiver if receiver is not None else DownReceiver(self)
        self._mail: Mail = mail
        self._append = mail.append

    def tell(self, message: object) -> None:
        """Deliver `message` later, in the order of this sender. Never blocks and never raises.

        While the actor is down, the message is kept for its next incarnation. Past KEPT_MAX
        messages, or after the actor has stopped for good, the message is refused.
        """
        self._append((self, message))
        if self._mail.asleep:  # read after the append: see actors/engine/inbox.py
            self._mail.wake()

    @property
    def is_up(self) -> bool:
        """Whether an actor is behind the name now; it may end a moment later."""
        mail = self._mail
        if isinstance(mail, ThreadMail):
            return not mail.asleep
        return not isinstance(self.receiver, DownReceiver)

    def own_queue(self) -> ThreadMail | None:
        """Return the queue of an actor on a thread; None for others."""
        return self._mail if isinstance(self._mail, ThreadMail) else None

    @property
    def waiting(self) -> int:
        """Messages that wait for an actor on a thread; 0 for others."""
        mail = self._mail
        return mail.qsize() if isinstance(mail, ThreadMail) else 0

    def move_to_thread(self, waiting: list[object]) -> ThreadMail:
        """Give the address a queue with the kept messages and `waiting`. Only on the loop."""
        mail = self.own_queue()
        if mail is None:
            mail = ThreadMail()
            for message in [*self.go_up(ThreadForwarder(self)), *waiting]:
                mail.append((self, message))
            self._append = mail.append
            self._mail = mail
        return mail

    def go_up(self, receiver: Receiver) -> list[object]:
        """Point to `receiver`; return the messages kept while the actor was down."""
        absent, self.receiver = self.receiver, receiver
        if not isinstance(absent, DownReceiver):
            return []
        kept, absent.kept = absent.kept, []
        return kept

    def go_down(self, kept: list[object]) -> None:
        absent = DownReceiver(self)
        absent.kept = kept
        self.receiver = absent

    def close(self, remark: str) -> None:
        """Refuse all messages, kept and future: no actor will run under this name again."""
        mail = self.own_queue()
        if mail is not None:
            mail.close(remark)
            return
        if not isinstance(self.receiver, DownReceiver):
            self.receiver = DownReceiver(self)
        self.receiver.close(remark)

    def __repr__(self) -> str:
        return f"<Address {self.name}>"


T = TypeVar("T")


class _Here(local):
    on_loop: bool = False


_here = _Here()


def enter_loop() -> None:
    _here.on_loop = True


def leave_loop() -> None:
    _here.on_loop = False


def assert_may_wait() -> None:
    """Raise RuntimeError on the loop, where waiting would stop every other actor."""
    if _here.on_loop:
        raise RuntimeError("an actor on the loop must not wait for an answer")


class GuardedFuture(ThreadingFuture[T]):
    """Pykka's future, which raises on the loop instead of blocking it for ever."""

    def get(self, *, timeout: float | None = None) -> Any:
        if self._result is None:
            assert_may_wait()
        return super().get(timeout=timeout)


class MessageRefused(Exception):
    """The message was not handled: its actor had stopped, or failed on it."""


class Future(Generic[T]):
    def __init__(self, wait: Callable[[Event, float], None]) -> None:
        self._wait = wait
        self._arrived = Event()
        self._value: T | None = None
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._arrived.is_set()

    def result(self, timeout_s: float) -> T:
        """Return the answer. Raises MessageRefused, TimeoutError, or RuntimeError on the loop."""
        if not self._arrived.is_set():
            assert_may_wait()
            self._wait(self._arrived, timeout_s)
            if not self._arrived.is_set():
                raise TimeoutError(f"no answer within {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def resolve(self, value: T) -> None:
        """Set the answer. The first one counts; later answers and refusals are ignored."""
        if not self._arrived.is_set():
            self._value = value
            self._arrived.set()

    def fail(self, error: Exception) -> None:
        if not self._arrived.is_set():
            self._error = error
            self._arrived.set()


class Reply(Generic[T]):
    """The `reply` in the message of an `ask`: call it with the answer. Any thread."""

    __slots__ = ("future",)

    def __init__(self, future: Future[T]) -> None:
        self.future = future

    def __call__(self, value: T) -> None:
        self.future.resolve(value)

    def refuse(self, remark: str) -> None:
        self.future.fail(MessageRefused(remark))


class Question(Message):
    """Message with the `reply` of an `ask`.

    If no actor handles it, the reply is refused.
    """

    __slots__ = ()

    reply: Callable[[Any], None]

    def on_undelivered(self, remark: str) -> None:
        if isinstance(self.reply, Reply):
            self.reply.refuse(remark)
