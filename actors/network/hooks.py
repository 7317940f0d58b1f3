"""Functions of a user that see sends, pulls, and what consumers send back.

Registered from Python before the broker starts (`start_broker(…, hooks=[…])`): any object with some
of these methods.  They run on the loop, so they must be quick; `after_send_back` on a thread.  A
hook that raises is logged and the work goes on, as in 4.9.7.

Source: broker/mqtrace/SendMessageHook.java, ConsumeMessageHook.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import iscoroutine, iscoroutinefunction
from typing import Any, Protocol

from structlog import get_logger

log = get_logger(__name__)


@dataclass(slots=True)
class SendContext:
    """One send as a hook sees it; the fields below `client` are known only afterwards."""

    producer_group: str
    topic: str
    body_bytes: int
    properties: bytes
    born_timestamp_ms: int
    client: str
    queue_id: int
    message_id: str = ""
    queue_offset: int = -1
    record_bytes: int = 0
    success: bool = False
    code: int = 0
    remark: str | None = None
    begun_ns: int = 0
    """For hooks that measure."""


@dataclass(slots=True)
class SendBackContext:
    """One message that a consumer gives back, as a hook sees it."""

    group: str
    topic: str
    message_id: str
    client: str
    delay_level: int
    """Below 0: to the dead letters; 0: the broker chooses."""


@dataclass(slots=True)
class PullContext:
    """One pull as a hook sees it; the fields below `max_count` are known only afterwards."""

    group: str
    topic: str
    queue_id: int
    client: str
    """`ip:port`."""
    offset: int
    max_count: int
    held: bool = False
    """It had to wait: for a message, the disk, or until a doubt was resolved."""
    message_count: int = 0
    record_bytes: int = 0
    """Of the whole records, as they are sent."""
    next_offset: int = -1
    """Where the consumer goes on; -1 where the pull was refused."""
    success: bool = False
    """It brought messages."""
    code: int = 0
    remark: str | None = None
    """The status of the search in the queue, or why the pull was refused."""
    runs: Sequence[tuple[int, int]] = ()
    """Where in the log the records lie, (start, end)."""
    begun_ns: int = 0
    """For hooks that measure."""


class SendHook(Protocol):
    """Sees sends."""

    def before_send(self, context: SendContext) -> None:
        """Called when the send has arrived, before its checks."""

    def after_send(self, context: SendContext) -> None:
        """Called when its answer is known: stored, or refused and why."""


class PullHook(Protocol):
    """Sees pulls. A pull whose client goes away while it is held has no `after_pull`."""

    def before_pull(self, context: PullContext) -> None:
        """Called when the pull has arrived, before its checks; not again when it was held."""

    def after_pull(self, context: PullContext) -> None:
        """Called with the same context when its answer is sent."""


class SendBackHook(Protocol):
    """Sees what consumers failed at."""

    def after_send_back(self, context: SendBackContext) -> None:
        """Called when the request has arrived, before its checks."""


Hook = SendHook | PullHook | SendBackHook
Call = Callable[[Any], object]


class Hooks:
    """The registered hooks of one broker, by what they see."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._before_send, self._after_send = _found(hooks, "before_send", "after_send")
        self._before_pull, self._after_pull = _found(hooks, "before_pull", "after_pull")
        (self._after_send_back,) = _found(hooks, "after_send_back")
        self.see_sends = bool(self._before_send or self._after_send)
        self.see_pulls = bool(self._before_pull or self._after_pull)
        self.see_send_backs = bool(self._after_send_back)

    def before(self, context: SendContext) -> None:
        """Shows a send that has arrived to every hook."""
        _show(self._before_send, context)

    def after(self, context: SendContext) -> None:
        """Shows a send whose answer is known to every hook."""
        _show(self._after_send, context)

    def before_pull(self, context: PullContext) -> None:
        """Shows a pull that has arrived to every hook."""
        _show(self._before_pull, context)

    def after_pull(self, context: PullContext) -> None:
        """Shows a pull that is answered to every hook."""
        _show(self._after_pull, context)

    def sent_back(self, context: SendBackContext) -> None:
        """Shows a message that is given back to every hook."""
        _show(self._after_send_back, context)


def _found(hooks: Sequence[Hook], *names: str) -> list[list[tuple[str, str, Call]]]:
    """The hooks that have each of these methods: class, method's name, method.

    Raises ValueError for an async method: nothing would await it.
    """
    for hook in hooks:
        for name in names:
            if iscoroutinefunction(getattr(hook, name, None)):
                raise ValueError(f"the hook {type(hook).__name__}.{name} is async: use a plain def")
    return [
        [(type(hook).__name__, name, getattr(hook, name)) for hook in hooks if hasattr(hook, name)]
        for name in names
    ]


def _show(calls: Sequence[tuple[str, str, Call]], context: object) -> None:
    for hook, name, call in calls:
        try:
            if iscoroutine(result := call(context)):
                result.close()
                raise TypeError("it returned a coroutine, which nothing awaits")
        except Exception as error:
            # A user's function may not take the broker down with it.
            log.warning("hook failed", hook=hook, at=name, error=repr(error))
