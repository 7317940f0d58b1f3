"""Functions of a user that see every send before and after it is stored, and what is sent back.

Registered from Python before the broker starts (`start_broker(…, hooks=[…])`); they run on the
loop, so they must be quick; but `after_send_back`, which a hook may have or not, on a thread.  A
hook that raises is logged and the send goes on, as in 4.9.7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(slots=True)
class SendBackContext:
    """One message that a consumer gives back, as a hook sees it."""

    group: str
    topic: str
    message_id: str
    client: str
    delay_level: int
    """Below 0: to the dead letters; 0: the broker chooses."""


class SendHook(Protocol):
    """What a user registers."""

    def before_send(self, context: SendContext) -> None:
        """Called when the send has arrived, before its checks."""

    def after_send(self, context: SendContext) -> None:
        """Called when its answer is known: stored, or refused and why."""


class Hooks:
    """The registered hooks of one broker."""

    def __init__(self, hooks: Sequence[SendHook] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(self, context: SendContext) -> None:
        """Shows a send that has arrived to every hook."""
        for hook in self._hooks:
            self._call(hook, "before_send", context)

    def after(self, context: SendContext) -> None:
        """Shows a send whose answer is known to every hook."""
        for hook in self._hooks:
            self._call(hook, "after_send", context)

    def sent_back(self, context: SendBackContext) -> None:
        """Shows a message that is given back to every hook that has `after_send_back`."""
        for hook in self._hooks:
            if hasattr(hook, "after_send_back"):
                self._call(hook, "after_send_back", context)

    def _call(self, hook: SendHook, name: str, context: SendContext | SendBackContext) -> None:
        try:
            getattr(hook, name)(context)
        except Exception as error:
            # A user's function may not take the broker down with it.
            log.warning("send hook failed", hook=type(hook).__name__, at=name, error=repr(error))
