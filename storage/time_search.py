"""Finds the message of one queue file that was stored nearest to a moment.

Source: store/ConsumeQueue.java (getOffsetInQueueByTime).
"""

from collections.abc import Callable
from typing import TypeAlias

StoreTime: TypeAlias = Callable[[int, int], int]
"""Store timestamp (ms) of the record at (physical offset, size); negative if it is not there."""

UnitAt: TypeAlias = Callable[[int], tuple[int, int, int] | None]
"""(physical offset, record size, tags code) of a queue offset."""


def nearest_in_time(
    unit_at: UnitAt, store_time: StoreTime, timestamp: int, min_physical: int, low: int, high: int
) -> int | None:
    """The queue offset in [low, high] whose message was stored nearest to `timestamp`.

    An exact match wins; between two messages the nearer one, the earlier if both are as near.
    Records below `min_physical` are gone: None if all are, 0 if one that should be there is not.
    """
    left = right = left_time = right_time = -1
    while low <= high:
        middle = (low + high) // 2
        unit = unit_at(middle)
        if unit is None:
            return 0
        if unit[0] < min_physical:
            low, left = middle + 1, middle
            continue
        stored = store_time(unit[0], unit[1])
        if stored < 0:
            return 0
        if stored == timestamp:
            return middle
        if stored > timestamp:
            high, right, right_time = middle - 1, middle, stored
        else:
            low, left, left_time = middle + 1, middle, stored
    if left_time == -1:
        return right if right >= 0 else None
    if right_time == -1:
        return left
    return right if timestamp - left_time > right_time - timestamp else left
