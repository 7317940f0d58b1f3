"""Ranges of damage, told in any order."""

from random import Random

import pytest

from storage.log.damage import Damage


def damaged_bytes(damage: Damage) -> int:
    return sum(end - start for start, end, _ in damage.ranges)


def test_ranges_are_sorted_and_joined() -> None:
    damage = Damage()
    assert damage.add(300, 400, "c") and damage.add(0, 100, "a") and damage.add(100, 150, "b")
    assert [known[:2] for known in damage.ranges] == [(0, 150), (300, 400)]
    assert damage.ranges[0][2] == "b; a" and damaged_bytes(damage) == 250
    assert not damage.add(310, 390, "again") and not damage.add(5, 5, "nothing")


def test_overlapping_ranges_are_found() -> None:
    damage = Damage()
    assert not damage and not damage.overlaps(0, 1 << 40)
    damage.add(100, 200, "x")
    assert damage.overlaps(199, 300) and damage.overlaps(0, 101) and damage.overlaps(150, 150)
    assert not damage.overlaps(200, 300) and not damage.overlaps(0, 100)
    assert damage.end_of(50, 101) == 200 and damage.end_of(200, 201) is None


def test_ranges_below_the_min_offset_are_dropped() -> None:
    damage = Damage()
    for start in (0, 100, 200):
        damage.add(start, start + 50, "x")
    damage.forget_below(120)
    assert [known[:2] for known in damage.ranges] == [(120, 150), (200, 250)]
    damage.forget_from(200)
    assert [known[:2] for known in damage.ranges] == [(120, 150)]


@pytest.mark.parametrize("number", range(20))
def test_damage_ranges_agree_with_a_set_of_bytes(number: int) -> None:
    random = Random(number)
    damage, expected = Damage(), set[int]()
    for _ in range(30):
        start = random.randrange(100)
        end = start + random.randrange(1, 8)
        assert damage.add(start, end, "x") is not expected.issuperset(range(start, end))
        expected |= set(range(start, end))
        assert damaged_bytes(damage) == len(expected)
    for start in range(110):
        for size in (1, 3, 9):
            assert damage.overlaps(start, start + size) is not expected.isdisjoint(
                range(start, start + size)
            )
