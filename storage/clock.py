"""Wall and monotonic time, handed in from outside so that tests and simulations own it.

Wall time is for what is stored (timestamps, retention); monotonic time is for intervals and
deadlines, and never goes backwards.
"""

from time import monotonic_ns, time_ns
from typing import Final, Protocol

SET_BACK_MS_MAX: Final = 3_600_000
"""A clock that goes back further was wrong before, and its time is not kept."""


def later_time(known_ms: int, now_ms: int) -> int:
    """Return the time that follows `known_ms`: the later one, unless the clock was far ahead."""
    return now_ms if known_ms - now_ms > SET_BACK_MS_MAX else max(known_ms, now_ms)


class Clock(Protocol):
    """A source of time; the real one, or one that a test winds by hand."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 (UTC). May jump either way."""

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed moment, with fractions. Never goes backwards."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return monotonic_ns() / 1_000_000
