"""A record counts only if the unit of its number points at it, and at nothing more."""

import pytest

from storage.dispatching.dispatch import Dispatcher
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import RecordPlace, UnitsOfRecords, place_of
from tests.support.brokers import SimulatedBroker
from tests.support.pulls import broker
from troupemq.testing.fake_disk import FakeDisk


@pytest.fixture
def made() -> SimulatedBroker:
    return broker(300)  # a file of its queue has 300 units, and 256 stay in memory


def units_of(made: SimulatedBroker) -> UnitsOfRecords:
    store = made.broker.store
    return UnitsOfRecords(store.consume_queues, store.dispatcher, PageProbe(store.commit_log, 0))


def test_a_record_place_that_matches_its_unit_agrees(made: SimulatedBroker) -> None:
    units = units_of(made)
    for record in made.messages():
        assert units.is_dispatched(place_of(record)) and units.agree(place_of(record))


def test_a_record_place_with_any_wrong_field_does_not_agree(made: SimulatedBroker) -> None:
    units, place = units_of(made), place_of(made.messages()[100])
    assert units.agree(place)
    wrong: list[RecordPlace] = [
        place._replace(topic="Other"),
        place._replace(queue_id=1),
        place._replace(queue_id=-1),
        place._replace(record_bytes=place.record_bytes + 1),
        place._replace(physical_offset=place.physical_offset + 1),
        *(place._replace(queue_offset=number) for number in (99, 101, 300, -1, 1 << 62, -1 << 63)),
    ]
    for each in wrong:
        assert not units.agree(each) and not units.cold(each), each


def test_a_record_place_below_the_min_offset_does_not_agree(made: SimulatedBroker) -> None:
    units, messages = units_of(made), made.messages()
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    queue.correct_min_offset(messages[10].physical_offset)
    assert [units.agree(place_of(messages[n])) for n in (9, 10)] == [False, True]


def test_a_record_that_is_not_dispatched_yet_agrees(made: SimulatedBroker) -> None:
    store, place = made.broker.store, place_of(made.messages()[-1])
    behind = Dispatcher(store.consume_queues)
    units = UnitsOfRecords(store.consume_queues, behind, PageProbe(store.commit_log, 0))
    end = place.physical_offset + place.record_bytes
    for dispatched, is_dispatched in ((0, False), (end - 1, False), (end, True)):
        behind.dispatched_offset = dispatched
        assert units.is_dispatched(place) is is_dispatched


def test_a_cold_unit_is_named(made: SimulatedBroker) -> None:
    place = place_of(made.messages()[5])
    made.stop()
    made.start()
    assert isinstance(made.disk, FakeDisk)
    made.disk.forget_cache("/store/consumequeue")
    units = units_of(made)
    ((path, position, size),) = units.cold(place)
    assert (path, position, size) == ("/store/consumequeue/Topic/0/" + "0" * 20, 5 * 20, 20)
    made.disk.open(path, read_only=True).pread(size, position)
    assert not units_of(made).cold(place) and units.agree(place)
    assert not units.cold(place._replace(queue_offset=301))
