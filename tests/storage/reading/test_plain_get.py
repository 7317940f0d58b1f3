"""Whole blocks of units give what going through them one by one gives."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.queues.consume_queue import ConsumeQueue
from storage.queues.message_filter import MessageFilter
from storage.queues.queue_files import QueueFiles
from storage.reading.get_message import GetLimits, GetResult, GetStatus, get_message
from storage.reading.plain_get import PlainGet
from tests.storage.reading.test_get_message import LIMITS, LOG_FILE_BYTES, Log, a_queue, get
from troupemq.testing.fake_disk import FakeDisk

settings.register_profile("gets", derandomize=True, max_examples=80, deadline=None)
profile = settings.get_profile("gets")


@contextmanager
def one_by_one() -> Iterator[None]:
    """Gets go through the units one by one."""
    with pytest.MonkeyPatch.context() as patch:
        for way in ("everything", "of_tags"):
            patch.setattr(PlainGet, way, lambda *_: None)
        yield


def plain(result: GetResult) -> tuple[Any, ...]:
    views = [bytes(view) for view in result.views]
    return replace(result, views=[], span=None), views


@pytest.mark.parametrize("tags", [None, {0, 2}, {1}])
@pytest.mark.parametrize("gap", [0, 10])
def test_a_plain_get_does_not_iterate_over_the_units(
    monkeypatch: pytest.MonkeyPatch, tags: set[int] | None, gap: int
) -> None:
    queue = a_queue(200, gap=gap)
    with one_by_one():
        wanted = [plain(get(queue, offset, tags=tags)) for offset in range(0, 200, 7)]
    monkeypatch.delattr("storage.reading.get_message._collect")
    assert [plain(get(queue, offset, tags=tags)) for offset in range(0, 200, 7)] == wanted


@pytest.mark.parametrize("disk_count_max", [1, 3, 32])
@pytest.mark.parametrize("near_bytes", [0, 9_600])
def test_a_plain_get_works_far_behind_the_log_end(
    monkeypatch: pytest.MonkeyPatch, near_bytes: int, disk_count_max: int
) -> None:
    """But where what is far behind meets what is not."""
    limits = replace(LIMITS, in_memory_bytes=near_bytes, disk_count_max=disk_count_max)
    queue, log = a_queue(200, gap=10), Log(200 * 110)
    places = [each for each in range(0, 200, 7) if not near_bytes or each + disk_count_max < 112]
    with one_by_one():
        wanted = [plain(get(queue, offset, log=log, limits=limits)) for offset in range(200)]
    assert [plain(get(queue, offset, log=log, limits=limits)) for offset in range(200)] == wanted
    monkeypatch.delattr("storage.reading.get_message._collect")
    for offset in places:
        assert plain(get(queue, offset, log=log, limits=limits)) == wanted[offset]


def test_tags_without_messages_are_searched_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("storage.reading.get_message._collect")
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 2000 * 20))
    for number in range(2000):
        queue.append(number, number * 100, 100, number // 1000)
    result = get(queue, 10, tags={5}, log=Log(10**9, file_bytes=1 << 20))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 810)


@pytest.mark.parametrize("tags", [None, {0, 1}, {1}, {-1}])
@pytest.mark.parametrize(
    ("unit", "limits"),
    [
        ((5, 100, 0), LIMITS),
        ((440, 100, 1), LIMITS),
        ((400, 0, 1), LIMITS),
        ((400, -3, 2), LIMITS),
        ((400, 5000, 2), replace(LIMITS, memory_bytes_max=2000)),
        ((400, 1 << 16, 2), LIMITS),
        ((400, 1 << 24, 2), LIMITS),
        ((400, 70_000, 2), replace(LIMITS, memory_bytes_max=70_300)),
        ((400, 100, (1 << 32) + 1), LIMITS),
        ((400, 100, -1), LIMITS),
        ((400, 100, (1 << 32) - 1), LIMITS),
        ((400, 100, -(1 << 31) - 5), LIMITS),
        ((99_990, 100, 1), LIMITS),
        ((9_990, 100, 1), LIMITS),
        ((400, 100, 1), replace(LIMITS, memory_bytes_max=450)),
        ((400, 100, 1), replace(LIMITS, in_memory_bytes=0, disk_count_max=2)),
        ((400, 100, 1), replace(LIMITS, in_memory_bytes=9_600, disk_count_max=2)),
    ],
)
def test_an_unusual_unit_is_checked_singly(
    tags: set[int] | None, unit: tuple[int, int, int], limits: GetLimits
) -> None:
    queue, log = a_queue(100, gap=10), Log(10_000)
    queue.repair(4, *unit)

    def outcome() -> object:
        try:
            return plain(get(queue, 0, count=10, tags=tags, log=log, limits=limits))
        except AssertionError:  # of the log: nothing lies there
            return "nothing"

    with one_by_one():
        expected = outcome()
    assert outcome() == expected


@st.composite
def queues(draw: st.DrawFn) -> tuple[ConsumeQueue, int]:
    """Records before and behind each other in the log, and where that ends."""
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 300 * 20))
    end = draw(st.sampled_from([0, 50_000, LOG_FILE_BYTES - 2_000]))
    gaps = st.sampled_from(draw(st.sampled_from([[0], [0, 7], [7, 90], [0, 0, 0, 50_000]])))
    code = st.sampled_from([0, 1, 2]) | st.sampled_from([-(1 << 40), 1 << 31, -(1 << 31), 1 << 40])
    tags = draw(st.sampled_from([st.sampled_from([0, 1, 2]), code, st.just(0)]))
    for number in range(draw(st.integers(1, 120))):
        start, size = end + draw(gaps), draw(st.integers(1, 300))
        if start // LOG_FILE_BYTES != (start + size - 1) // LOG_FILE_BYTES:
            start += LOG_FILE_BYTES - start % LOG_FILE_BYTES
        queue.append(number, start, size, draw(tags))
        end = start + size
    if draw(st.booleans()):
        queue.write_out()
    return queue, end


@pytest.mark.heavy
@settings(profile)
@given(queues(), st.data())
def test_a_plain_get_equals_a_get_unit_by_unit(
    made: tuple[ConsumeQueue, int], data: st.DataObject
) -> None:
    queue, end = made
    draw = data.draw
    is_odd = draw(st.integers(0, 3)) == 0
    if is_odd:  # a unit that points somewhere else
        place = draw(st.integers(0, queue.max_offset - 1))
        queue.repair(place, draw(st.integers(-5, end)), draw(st.integers(-5, 500)), 1)
    limits = GetLimits(
        in_memory_bytes=draw(st.sampled_from([1 << 40, 0, end // 2])),
        log_file_bytes=LOG_FILE_BYTES,
        memory_bytes_max=draw(st.sampled_from([256 << 10, 1, 1000, 5000])),
        memory_count_max=draw(st.sampled_from([32, 5, 1])),
        disk_bytes_max=500,
        disk_count_max=2,
    )
    log = Log(end - draw(st.sampled_from([0, 0, 300])), draw(st.sampled_from([0, 0, 200, 60_000])))
    offset = draw(st.integers(0, queue.max_offset - 1))
    count = draw(st.sampled_from([32, 1, 3, 0, -1, 1000]))
    tags = draw(st.none() | st.sets(st.sampled_from([0, 1, 2, 3, -(1 << 31)])))
    wanted = draw(st.sampled_from([None if tags is None else MessageFilter(tags), MessageFilter()]))

    def outcome() -> object:
        try:
            found = get_message(queue, log, offset, count, wanted, limits)
        except AssertionError:  # of the log: nothing lies there
            return "nothing"
        # Behind a unit that is out of order the hint is of another record.
        return plain(replace(found, is_far_behind=found.is_far_behind and not is_odd))

    with one_by_one():
        expected = outcome()
    assert outcome() == expected
