"""The budget of one connection for expressions: so many characters are compiled for it in a second.

Compiling takes some 2 µs a character, and everybody waits. What a connection has named before is
free, as far back as is remembered: it comes with every heartbeat, and with every pull of some
clients.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.codes import ResponseCode
from protocol.errors import LimitReached

BURST_CHARS = 64 << 10
"""A consumer of a hundred topics names a hundred expressions at once."""

CHARS_PER_MS = 8
KNOWN_MAX = 256
PEERS_MAX = 10_000


@dataclass(slots=True)
class _Purse:
    left_chars: float
    since_ms: float
    known: dict[str, None] = field(default_factory=dict)


class CompileBudget:
    """Owned by one actor."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._purses: dict[int, _Purse] = {}

    def take(self, peer_id: int, expression: str) -> None:
        """Raises RemoteError(SYSTEM_BUSY) where it is used up; it fills again with time."""
        purse = self._purses.get(peer_id)
        if purse is None:
            if len(self._purses) >= PEERS_MAX:
                del self._purses[next(iter(self._purses))]
            purse = self._purses[peer_id] = _Purse(BURST_CHARS, self._now_ms())
        if expression in purse.known:
            return
        now_ms = self._now_ms()
        left_chars = purse.left_chars + (now_ms - purse.since_ms) * CHARS_PER_MS
        purse.left_chars, purse.since_ms = min(left_chars, BURST_CHARS), now_ms
        if len(expression) > purse.left_chars:
            remark = "too many expressions of this connection in a second"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "too many new expressions")
        purse.left_chars -= len(expression)
        if len(purse.known) >= KNOWN_MAX:
            del purse.known[next(iter(purse.known))]
        purse.known[expression] = None
