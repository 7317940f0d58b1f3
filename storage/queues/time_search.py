"""Search for the first message of a queue stored at or after a time.

TroupeMQ's store timestamps rise along a queue. 4.9.7 stores the wall clock, which repeats times
after it was set back. A plain binary search could then skip messages, so the search also looks
back.

Source: store/ConsumeQueue.java (getOffsetInQueueByTime), which finds the nearest message.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

TimeFrom: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Queue offset and store timestamp (ms) of the first readable message of [first, end).

None if no message near `first` is readable; (end, `NEVER`) if no message at all is.
"""

NEVER: Final = 1 << 63
"""Time after every store timestamp."""


def first_at_time(
    time_from: TimeFrom, timestamp: int, first: int, end: int, near: int | None = None
) -> int:
    """Return the queue offset of the first message in [first, end) stored at `timestamp` or later.

    Without such a message, return `end`. If unreadable messages directly precede it, return the
    first of these, which may be the right one. `near` is a broker's answer to the same question:
    4.9.7 returns the nearest message, or any message of that millisecond.
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
    """Return the range to search: the neighbors of `near`, if they bracket the time."""
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
    """Return an earlier message stored at or after `timestamp`, or None.

    The search looks 1, 2, 4, … messages back from `end`, for stored times may go back a little.
    """
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
