"""The budget for expressions that nobody has compiled yet: so many characters in a second.

Compiling takes some 2 to 4 µs a character, and everybody waits. What is compiled is free, whoever
names it: it comes with every heartbeat, and with every pull of some clients. An address may have
what four connections may, so that it gains little by making more of them; for clients of this
machine there is no such limit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from actors.network.limits import is_loopback
from actors.network.request import Peer
from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.host import host_of
from protocol.sql92 import EXPRESSION_CHARS_MAX, is_compiled
from storage.tables.consumer_filters import SQL92

BURST_CHARS = 64 << 10
"""A consumer of a hundred topics names a hundred expressions at once."""

CHARS_PER_MS = 8
ADDRESS_TIMES = 4
PEERS_MAX = 10_000


def is_to_be_compiled(kind: str | None, expression: str) -> bool:
    """Whether somebody has to wait for it; one that is too long is refused without."""
    return kind == SQL92 and len(expression) <= EXPRESSION_CHARS_MAX and not is_compiled(expression)


@dataclass(slots=True)
class _Purse:
    left_chars: float
    since_ms: float


class CompileBudget:
    """Owned by one actor."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._purses: dict[int | str, _Purse] = {}

    def take(self, peer: Peer, kind: str | None, expression: str) -> bool:
        """Whether it is to be compiled. Raises RemoteError(SYSTEM_BUSY) where the budget is used
        up; it fills again with time."""
        if not is_to_be_compiled(kind, expression):
            return False
        address = host_of(peer.remote)
        if not is_loopback(address):
            self._take(address, len(expression), ADDRESS_TIMES)
        self._take(peer.peer_id, len(expression), 1)
        return True

    def _take(self, whose: int | str, chars: int, times: int) -> None:
        purse, now_ms = self._purses.get(whose), self._now_ms()
        if purse is None:
            if len(self._purses) >= PEERS_MAX:
                del self._purses[next(iter(self._purses))]
            purse = self._purses[whose] = _Purse(BURST_CHARS * times, now_ms)
        left_chars = purse.left_chars + (now_ms - purse.since_ms) * CHARS_PER_MS * times
        purse.left_chars, purse.since_ms = min(left_chars, BURST_CHARS * times), now_ms
        if chars > purse.left_chars:
            whose = "connection" if isinstance(whose, int) else "address"
            remark = f"too many expressions of this {whose} in a second"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "too many new expressions")
        purse.left_chars -= chars
