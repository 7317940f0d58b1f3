"""Places among units: found by halves, and by a vote where single units are wrong."""

import pytest

from storage.queues.queue_units import (
    FILLER_BYTES,
    UNIT,
    Unit,
    first_behind,
    is_damaged_copy,
    used_units,
    voted_first_behind,
)

UNITS: list[Unit] = [(number * 100, 100, 0) for number in range(1000)]


def border(units: list[Unit], border: int) -> int:
    found, agrees = first_behind(units.__getitem__, 0, len(units), border)
    return found if agrees else voted_first_behind(units, 0, border)


def test_binary_search_finds_every_border() -> None:
    for number in range(1001):
        assert first_behind(UNITS.__getitem__, 0, 1000, number * 100) == (number, True)


@pytest.mark.parametrize("wrong", [(1 << 40, 100, 0), (0, 100, 0), (0, 0, 0), (-5, 100, 0)])
def test_a_wrong_unit_on_the_search_path_is_outvoted(wrong: Unit) -> None:
    units = list(UNITS)
    units[500] = wrong
    for number in (1, 250, 490, 499, 502, 510, 750, 999):
        assert border(units, number * 100) == number


def test_a_zero_page_before_the_border_does_not_move_it() -> None:
    units = list(UNITS)
    units[400:604] = [(0, 0, 0)] * 204
    assert border(units, 90_000) == 900
    assert border(units, 50_000) == 400


def test_fillers_sort_before_every_unit() -> None:
    units = [(0, FILLER_BYTES, 0)] * 100 + UNITS
    assert border(units, 0) == 100


@pytest.mark.parametrize("count", [0, 1, 2, 819, 3276])
def test_units_are_counted_up_to_the_last_nonzero_one(count: int) -> None:
    unit = UNIT.pack(7, 100, 0)
    assert used_units(unit * count + bytes(400)) == count
    assert used_units(unit * count + bytes(20) + unit + bytes(400)) == count + 2
    stray = bytes(60) + b"\x10" + bytes(39)
    assert used_units(unit * count + stray + bytes(400)) == count
    assert used_units(unit * count + stray + stray) == count


def test_a_flipped_or_half_written_unit_is_recognized() -> None:
    unit = UNIT.pack(70_000, 100, 12)
    for bit in range(160):
        flipped = (int.from_bytes(unit) ^ 1 << bit).to_bytes(20)
        assert is_damaged_copy(flipped, unit, 0)
    assert is_damaged_copy(bytes(20), unit, 0)
    for split in range(1, 20):
        position = 4096 - split
        assert is_damaged_copy(unit[:split] + bytes(20 - split), unit, position)
        assert is_damaged_copy(bytes(split) + unit[split:], unit, position)
    assert not is_damaged_copy(UNIT.pack(70_100, 100, 12), unit, 0)
    assert not is_damaged_copy(UNIT.pack(0, 100, 12), unit, 0)
