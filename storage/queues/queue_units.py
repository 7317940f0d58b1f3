"""The 20 bytes of a consume queue unit, and how a place among many of them is found.

Physical offsets rise from unit to unit; a flipped bit or a hole breaks that at single places only.
So a border is searched by halves, and where its surroundings disagree the units vote.

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
"""The size that a unit without a message has; its other fields are 0."""
FILLER: Final = UNIT.pack(0, FILLER_BYTES, 0)

Unit: TypeAlias = tuple[int, int, int]
"""(physical offset, record size, tags code)."""

_PAGE_BYTES: Final = 4096
AROUND: Final = 8
"""Units on either side of a border that must agree with it."""


class UnitRun(NamedTuple):
    """Units of one queue that follow each other."""

    topic: bytes
    queue_id: int
    queue_offset: int
    """Of the first of them."""
    units: bytes


def is_behind(unit: Unit | None, border: int) -> bool | None:
    """Whether a unit's record begins at or behind `border`; None if the unit is none.

    A filler lies before everything.
    """
    if unit is None or unit[0] < 0 or unit[1] <= 0:
        return None
    return unit[0] >= border and unit[1] != FILLER_BYTES


def first_behind(
    unit_at: Callable[[int], Unit | None], low: int, high: int, border: int
) -> tuple[int, bool]:
    """The first in [low, high) at or behind `border` (else `high`), and whether it can be relied on

    because the units around agree. What is no unit counts as behind.
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
    """The same where single units lie: the place that the fewest of `units` speak against.

    `first` is the number of the first of them; the earliest of several such places. A unit that
    breaks the order has no say.
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
    """How many units there are up to the last that is not all zeros.

    A single set bit behind a unit of zeros is nobody's unit but a flipped bit.
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
    """Whether the second of these two units is a flipped bit among zeros."""
    return not any(pair[:UNIT_BYTES]) and int.from_bytes(pair[UNIT_BYTES:]).bit_count() == 1


def is_damaged_copy(found: bytes, unit: bytes, position: int) -> bool:
    """Whether `found` was `unit` once: a bit of it is flipped, or a part was never written.

    A power cut leaves parts of a unit that lies across a page border; `position` is in its file.
    """
    if (int.from_bytes(found) ^ int.from_bytes(unit)).bit_count() <= 1:
        return True
    split = min(-position % _PAGE_BYTES, UNIT_BYTES)
    halves = (found[:split], unit[:split]), (found[split:], unit[split:])
    return all(here == there or not any(here) for here, there in halves)
