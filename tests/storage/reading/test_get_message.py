"""Gets for pulls: statuses, corrected offsets, limits, log ranges, and whole blocks of units."""

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
from storage.reading.get_message import (
    EXAMINED_UNITS_MAX,
    GetLimits,
    GetResult,
    GetStatus,
    PlainGet,
    get_message,
)
from troupemq.testing.fake_disk import FakeDisk

settings.register_profile("gets", derandomize=True, max_examples=80, deadline=None)
profile = settings.get_profile("gets")

LOG_FILE_BYTES = 100_000
LIMITS = GetLimits(in_memory_bytes=1 << 40, log_file_bytes=LOG_FILE_BYTES)


class Log:
    """Byte n of every file is n mod 251."""

    def __init__(self, end_offset: int, begin: int = 0, file_bytes: int = LOG_FILE_BYTES) -> None:
        self.end_offset = end_offset
        self._begin = begin
        self._file_bytes = file_bytes
        pattern = bytes(range(251))
        self._bytes = memoryview((pattern * (file_bytes // 251 + 1))[:file_bytes])

    def min_offset(self) -> int:
        return self._begin

    def view(self, offset: int, size: int) -> memoryview:
        position = offset % self._file_bytes
        assert self._begin <= offset and offset + size <= self.end_offset
        assert position + size <= self._file_bytes
        return self._bytes[position : position + size]


def a_queue(count: int, *, size: int = 100, gap: int = 0, first: int = 0) -> ConsumeQueue:
    """Records of `size` bytes, `gap` bytes of other queues between them; tags 0, 1, 2, 0, 1 …"""
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 300 * 20))
    for number in range(first, first + count):
        queue.append(number, number * (size + gap), size, number % 3)
    return queue


def get(
    queue: ConsumeQueue | None,
    offset: int,
    *,
    count: int = 32,
    log: Log | None = None,
    tags: set[int] | None = None,
    limits: GetLimits = LIMITS,
) -> GetResult:
    wanted = None if tags is None else MessageFilter(tags)
    return get_message(queue, log or Log(10**9), offset, count, wanted, limits)


def test_adjacent_messages_are_one_view() -> None:
    result = get(a_queue(100), 10)
    assert result.status is GetStatus.FOUND
    assert (result.next_offset, result.count, result.body_bytes) == (42, 32, 3200)
    assert (result.min_offset, result.max_offset) == (0, 100)
    assert [view.tobytes() for view in result.views] == [bytes(n % 251 for n in range(1000, 4200))]


def test_messages_of_other_queues_between_them_split_the_views() -> None:
    result = get(a_queue(100, gap=10), 10, count=3)
    assert [(view[0], len(view)) for view in result.views] == [
        (offset % 251, 100) for offset in (1100, 1210, 1320)
    ]


def test_a_run_ends_where_a_log_file_ends() -> None:
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 6000))
    for number, offset in enumerate((99_800, 99_900, 100_000, 100_100)):
        queue.append(number, offset, 100, 0)
    assert [len(view) for view in get(queue, 0).views] == [200, 200]


@pytest.mark.parametrize(
    "offset, status, corrected",
    [
        (0, GetStatus.OFFSET_TOO_SMALL, 310),
        (309, GetStatus.OFFSET_TOO_SMALL, 310),
        (310, GetStatus.FOUND, 315),
        (315, GetStatus.OFFSET_OVERFLOW_ONE, 315),
        (316, GetStatus.OFFSET_OVERFLOW_BADLY, 315),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    offset: int, status: GetStatus, corrected: int
) -> None:
    result = get(a_queue(5, first=310), offset)
    assert (result.status, result.next_offset) == (status, corrected)
    assert (result.min_offset, result.max_offset) == (310, 315)


def test_without_offset_checking_a_slave_returns_the_requested_offset() -> None:
    limits = GetLimits(1 << 40, LOG_FILE_BYTES, correct_offsets=False)
    for queue, offset in ((None, 7), (a_queue(0), 7), (a_queue(5), 9), (a_queue(5, first=310), 9)):
        assert get(queue, offset, limits=limits).next_offset == offset
    assert get(a_queue(5), 5, limits=limits).next_offset == 5


def test_a_missing_or_empty_queue_starts_at_offset_0() -> None:
    assert get(None, 7) == GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    assert get(a_queue(0), 7) == GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_one_pull_never_crosses_a_queue_file() -> None:
    result = get(a_queue(400), 290)
    assert (result.next_offset, result.count) == (300, 10)


def test_tags_select_messages_and_the_next_offset_follows_the_last_unit_read() -> None:
    result = get(a_queue(100), 0, count=5, tags={1})
    assert (result.count, result.next_offset) == (5, 14)
    assert [len(view) for view in result.views] == [100] * 5
    result = get(a_queue(100), 0, tags={5})
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 100)
    result = get(a_queue(100), 0, tags={0, 1, 2})
    assert (result.count, len(result.views)) == (32, 1)


