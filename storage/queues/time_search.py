"""Finds the message of one queue file that was stored nearest to a moment.

RocketMQ takes the first unit that it cannot follow for the end of its search; here it is passed
over: a hole, or a damaged record, says nothing about its neighbours.

Source: store/ConsumeQueue.java (getOffsetInQueueByTime).
"""

from collections.abc import Callable
from typing import Final, TypeAlias

StoreTime: TypeAlias = Callable[[int, int, int], int]
"""Store timestamp (ms) of the record at (physical offset, size) that has this queue offset;

negative if it is not there."""

UnitAt: TypeAlias = Callable[[int], tuple[int, int, int] | None]
"""(physical offset, record size, tags code) of a queue offset."""

PASSED_OVER_MAX: Final = 4096
"""Units looked at for one that can be followed, at each step."""

_GONE: Final = -2


def nearest_in_time(
    unit_at: UnitAt, store_time: StoreTime, timestamp: int, min_physical: int, low: int, high: int
) -> int | None:
    """The queue offset in [low, high] whose message was stored nearest to `timestamp`.

    An exact match wins; between two messages the nearer one, the earlier if both are as near.
    Records below `min_physical` are gone: None if all are, or if none can be followed. 0 if there
    is no unit where one should be.
    """
    left = right = left_time = right_time = -1
    while low <= high:
        middle = (low + high) // 2
        stored, offset = -1, middle
        for offset in range(middle, min(high, middle + PASSED_OVER_MAX) + 1):
            unit = unit_at(offset)
            if unit is None:
                return 0
            if _is_gone(unit, min_physical):
                if _is_gone(unit_at(offset + 1), min_physical):
                    stored = _GONE
                    break
                continue
            stored = store_time(unit[0], unit[1], offset)
            if stored >= 0:
                break
        if stored == _GONE:
            low, left = offset + 1, offset
        elif stored == timestamp:
            return offset
        elif stored < 0 or stored > timestamp:
            high = middle - 1
            if stored >= 0:
                right, right_time = offset, stored
        else:
            low, left, left_time = offset + 1, offset, stored
    if left_time == -1:
        return right if right >= 0 else None
    if right_time == -1:
        return left
    return right if timestamp - left_time > right_time - timestamp else left


def _is_gone(unit: tuple[int, int, int] | None, min_physical: int) -> bool:
    """Whether a unit's record was deleted; one alone that points before the log is damaged."""
    return unit is None or (unit[0] < min_physical and unit[1] > 0)
