"""Wall and monotonic time, passed in so that tests and simulations control it.

Wall time is for stored timestamps and retention; monotonic time is for intervals and deadlines.
"""

from time import monotonic_ns, time_ns
from typing import Final, Protocol

SET_BACK_MS_MAX: Final = 3_600_000
"""If the clock goes back further, the earlier time was wrong and is dropped."""


def later_time(known_ms: int, now_ms: int) -> int:
    """Return the later of the two times, or `now_ms` if `known_ms` is far ahead of it."""
    return now_ms if known_ms - now_ms > SET_BACK_MS_MAX else max(known_ms, now_ms)


class Clock(Protocol):
    """A source of time: the machine's, or one that a test sets by hand."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 (UTC); it may jump either way."""

    def monotonic_ms(self) -> float:
        """Return fractional milliseconds since a fixed moment; the value never decreases."""


class SystemClock:
    def now_ms(self) -> int:
        return time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return monotonic_ns() / 1_000_000
