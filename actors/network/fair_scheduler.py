"""Turns of connections with more than one turn's work, a few requests at a time.

A read may bring a thousand requests, and a hundred connections may do so at once. A small request
of another connection then waits for one turn, not for all of them. Frames of more than 256 KiB are
read in pieces, one in a round, which takes 0.1 ms. Runs on the loop.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

REQUESTS_OF_READ = 16
"""Requests of a read served at once: some 0.5 ms of pulls. With 4, consuming cost 20 % more."""

REQUESTS_PER_TURN = 4
"""Further requests of that read served in each round of the loop."""


class Schedulable(Protocol):
    def take_turn(self) -> bool: ...


class FairScheduler:
    """Round-robin scheduler of connections with pending requests, of one server."""

    def __init__(self, in_next_round: Callable[[], None]) -> None:
        """`in_next_round` schedules a call of `next` for the next round of the loop."""
        self._in_next_round = in_next_round
        self._waiting: deque[Schedulable] = deque()
        self._round = -1

    def is_first(self, round_number: int) -> bool:
        """Return whether no connection waits and none has asked in this round: it needs no turn."""
        if self._waiting or round_number == self._round:
            return False
        self._round = round_number
        return True

    def wait(self, taker: Schedulable) -> None:
        self._waiting.append(taker)
        if len(self._waiting) == 1:
            self._in_next_round()

    def next(self) -> None:
        if self._waiting:
            if self._waiting[0].take_turn():
                self._waiting.rotate(-1)
            else:
                self._waiting.popleft()
            if self._waiting:
                self._in_next_round()
