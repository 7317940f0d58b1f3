"""Layout of a consume queue unit (20 bytes), and searches among many units.

Physical offsets rise from unit to unit; a flipped bit or a hole breaks the order only locally. A
border is found by binary search; if nearby units contradict it, a vote of all units decides.

Source: store/ConsumeQueue.java.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

UNIT: Final = Struct(
    ">q"  # physical_offset
    "i"  # record_bytes
    "q"  # tags_code
)
UNIT_BYTES: Final = 20
assert UNIT.size == UNIT_BYTES

FILLER_BYTES: Final = 0x7FFFFFFF
"""Record size of a unit without a message; its other fields are 0."""
FILLER: Final = UNIT.pack(0, FILLER_BYTES, 0)

Unit: TypeAlias = tuple[int, int, int]
"""(physical offset, record size, tags code)."""

_PAGE_BYTES: Final = 4096
AROUND: Final = 8
"""Units on either side of a border that must agree with it."""


class UnitRun(NamedTuple):
    """Consecutive units of one queue."""

    topic: bytes
    queue_id: int
    queue_offset: int
    """Queue offset of the first unit."""
    units: bytes


def is_behind(unit: Unit | None, border: int) -> bool | None:
    """Return whether a unit's record begins at or behind `border`; None for an invalid unit.

    A filler lies before every border.
    """
    if unit is None or unit[0] < 0 or unit[1] <= 0:
        return None
    return unit[0] >= border and unit[1] != FILLER_BYTES


def first_behind(
    unit_at: Callable[[int], Unit | None], low: int, high: int, border: int
) -> tuple[int, bool]:
    """Return the first offset in [low, high) at or behind `border`, and whether it is reliable.

    Without such a unit, the offset is `high`. It is reliable if the nearby units agree. Invalid
    units count as behind the border.
    """
    start, end = low, high
    while low < high:
        middle = (low + high) // 2
        if is_behind(unit_at(middle), border) is False:
            low = middle + 1
        else:
            high = middle
    before, behind = range(max(start, low - AROUND), low), range(low, min(end, low + AROUND))
    agrees = all(is_behind(unit_at(each), border) is False for each in before) and all(
        is_behind(unit_at(each), border) for each in behind
    )
    return low, agrees


def voted_first_behind(units: Iterable[Unit], first: int, border: int) -> int:
    """Return the border position that the fewest units contradict, despite single wrong units.

    `first` is the queue offset of the first unit; the earliest of equal positions wins. Units that
    break the order do not vote.
    """
    best = first
    score = least = before = 0
    real = (each for each in enumerate(units, first + 1) if is_behind(each[1], border) is not None)
    for (place, unit), (_, following) in pairwise((*real, (0, (-1, 0, 0)))):
        if unit[0] < before or before <= following[0] < unit[0]:
            continue
        before = unit[0]
        score += 1 if is_behind(unit, border) else -1
        if score < least:
            least, best = score, place
    return best


def used_units(data: bytes) -> int:
    """Return the number of units up to the last one that is not all zeros.

    A single set bit behind a zero unit counts as a flipped bit, not as a unit.
    """
    used_bytes = len(data.rstrip(b"\0"))
    while used_bytes:
        last = (used_bytes - 1) // UNIT_BYTES
        start = last * UNIT_BYTES
        if not last or not is_stray(data[start - UNIT_BYTES : start + UNIT_BYTES]):
            return last + 1
        used_bytes = len(data[:start].rstrip(b"\0"))
    return 0


def is_stray(pair: bytes) -> bool:
    """Return whether the second of two units is a flipped bit among zeros."""
    return not any(pair[:UNIT_BYTES]) and int.from_bytes(pair[UNIT_BYTES:]).bit_count() == 1


def is_damaged_copy(found: bytes, unit: bytes, position: int) -> bool:
    """Return whether `found` is `unit` with one flipped bit or an unwritten part.

    A power failure may lose part of a unit across a page border; `position` is in its file.
    """
    if (int.from_bytes(found) ^ int.from_bytes(unit)).bit_count() <= 1:
        return True
    split = min(-position % _PAGE_BYTES, UNIT_BYTES)
    halves = (found[:split], unit[:split]), (found[split:], unit[split:])
    return all(here == there or not any(here) for here, there in halves)
