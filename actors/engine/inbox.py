"""Inboxes: one deque for the whole loop, one queue for each actor on a thread.

Everything that leans on the interpreter lock is in this file. `tell` appends and then reads
`asleep`; the reader sets `asleep` and then looks whether something was appended. As both are in
program order for every thread, one of the two always sees the other, and no lock is needed.

    where   mail        tell appends to   asleep means         wake does
    loop    LoopMail    the loop's deque  it may be in poll()  one byte on a socketpair
    loop    LoopMail    the same          it has ended         refuses what is there
    thread  ThreadMail  a SimpleQueue     the actor is down    keeps to the limit
    thread  ThreadMail  the same          there will be none   refuses what is there
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, SimpleQueue
from socket import socket, socketpair
from typing import Any, Final, Protocol, TypeAlias

from pykka import ActorDeadError
from pykka._envelope import Envelope
from pykka.messages import _ActorStop
from structlog import get_logger

log = get_logger(__name__)


Item: TypeAlias = tuple[Any, object]
"""The Address that a message is for, which is a class above this file, and the message."""

KEPT_MAX = 10_000
"""Messages kept for an actor that is down: a tenth of a second of a busy broker."""

BATCH_MAX = 1024
"""Messages a thread actor handles before it gets its BatchEnd, so that nobody waits for ever."""


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """Told to an actor that handles it after the last message of what was waiting for it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish and leave. It waits behind the mail that is already there."""

    at_once: bool = False
    """Leave whatever is unfinished: the deadline has passed."""
    incarnation: int | None = None
    """Whom it is for: a restarted actor is not stopped by what was meant for the one before."""


BATCH_END: Final = BatchEnd()


class Refusable(Protocol):
    """A message that wants to know when nobody will handle it."""

    def refuse(self, remark: str) -> None:
        """Called at most once, by whoever finds the message without an actor. Any thread."""


class Mail(Protocol):
    """What `Address.tell` needs of a place where mail waits."""

    @property
    def append(self) -> Callable[[Item], None]: ...

    @property
    def asleep(self) -> bool: ...

    def wake(self) -> None: ...


def refuse(message: object, remark: str) -> None:
    """Answers a message that will not be handled, if it can be answered at all.

    It is answered through its own `refuse`, else through the `refuse` of its `reply`.
    """
    if isinstance(message, Envelope):
        _refuse_envelope(message, remark)
        message = message.message
    answer = getattr(message, "refuse", None) or getattr(
        getattr(message, "reply", None), "refuse", None
    )
    if answer is None:
        return
    try:
        answer(remark)
    except Exception:  # whoever asked is broken; the others still want their answers
        log.exception("refusal failed", message=type(message).__name__, remark=remark)


def _refuse_envelope(envelope: Envelope[Any], remark: str) -> None:
    if envelope.reply_to is None:
        return
    with suppress(Full):  # how Pykka's futures say that they have been answered already
        if isinstance(envelope.message, _ActorStop):
            envelope.reply_to.set(None)
        else:
            error = ActorDeadError(remark)
            envelope.reply_to.set_exception((ActorDeadError, error, None))


def asker_of(message: object) -> Any:
    """Return the peer whose request or answer `message` carries; None if it serves no peer.

    That peer is the message's own `peer`, or that of the request which it, or the context that
    travels with it, keeps in a field `request`.
    """
    for name in ("request", "token", "context", "then", "message"):
        peer = getattr(message, "peer", None)
        if peer is not None:
            return peer
        message = getattr(message, name, message)
    return getattr(message, "peer", None)


class LoopMail:
    """The mail of all actors of the loop, in the order in which it was told."""

    __slots__ = ("_closed", "_waker", "append", "asleep", "items", "wake_socket")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.append = self.items.append
        self.asleep = False
        self._closed = False
        self.wake_socket, self._waker = _wakeup_pair()

    def wake(self) -> None:
        """Called by a teller that found `asleep`; any thread."""
        if self._closed:
            self._refuse_rest()
            return
        self.asleep = False  # the next teller need not write another byte
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # bytes enough are there to wake it
        except OSError:  # the loop has just ended, in another thread
            self._refuse_rest()

    def drain_wake_bytes(self) -> None:
        self.wake_socket.recv(4096)

    def take(self, address: Any) -> list[object]:
        """Takes out what waits for one actor. Only on the loop; tellers may append meanwhile."""
        items = self.items
        taken: list[object] = []
        others: list[Item] = []
        for _ in range(len(items)):
            item = items.popleft()
            if item[0] is address:
                taken.append(item[1])
            else:
                others.append(item)
        items.extendleft(reversed(others))
        return taken

    def depths(self) -> Counter[Any]:
        """How many messages wait for each actor. Any thread; looks at all mail."""
        return Counter(address for address, _ in self.items.copy())

    def put_first(self, address: Any, messages: list[object]) -> None:
        """Puts messages before everything else, in their order. Only on the loop."""
        self.items.extendleft([(address, message) for message in reversed(messages)])

    def close(self) -> None:
        """From now on every message is refused; also those that are on their way."""
        self._closed = True
        self.asleep = True
        self._refuse_rest()
        self.wake_socket.close()
        self._waker.close()

    def _refuse_rest(self) -> None:
        while True:
            try:
                address, message = self.items.popleft()
            except IndexError:
                return
            refuse(message, f"{address.name} has stopped")


def _wakeup_pair() -> tuple[socket, socket]:
    reader, writer = socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    return reader, writer


class ThreadMail:
    """The mail of one actor on a thread; it stays when the actor is restarted."""

    __slots__ = ("_queue", "_remark", "append", "asleep", "get", "get_nowait", "qsize")

    def __init__(self) -> None:
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._remark: str | None = None
        self.append = self._queue.put
        self.get = self._queue.get
        self.get_nowait = self._queue.get_nowait
        self.qsize = self._queue.qsize
        self.asleep = True

    def up(self) -> None:
        """An actor is about to read."""
        self._remark = None
        self.asleep = False

    def down(self) -> None:
        """Nobody reads; mail is kept for the next one, up to a limit."""
        self.asleep = True

    def close(self, remark: str) -> None:
        """Nobody will read again: everything is refused, also what is on its way."""
        self._remark = self._remark or remark  # the first reason is the real one
        self.asleep = True
        self.refuse_waiting(self._remark)

    def wake(self) -> None:
        """Called by a teller that found nobody reading; any thread."""
        if self._remark is not None:
            self.refuse_waiting(self._remark)
        elif self.qsize() > KEPT_MAX:
            self._refuse_first(f"more than {KEPT_MAX} messages wait for a restart")

    def refuse_waiting(self, remark: str) -> None:
        while self._refuse_first(remark):
            pass

    def _refuse_first(self, remark: str) -> bool:
        try:
            _, message = self.get_nowait()
        except Empty:
            return False
        refuse(message, remark)
        return True


class Inbox:
    """Pykka's view of an actor's mail: what is waiting, then one BatchEnd before it blocks.

    `put` is for those who hold a Pykka ref; our own tells go to the address. `get` and `empty`
    are called by Pykka's loop, hence only for actors on a thread.
    """

    __slots__ = ("_held", "_mail", "_taken", "_tell", "_wants_batch_end")

    def __init__(self) -> None:
        self._tell: Callable[[object], None] | None = None
        self._mail: ThreadMail | None = None
        self._wants_batch_end = False
        self._taken = 0
        self._held: Envelope[Any] | None = None

    def bind(self, tell: Callable[[object], None]) -> None:
        """Says where the mail of this actor goes."""
        self._tell = tell

    def read_from(self, mail: ThreadMail, *, wants_batch_end: bool) -> None:
        """Says where `get` finds the mail of an actor on a thread."""
        self._mail = mail
        self._wants_batch_end = wants_batch_end

    def put(self, envelope: Envelope[Any], /) -> None:
        assert self._tell is not None, "an actor is started by its ActorSystem"
        self._tell(envelope)

    def empty(self) -> bool:
        return self._held is None and (self._mail is None or not self._mail.qsize())

    def get(self) -> Envelope[Any]:
        mail = self._mail
        assert mail is not None, "only an actor on a thread reads its own mail"
        if self._held is not None:
            held, self._held = self._held, None
            return held
        if not self._taken:
            message = mail.get()[1]
        elif self._taken >= BATCH_MAX:
            return self._batch_end()
        else:
            try:
                message = mail.get_nowait()[1]
            except Empty:
                return self._batch_end()
        envelope = message if type(message) is Envelope else Envelope(message)
        if self._wants_batch_end:
            if self._taken and type(message) is Stop:  # the batch ends before the actor does
                self._held = envelope
                return self._batch_end()
            self._taken += 1
        return envelope

    def _batch_end(self) -> Envelope[Any]:
        self._taken = 0
        return Envelope(BATCH_END)
