"""The offset at a time, and the time of the earliest message, in spite of damage."""

from collections.abc import Callable

import pytest

from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes
from tests.support.doubts import OldStore


class Timed(OldStore):
    """One message every 1,000 ms, from `start_ms` on."""

    start_ms = 0

    def __init__(self, count: int = 12) -> None:
        super().__init__(1)
        self.start_ms = self.made.clock.now_ms()
        for _ in range(count - 1):
            self.made.clock.advance(1000)
            self.send(1)
        self.times = QueueTimes(self.log, self.damage)

    def at(self, second: float) -> int:
        """The offset found for a time, in seconds after the first message."""
        return self.times.offset_at(self.queue, self.start_ms + int(second * 1000))

    def earliest_s(self) -> float:
        return (self.times.earliest(self.queue) - self.start_ms) / 1000


def test_the_first_message_at_or_after_a_time_is_found() -> None:
    timed = Timed()
    assert [timed.at(second) for second in (-5, 0, 3, 3.4, 3.6, 11, 99)] == [0, 0, 3, 4, 4, 11, 12]
    assert timed.earliest_s() == 0


def test_a_missing_queue_has_offset_0_and_no_earliest_message() -> None:
    times = Timed().times
    assert times.offset_at(None, 5) == 0
    assert times.earliest(None) == -1


def test_damaged_records_are_skipped() -> None:
    timed = Timed()
    for number in (0, 5, 6):
        timed.flip_record(number, 4)
    assert [timed.at(second) for second in (0, 4, 4.1, 5.9, 7)] == [1, 4, 7, 7, 7]
    assert timed.earliest_s() == 1
    offset, size = timed.placed[7]
    timed.damage.add(offset, offset + size, "its body")
    assert timed.at(7) == 8


def test_invalid_units_are_skipped() -> None:
    timed = Timed()
    timed.queue.write_out()
    other = timed.made.send(1, topic="Other")[0]
    for number, unit in ((0, (0, 0)), (5, timed.placed[9]), (6, other), (7, (1 << 40, 100))):
        timed.set_unit(number, *unit)
        tail = timed.queue.tail  # units that are still in memory as well
        first = (number - timed.queue.tail_first) * 20
        part = timed.queue.file_part(number, 1)
        assert part is not None
        if first >= 0:
            tail[first : first + 20] = timed.made.disk.open(part[0]).pread(20, part[1])
    assert timed.earliest_s() == 1
    assert [timed.at(second) for second in (0, 3, 4, 8, 9)] == [1, 3, 4, 8, 9]
    assert timed.at(6) == 8


def test_messages_deleted_from_the_log_are_not_found() -> None:
    old = OldStore(120)
    old.log.queue.drop_below(old.log.queue.files[0].end_offset)
    first = next(n for n, (offset, _) in enumerate(old.placed) if offset >= old.log.min_offset())
    times = QueueTimes(old.log, old.damage)
    assert times.offset_at(old.queue, 0) == first
    assert times.earliest(old.queue) > 0


def test_cold_data_is_not_touched() -> None:
    old = OldStore(120)
    now_ms = old.made.clock.now_ms()
    times = QueueTimes(old.log, old.damage, PageProbe(old.log, 1 << 30))
    old.made.disk.forget_cache()
    asks: tuple[Callable[[], int], ...] = (
        lambda: times.earliest(old.queue),
        lambda: times.offset_at(old.queue, now_ms - 1),
    )
    for ask in asks:
        steps = 0
        while True:
            try:
                ask()
            except ColdPages as cold:
                steps += 1
                for path, position, count in cold.parts:
                    old.made.disk.open(path).pread(count, position)
            else:
                break
        assert 0 < steps < 30
    with pytest.raises(ColdPages):
        old.made.disk.forget_cache()
        QueueTimes(old.log, old.damage, PageProbe(old.log, 1 << 30)).earliest(old.queue)
