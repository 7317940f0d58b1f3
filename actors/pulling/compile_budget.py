"""Budget for compiling new filter expressions: a number of characters per second.

Compiling takes 2 to 4 µs per character, and blocks the event loop. Compiled expressions are free
for every client; they come with every heartbeat, and with every pull of some clients. An address
has the budget of four connections, so that more connections gain little. Clients on this machine
have no address limit.
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
"""Characters available at once: a consumer can name a hundred expressions at its start."""

CHARS_PER_MS = 8
ADDRESS_TIMES = 4
PEERS_MAX = 10_000


def is_to_be_compiled(kind: str | None, expression: str) -> bool:
    """Return whether the expression must be compiled; one that is too long is refused instead."""
    return kind == SQL92 and len(expression) <= EXPRESSION_CHARS_MAX and not is_compiled(expression)


@dataclass(slots=True)
class _Purse:
    left_chars: float
    since_ms: float


class CompileBudget:
    """Budgets of all connections and addresses. One owner."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._purses: dict[int | str, _Purse] = {}

    def take(self, peer: Peer, kind: str | None, expression: str) -> bool:
        """Return whether the expression must be compiled, and charge the budget.

        Raises RemoteError(SYSTEM_BUSY) if the budget is used up; it refills with time.
        """
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
            remark = f"too many new filter expressions of this {whose}: try again in a second"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "too many new expressions")
        purse.left_chars -= chars
