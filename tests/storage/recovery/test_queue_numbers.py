"""Placement of records that do not continue their queue."""

import pytest

from storage.log.damage import Damage
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.queue_numbers import QueueNumbers
from tests.storage.derived import RECORD_BYTES, config, entry
from troupemq.testing.fake_disk import FakeDisk


class Pass:
    """One pass over a log of records of 100 bytes."""

    def __init__(self, *, may_begin_late: bool = False, may_lack_units: bool = False) -> None:
        self.queues = ConsumeQueues(config(), FakeDisk())
        self.gaps: list[tuple[int, int, str]] = []
        self.damage = Damage()
        self.numbers = QueueNumbers(
            self.queues,
            self.gaps,
            self.damage,
            is_whole_log=not may_lack_units,
            may_begin_late=may_begin_late,
            may_lack_units=may_lack_units,
        )

    def feed(self, *entries: DispatchEntry) -> None:
        for each in entries:
            self.numbers.feed([each])

    def places(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        """The record that each unit points at, as its number in the log."""
        queue = self.queues.get(topic, queue_id)
        assert queue is not None
        units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
        return [unit[0] // RECORD_BYTES for unit in units if unit is not None]

    def damaged(self) -> list[int]:
        return [start // RECORD_BYTES for start, _, _ in self.damage.ranges]


def test_consecutive_queue_offsets_give_units_in_order() -> None:
    made = Pass()
    made.feed(*map(entry, range(5)))
    made.numbers.finish()
    assert made.places() == [0, 1, 2, 3, 4] and not made.damage


def test_units_missing_after_a_gap_point_at_the_gap() -> None:
    made = Pass()
    made.feed(entry(0))
    made.gaps.append((100, 300, "damaged"))
    made.feed(entry(3, queue_offset=2))
    made.numbers.finish()
    assert made.places() == [0, 1, 3]


def test_a_gap_accounts_for_no_more_records_than_fit_into_it() -> None:
    made = Pass()
    made.feed(entry(0))
    made.gaps.append((100, 300, "damaged"))
    made.feed(entry(3, queue_offset=9))
    made.numbers.finish()
    assert made.places() == [0, 3]


def test_a_record_with_a_flipped_queue_offset_keeps_its_unit_as_damage() -> None:
    made = Pass()
    made.feed(entry(0), entry(1, queue_offset=1 + 64), entry(2), entry(3))
    made.numbers.finish()
    assert made.places() == [0, 1, 2, 3] and made.damaged() == [1]


def test_a_flipped_queue_offset_at_the_end_is_recognized() -> None:
    made = Pass()
    made.feed(entry(0), entry(1, queue_offset=1 + 64))
    made.numbers.finish()
    assert made.places() == [0, 1] and made.damaged() == [1]


def test_a_record_flipped_into_another_queue_fills_the_hole_in_its_own() -> None:
    made = Pass()
    made.feed(entry(0), entry(1), entry(2, topic=b"U"), entry(3), entry(4))
    made.numbers.finish()
    assert made.places() == [0, 1, 2, 3, 4] and made.damaged() == [2]


def test_a_record_that_fits_another_queue_costs_one_message() -> None:
    made = Pass()
    made.feed(entry(0, queue_offset=0), entry(1, queue_id=1, queue_offset=0))
    made.feed(entry(2, queue_id=1, queue_offset=1), entry(3, queue_id=1, queue_offset=1))
    made.feed(entry(4, queue_offset=2), entry(5, queue_id=1, queue_offset=2))
    made.numbers.finish()
    assert made.places() == [0, 3, 4] and made.places(queue_id=1) == [1, 2, 5]
    assert made.damaged() == [3]


def test_a_record_with_an_invalid_topic_costs_one_message() -> None:
    made = Pass()
    made.feed(entry(0), entry(1, topic=b"/"), entry(2))
    made.numbers.finish()
    assert made.places() == [0, 1, 2] and made.damaged() == [1]


def test_a_record_flipped_into_a_half_message_costs_one_message() -> None:
    made = Pass()
    made.feed(entry(0), entry(1, sys_flag=4), entry(2))
    made.numbers.finish()
    assert made.places() == [0, 1, 2] and made.damaged() == [1]


def test_an_unexplained_hole_is_closed_as_in_the_original() -> None:
    made = Pass()
    made.feed(entry(0), entry(5), entry(6), entry(7))
    made.numbers.finish()
    assert made.places() == [0, 5, 6, 7] and not made.damage


def test_a_queue_may_start_above_0_if_the_log_does() -> None:
    made = Pass(may_begin_late=True)
    made.feed(entry(5), entry(6))
    made.numbers.finish()
    assert made.places() == [5, 6] and not made.damage


@pytest.mark.parametrize("number", [-5, (1 << 63) - 1])
@pytest.mark.parametrize("behind", [(), (1,), (7, 8)])
@pytest.mark.parametrize("late", [False, True])
def test_a_queue_offset_out_of_range_is_refused_or_stored_at_the_end(
    number: int, behind: tuple[int, ...], late: bool
) -> None:
    """The record is damaged; the start continues with the others."""
    made = Pass(may_begin_late=late)
    made.feed(entry(0, queue_offset=number), *(entry(each) for each in behind))
    made.feed(entry(20, topic=b"U", queue_offset=0))
    made.numbers.finish()
    assert 0 in made.damaged() and made.places("U") == [20]


def test_a_queue_that_lacks_units_needs_a_rebuild() -> None:
    made = Pass(may_lack_units=True)
    made.feed(entry(5), entry(6))
    made.numbers.finish()
    assert set(made.numbers.lost) == {(b"T", 0)}


@pytest.mark.parametrize("old", [1, 2, 5])
def test_a_queue_of_a_recreated_topic_begins_again(old: int) -> None:
    """However long it was: record 1 may seem to go on where a queue of one message ends."""
    made = Pass()
    made.feed(*map(entry, range(old)))
    made.feed(*(entry(old + number, queue_offset=number) for number in range(3)))
    made.numbers.finish()
    assert made.places() == [old, old + 1, old + 2] and not made.damage
