"""Inboxes: one deque for the whole loop, one queue for each actor on a thread.

All code that depends on the interpreter lock is in this file. `tell` appends and then reads
`asleep`; the reader sets `asleep` and then checks for messages. Each thread runs its two steps in
program order, so one of the two always sees the other, and no lock is needed.

    where   class       tell appends to   asleep means            wake does
    loop    LoopMail    the loop's deque  it may be in poll()     one byte on a socketpair
    loop    LoopMail    the loop's deque  it has ended            refuses all messages
    thread  ThreadMail  a SimpleQueue     the actor is down       enforces the limit
    thread  ThreadMail  a SimpleQueue     it has stopped for good refuses all messages
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Full, SimpleQueue
from socket import socket, socketpair
from typing import Any, Protocol, TypeAlias

from pykka import ActorDeadError
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from actors.engine.messages import BATCH_END, Message, Stop
from actors.engine.server_log import get_logger

log = get_logger(__name__)


Item: TypeAlias = tuple[Any, object]
"""ActorAddress of the receiver (a class above this file), and the message."""

KEPT_MAX = 10_000
"""Messages kept for an actor that is down: a tenth of a second on a busy broker."""

BATCH_MAX = 1024
"""Messages that an actor on a thread handles before a BatchEnd, which bounds their wait."""


class Mail(Protocol):
    @property
    def append(self) -> Callable[[Item], None]: ...

    @property
    def asleep(self) -> bool: ...

    def wake(self) -> None: ...


def refuse(message: object, remark: str) -> None:
    """Report to an unhandled message that it is undelivered, if it must learn that."""
    if isinstance(message, Envelope):
        _refuse_envelope(message, remark)
        message = message.message
    if not isinstance(message, Message):
        return
    try:
        message.on_undelivered(remark)
    except Exception:  # the requester has failed; the other messages still need their answers
        log.exception("refusal failed", message=type(message).__name__, remark=remark)


def _refuse_envelope(envelope: Envelope[Any], remark: str) -> None:
    if envelope.reply_to is None:
        return
    with suppress(Full):  # raised by Pykka's future if it has been answered already
        if isinstance(envelope.message, _ActorStop):
            envelope.reply_to.set(None)
        else:
            error = ActorDeadError(remark)
            envelope.reply_to.set_exception((ActorDeadError, error, None))


def asker_of(message: object) -> Any:
    """Return the peer that sent the request or answer in `message`; None if no peer did.

    The peer is the message's own `peer`, or the `peer` of the request that it carries. A message,
    or the context that travels with it, keeps that request in a field `request`.
    """
    for name in ("request", "context", "then", "message"):
        peer = getattr(message, "peer", None)
        if peer is not None:
            return peer
        message = getattr(message, name, message)
    return getattr(message, "peer", None)


class LoopMail:
    """Messages of all actors on the loop, in the order in which they were sent."""

    __slots__ = ("_closed", "_waker", "append", "asleep", "items", "wake_socket")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.append = self.items.append
        self.asleep = False
        self._closed = False
        self.wake_socket, self._waker = _wakeup_pair()

    def wake(self) -> None:
        """Wake the loop; called by a sender that found `asleep`. Any thread."""
        if self._closed:
            self._refuse_rest()
            return
        self.asleep = False  # the next sender need not write another byte
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # there are enough bytes to wake it
        except OSError:  # the loop has just ended, in another thread
            self._refuse_rest()

    def drain_wake_bytes(self) -> None:
        self.wake_socket.recv(4096)

    def take(self, address: Any) -> list[object]:
        """Remove and return the messages of one actor. Only on the loop; senders may append."""
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
        """Return how many messages wait for each actor. Any thread; takes time for all messages."""
        return Counter(address for address, _ in self.items.copy())

    def put_first(self, address: Any, messages: list[object]) -> None:
        """Put messages before all others, in their order. Only on the loop."""
        self.items.extendleft([(address, message) for message in reversed(messages)])

    def close(self) -> None:
        """Refuse every message from now on, also those that are being sent."""
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
    """Messages of one actor on a thread; the queue survives restarts of the actor."""

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
        self._remark = None
        self.asleep = False

    def down(self) -> None:
        """Mark the queue as unread; messages are kept for the next incarnation, up to KEPT_MAX."""
        self.asleep = True

    def close(self, remark: str) -> None:
        """Refuse all messages for good, also those that are being sent."""
        self._remark = self._remark or remark  # the first reason is the real one
        self.asleep = True
        self.refuse_waiting(self._remark)

    def wake(self) -> None:
        """Apply the limit, or refuse all; called by a sender that found `asleep`. Any thread."""
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
    """Pykka's view of an actor's messages: all that wait, then one BatchEnd, then blocking.

    `put` is for callers with a Pykka ref; our own senders use the address. Pykka's loop calls `get`
    and `empty`, hence only for actors on a thread.
    """

    __slots__ = ("_held", "_mail", "_taken", "_tell", "_wants_batch_end")

    def __init__(self) -> None:
        self._tell: Callable[[object], None] | None = None
        self._mail: ThreadMail | None = None
        self._wants_batch_end = False
        self._taken = 0
        self._held: Envelope[Any] | None = None

    def bind(self, tell: Callable[[object], None]) -> None:
        self._tell = tell

    def read_from(self, mail: ThreadMail, *, wants_batch_end: bool) -> None:
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
