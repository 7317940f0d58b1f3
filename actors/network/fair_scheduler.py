"""Turns of connections that have brought more than one turn's work, a few requests at a time.

A read may hold a thousand requests, and a hundred connections as many each: whoever asks one thing
meanwhile waits for the turn of one of them, not for all.  So with frames of more than 256 KiB: one
piece is read in a round, which takes 0.1 ms.  Lives on the loop.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

REQUESTS_OF_READ = 16
"""Of those that a read brings, at once: what a consumer asks together, some 0.5 ms of pulls. With 4
a consumed message cost a fifth more. All sends of a read are one, four ends of transactions are."""

REQUESTS_PER_TURN = 4
"""Of the rest of it, in a round of the loop: who asks more at once than anybody needs gives way."""


class Schedulable(Protocol):
    """Whoever has work left: a connection."""

    def take_turn(self) -> bool:
        """Does some of it; whether more is left."""


class FairScheduler:
    """Those of one server."""

    def __init__(self, in_next_round: Callable[[], None]) -> None:
        """`in_next_round` has `next` called, once everybody else has been looked at."""
        self._in_next_round = in_next_round
        self._waiting: deque[Schedulable] = deque()
        self._round = -1

    def is_first(self, round_number: int) -> bool:
        """Whether nobody waits, nor has asked in this round of the loop: it needs no turn."""
        if self._waiting or round_number == self._round:
            return False
        self._round = round_number
        return True

    def wait(self, taker: Schedulable) -> None:
        """It has more, and gets its turn behind those before it."""
        self._waiting.append(taker)
        if len(self._waiting) == 1:
            self._in_next_round()

    def next(self) -> None:
        """The turn of the first one."""
        if self._waiting:
            if self._waiting[0].take_turn():
                self._waiting.rotate(-1)
            else:
                self._waiting.popleft()
            if self._waiting:
                self._in_next_round()
