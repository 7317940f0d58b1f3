"""User hooks that observe sends, pulls, and messages that consumers send back.

They are registered from Python before the broker starts (`start_broker(…, hooks=[…])`). A hook is
any object with some of these methods. Hooks run on the loop, so they must be quick;
`after_send_back` runs on a thread. A hook that raises is logged and the work goes on, as in 4.9.7.

Source: broker/mqtrace/SendMessageHook.java, ConsumeMessageHook.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import iscoroutine, iscoroutinefunction
from typing import Any, Protocol

from actors.engine.server_log import get_logger

log = get_logger(__name__)


@dataclass(slots=True)
class SendContext:
    """One send as a hook sees it; the fields below `client` are set only for `after_send`."""

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
    """Start time for hooks that measure."""


@dataclass(slots=True)
class SendBackContext:
    """One message that a consumer sends back, as a hook sees it."""

    group: str
    topic: str
    message_id: str
    client: str
    delay_level: int
    """Below 0: to the dead-letter queue; 0: the broker chooses."""


@dataclass(slots=True)
class PullContext:
    """One pull as a hook sees it; the fields below `max_count` are set only for `after_pull`."""

    group: str
    topic: str
    queue_id: int
    client: str
    """Address of the client, `ip:port`."""
    offset: int
    max_count: int
    held: bool = False
    """Whether the pull waited for a message, for the disk, or for a check of its record."""
    message_count: int = 0
    record_bytes: int = 0
    """Size of the whole records, as sent."""
    next_offset: int = -1
    """Offset of the consumer's next pull; -1 if the pull was refused."""
    success: bool = False
    """Whether the pull returned messages."""
    code: int = 0
    remark: str | None = None
    """Status of the search in the queue, or the reason of the refusal."""
    runs: Sequence[tuple[int, int]] = ()
    """Ranges of the records in the commit log, (start, end)."""
    begun_ns: int = 0
    """Start time for hooks that measure."""


class SendHook(Protocol):
    def before_send(self, context: SendContext) -> None:
        """Handle a send that has arrived, before its checks."""

    def after_send(self, context: SendContext) -> None:
        """Handle a send that is stored or refused."""


class PullHook(Protocol):
    """Hook that observes pulls; a held pull of a client that goes away has no `after_pull`."""

    def before_pull(self, context: PullContext) -> None:
        """Handle a pull that has arrived, before its checks; called once for a held pull."""

    def after_pull(self, context: PullContext) -> None:
        """Handle a pull that is answered, with the same context."""


class SendBackHook(Protocol):
    """Hook that observes messages which consumers send back."""

    def after_send_back(self, context: SendBackContext) -> None:
        """Handle a message that is sent back, before its checks."""


Hook = SendHook | PullHook | SendBackHook
Call = Callable[[Any], object]


class Hooks:
    """Registered hooks of one broker, by event."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._before_send, self._after_send = _found(hooks, "before_send", "after_send")
        self._before_pull, self._after_pull = _found(hooks, "before_pull", "after_pull")
        (self._after_send_back,) = _found(hooks, "after_send_back")
        self.see_sends = bool(self._before_send or self._after_send)
        self.see_pulls = bool(self._before_pull or self._after_pull)
        self.see_send_backs = bool(self._after_send_back)

    def before(self, context: SendContext) -> None:
        """Call every hook for a send that has arrived."""
        _show(self._before_send, context)

    def after(self, context: SendContext) -> None:
        """Call every hook for a send that is answered."""
        _show(self._after_send, context)

    def before_pull(self, context: PullContext) -> None:
        """Call every hook for a pull that has arrived."""
        _show(self._before_pull, context)

    def after_pull(self, context: PullContext) -> None:
        """Call every hook for a pull that is answered."""
        _show(self._after_pull, context)

    def sent_back(self, context: SendBackContext) -> None:
        """Call every hook for a message that is sent back."""
        _show(self._after_send_back, context)


def _found(hooks: Sequence[Hook], *names: str) -> list[list[tuple[str, str, Call]]]:
    """Return the hooks that have each of these methods: class, method's name, method.

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
            # A failing user hook must not stop the broker.
            log.warning("hook failed", hook=hook, at=name, error=repr(error))
