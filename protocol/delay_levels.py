"""The setting messageDelayLevel: the delay of each level.

Source: store/schedule/ScheduleMessageService.java (parseDelayLevel).
"""

from re import ASCII
from re import compile as compile_pattern

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SECOND_MS = 1000
DELAY_MS_MAX = 366 * 86_400 * _SECOND_MS
"""Longest delay that an earlier messageDelayLevel may have had."""
_LEVEL = compile_pattern(r"(\d{1,9})([smhd])", ASCII)


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Return a text such as `1s 5s 1m 2h` in ms. Raise ValueError with the first invalid word."""
    found = []
    for word in text.split():
        level = _LEVEL.fullmatch(word)
        if level is None:
            raise ValueError(f"{word} is not a number with a unit of s, m, h or d")
        found.append(int(level[1]) * _UNIT_MS[level[2]])
    return tuple(found)


def is_due_time(store_timestamp: int, code: int) -> bool:
    """Return whether a tags code may be a due time by an earlier messageDelayLevel.

    Delays are whole seconds: a flipped bit never turns one valid due time into another.
    """
    delay_ms = code - store_timestamp
    return delay_ms % _SECOND_MS == 0 and 0 <= delay_ms <= DELAY_MS_MAX
