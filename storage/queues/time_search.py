"""Find the first message of a queue that was stored at a time or later.

Stored times rise along a queue of ours.  4.9.7 stores what the clock says, and repeats times where
that was set back: a search by halves alone could then skip messages, so it looks behind itself.

Source: store/ConsumeQueue.java (getOffsetInQueueByTime), which finds the nearest message.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

TimeFrom: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Queue offset and store timestamp (ms) of the first readable message of [first, end).

None if none near `first` can be read; (end, `NEVER`) if none of all can."""

NEVER: Final = 1 << 63
"""Later than every store timestamp."""


def first_at_time(
    time_from: TimeFrom, timestamp: int, first: int, end: int, near: int | None = None
) -> int:
    """Return the queue offset of the first message in [first, end) stored at `timestamp` or later.

    Return `end` if there is none. Where messages right before it cannot be read, return the first
    of these, for it may be the one. `near` is the answer of a broker to the same question: 4.9.7
    names the nearest message, or any of those of that millisecond.
    """
    if near is not None:
        first, end = _around(time_from, timestamp, near, first, end)
    found = _by_halves(time_from, timestamp, first, end)
    while (earlier := _earlier(time_from, timestamp, first, found)) is not None:
        found = _by_halves(time_from, timestamp, first, earlier)
    return found


def _around(
    time_from: TimeFrom, timestamp: int, near: int, first: int, end: int
) -> tuple[int, int]:
    """Return the part to search: the messages beside `near` where these are the right ones."""
    low, high = max(first, near - 1), min(end, near + 2)
    if low < high:
        before, behind = time_from(low, high), time_from(high - 1, high)
        if (low == first or (before is not None and before[1] < timestamp)) and (
            high == end or (behind is not None and behind[1] >= timestamp)
        ):
            return low, high
    return first, end


def _by_halves(time_from: TimeFrom, timestamp: int, low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        found = time_from(middle, high)
        if found is None or found[1] >= timestamp:
            high = middle
        else:
            low = found[0] + 1
    return low


def _earlier(time_from: TimeFrom, timestamp: int, first: int, end: int) -> int | None:
    """Return a message before `end` that was stored as late, in ever longer steps back."""
    step = 1
    while first < end:
        at = max(first, end - step)
        found = time_from(at, end)
        if found is not None and found[0] < end and found[1] >= timestamp:
            return found[0]
        if at == first:
            break
        step *= 2
    return None