def test_at_most_800_units_are_read() -> None:
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 20_000 * 20))
    for number in range(2000):
        queue.append(number, number * 100, 100, 0)
    assert get(queue, 0, tags={1}).next_offset == 800
    assert get(queue, 0, tags={1}, count=1000).next_offset == 1000


def test_a_request_for_billions_of_messages_reads_a_limited_number_of_units() -> None:
    """A pull read a whole file, and kept a layout of 4 MiB for each length of the rest."""
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 20_000 * 20))
    for number in range(EXAMINED_UNITS_MAX + 1_000):
        queue.append(number, number * 100, 100, 0)
    for tags in ({1}, {1, 2}):
        assert get(queue, 0, tags=tags, count=(1 << 31) - 1).next_offset == EXAMINED_UNITS_MAX


def test_the_low_32_bits_of_a_due_time_are_compared() -> None:
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 6000))
    for number, code in enumerate(((7 << 32) | 5, (7 << 32) | 0xFFFFFFFF, -6)):
        queue.append(number, number * 100, 100, code)
    for code in (5, -1, -6):
        assert get(queue, 0, tags={code}).count == 1


@pytest.mark.parametrize(
    "asked, size, count",
    [(10, 100, 10), (64, 100, 32), (0, 100, 1), (32, 50_000, 5), (32, 300_000, 1)],
)
def test_a_pull_from_memory_returns_up_to_32_messages_and_256_kib(
    asked: int, size: int, count: int
) -> None:
    limits = GetLimits(1 << 40, 50 * size)
    log = Log(10**9, file_bytes=50 * size)
    result = get(a_queue(40, size=size), 0, count=asked, log=log, limits=limits)
    assert (result.count, result.next_offset) == (count, count)
    assert not result.is_far_behind


@pytest.mark.parametrize("asked, size, count", [(32, 100, 8), (3, 100, 3), (32, 30_000, 2)])
def test_a_pull_from_disk_returns_up_to_8_messages_and_64_kib(
    asked: int, size: int, count: int
) -> None:
    limits = GetLimits(0, 50 * size)
    log = Log(10**9, file_bytes=50 * size)
    result = get(a_queue(40, size=size), 0, count=asked, log=log, limits=limits)
    assert result.count == count
    assert result.is_far_behind


def test_a_pull_that_reaches_memory_continues_with_the_memory_limits() -> None:
    limits = GetLimits(in_memory_bytes=9_500, log_file_bytes=LOG_FILE_BYTES)
    result = get(a_queue(100), 0, log=Log(10_000), limits=limits)
    assert (result.count, result.is_far_behind) == (32, False)


def test_deleted_records_are_skipped_to_the_next_log_file() -> None:
    log = Log(10**9, begin=LOG_FILE_BYTES)
    result = get(a_queue(300, size=1000), 0, log=log)
    assert (result.status, result.count) == (GetStatus.FOUND, 32)
    assert result.next_offset == 132
    result = get(a_queue(50, size=1000), 0, log=log)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 50)


def test_unpublished_records_are_not_returned() -> None:
    result = get(a_queue(100), 0, log=Log(1050))
    assert (result.status, result.count, result.body_bytes) == (GetStatus.FOUND, 10, 1000)


def test_an_invalid_unit_is_skipped() -> None:
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(FakeDisk(), 6000))
    queue.append(0, 100, LOG_FILE_BYTES, 0)
    queue.append(1, 2 * LOG_FILE_BYTES, 100, 0)
    result = get(queue, 0)
    assert (result.count, result.next_offset) == (1, 2)


def test_an_offset_whose_file_is_missing_leads_to_the_next_file() -> None:
    disk = FakeDisk()
    queue = ConsumeQueue("T", 0, "/cq/T/0", QueueFiles(disk, 6000))
    for number in range(1000):
        queue.append(number, number * 100, 100, 0)
    queue.write_out()
    queue.trim_before(310 * 100)
    queue.min_offset = 0
    result = get(queue, 5)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 300)


# --- whole blocks of units give what going through them one by one gives


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
