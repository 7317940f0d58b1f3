"""To look at many records in one pass says the same as to look at each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.topic_names import SCHEDULE_TOPIC
from storage.reading.checked_get import CheckedGet
from storage.reading.get_message import GetResult, GetStatus
from storage.reading.page_probe import PageProbe
from storage.reading.unit_check import UnitCheck
from tests.support.doubts import OldStore

settings.register_profile("checks", derandomize=True, max_examples=60, deadline=None)
profile = settings.get_profile("checks")

COUNT = 9
GETS = [(0, 32), (2, 32), (3, 1), (3, 2), (4, 32), (5, 3), (8, 1)]


@contextmanager
def one_by_one() -> Iterator[None]:
    """Gets look at each record by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnitCheck, "all_agree", lambda *_: False)
        yield


@contextmanager
def only_together() -> Iterator[None]:
    """No get looks at a record by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(CheckedGet, "collect")
        yield


def shown(old: OldStore) -> list[tuple[Any, ...]]:
    results: list[GetResult] = [old.get(offset, count=count) for offset, count in GETS]
    return [
        (replace(result, views=[], span=None), [bytes(view) for view in result.views])
        for result in results
    ]


def both_agree(old: OldStore) -> None:
    with one_by_one():
        wanted = shown(old)
    assert shown(old) == wanted


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("body_bytes", [0, 1, 700])
def test_valid_units_are_checked_in_one_pass(is_alone: bool, body_bytes: int) -> None:
    old = OldStore(COUNT, is_alone=is_alone, body_bytes=body_bytes)
    with one_by_one():
        wanted = shown(old)
    with only_together():
        assert shown(old) == wanted
    assert [result.count for result, _ in wanted] == [9, 7, 1, 2, 5, 3, 1]


def test_valid_units_far_behind_the_log_end_are_checked_in_one_pass() -> None:
    old = OldStore(COUNT)
    old.limits = replace(old.limits, in_memory_bytes=0, disk_count_max=4)
    with one_by_one():
        wanted = shown(old)
    with only_together():
        assert shown(old) == wanted
    assert [result.count for result, _ in wanted] == [4, 4, 1, 2, 4, 3, 1]
    assert all(result.is_far_behind for result, _ in wanted)


@pytest.mark.parametrize("count", [0, -1, -40])
def test_a_get_of_no_message_has_the_same_outcome(count: int) -> None:
    old = OldStore(COUNT)
    with one_by_one():
        wanted = old.get(1, count=count)
    assert old.get(1, count=count) == wanted


@pytest.mark.parametrize(
    "properties",
    [
        "\x02TAGS\x01first",
        "\x02TAGS\x01",
        "\x02KEYS\x01TAGS\x01A",
        "\x02MYTAGS\x01B",
        "\x02KEYS\x01é\x02TAGS\x01é",
        "\x02TAGS\x01x\x02TAGS\x01",
        "\x02",
    ],
)
def test_a_tag_is_found_at_any_position(properties: str) -> None:
    old = OldStore(COUNT, properties=properties)
    with one_by_one():
        wanted = shown(old)
    with only_together():
        assert shown(old) == wanted


@pytest.mark.heavy
@given(
    number=st.integers(0, COUNT - 1),
    position=st.integers(0, 150),
    bit=st.integers(0, 7),
    is_alone=st.booleans(),
    is_far=st.booleans(),
)
@profile
def test_a_flipped_bit_of_a_record_has_the_same_outcome(
    number: int, position: int, bit: int, is_alone: bool, is_far: bool
) -> None:
    old = OldStore(COUNT, is_alone=is_alone)
    if is_far:
        old.limits = replace(old.limits, in_memory_bytes=0, disk_count_max=4)
    old.flip_record(number, min(position, old.placed[number][1] - 1), bit)
    both_agree(old)


@pytest.mark.heavy
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_flipped_bit_of_a_unit_has_the_same_outcome(is_alone: bool) -> None:
    old = OldStore(COUNT, is_alone=is_alone)
    for bit in range(160):
        old.flip_unit(4, bit)
        both_agree(old)
        old.flip_unit(4, bit)


@pytest.mark.parametrize("size", [-1, 0, 1, 40, 90, 91, 1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("number", [0, 4, 8])
def test_a_unit_of_another_size_has_the_same_outcome(number: int, size: int) -> None:
    for is_alone in (True, False):
        old = OldStore(COUNT, is_alone=is_alone)
        old.set_unit(number, old.placed[number][0], size)
        both_agree(old)


def test_two_units_that_point_at_one_record_have_the_same_outcome() -> None:
    old = OldStore(COUNT)
    old.set_unit(4, *old.placed[3])
    both_agree(old)
    assert old.get(4).status is GetStatus.IN_DOUBT


def test_a_damaged_range_is_left_to_single_checks() -> None:
    old = OldStore(COUNT, is_alone=False)
    offset, size = old.placed[5]
    old.damage.add(offset, offset + size, "its body")
    both_agree(old)
    assert old.get(0).count == COUNT - 1


def test_delayed_messages_are_checked_singly() -> None:
    old = OldStore(COUNT, topic=SCHEDULE_TOPIC, properties="\x02DELAY\x013")
    both_agree(old)
    assert old.get(0).count == COUNT


def test_cold_ranges_are_named_alike() -> None:
    old = OldStore(COUNT, is_alone=False)
    old.made.disk.forget_cache("/store/commitlog")
    result = old.get(2, probe=PageProbe(old.log, 1 << 30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.reading.get_message._compared", lambda *_: None)
        wanted = old.get(2, probe=PageProbe(old.log, 1 << 30))
    assert result.status is GetStatus.COLD
    assert result == wanted
    assert not result.views
