"""The state of the store and its damage, as administrators get them."""

import pytest

from actors.admin.broker_info import PLACES_MAX
from protocol.bodies_own import DamagedPlace, StoreState
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode
from protocol.message import MessageRecord
from tests.support.brokers import SimulatedBroker
from tests.support.peers import request
from troupemq.testing.fake_disk import FakeDisk


def asked(made: SimulatedBroker) -> StoreState:
    return StoreState.decode(made.ask(request(RequestCode.GET_STORE_STATE)).body)


def test_the_first_record_is_not_read_for_each_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 MiB that are cold, the loop would wait for the disk."""
    made = SimulatedBroker(2)
    made.make_topic(queues=1)
    made.send()
    stored_ms, reads = made.clock.now_ms(), list[int]()
    log = made.broker.store.commit_log
    read = log.read_record

    def counted(offset: int) -> MessageRecord | None:
        reads.append(offset)
        return read(offset)

    monkeypatch.setattr(log, "read_record", counted)
    for _ in range(3):
        answer = made.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert KVTable.decode(answer.body).table["earliestMessageTimeStamp"] == str(stored_ms)
        made.system.advance(60_000)
    assert reads == [0]


def test_store_contents_are_listed_with_every_damaged_range() -> None:
    made = SimulatedBroker(3)
    made.make_topic(queues=2)
    made.send()
    made.system.drain()  # until it is dispatched
    store = made.broker.store
    store.damage.add(10, 30, "its CRC is wrong")
    store.damage.add(50, 60, "no record begins there")
    found = asked(made)
    assert (found.log_start, found.log_end) == (0, store.commit_log.end_offset)
    assert found.log_files >= 1 and found.queues >= 1 and found.dispatched == found.log_end
    assert (found.damaged_places, found.damaged_bytes) == (2, 30)
    assert found.damage[0] == DamagedPlace(10, 30, "its CRC is wrong")
    assert (found.damaged_tables, found.verified_percent) == ([], 100)


def test_only_the_first_damaged_ranges_are_listed_and_all_counted() -> None:
    made = SimulatedBroker(4)
    for number in range(PLACES_MAX + 5):
        made.broker.store.damage.add(number * 10, number * 10 + 3, "torn")
    found = asked(made)
    assert (found.damaged_places, len(found.damage)) == (PLACES_MAX + 5, PLACES_MAX)


def test_a_table_found_damaged_at_the_start_is_named() -> None:
    made = SimulatedBroker(5)
    made.make_topic(queues=2)
    made.stop()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    (path,) = [each for each in disk.paths() if each.endswith("config/topics.json")]
    disk.flip_bit(path, 0, 3)  # of its first brace
    made.start()
    assert asked(made).damaged_tables == [path]
