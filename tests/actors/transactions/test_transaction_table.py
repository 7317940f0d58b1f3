"""The transaction table in a broker: fed, synced, found damaged, rebuilt."""

from dataclasses import replace

from structlog.testing import capture_logs

from protocol.codes import ResponseCode
from storage.transactions.table import TransactionTable
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

STATE_TABLE = f"{STORE.root}/transaction/statetable/{0:020d}"
REDO_LOG = f"{STORE.root}/transaction/redolog/covered_offset"
SCRUBBED_MS = 120_000
UNCHECKED = replace(BROKER, transaction_check_interval_ms=1 << 40)
"""Settings without check-backs, so that half messages stay unchanged."""


def with_halves(count: int) -> SimulatedBroker:
    """A broker that was sent half messages."""
    made = SimulatedBroker(1, FakeDisk(), UNCHECKED)
    made.make_topic()
    for number in range(count):
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01key{number}"
        assert made.send(properties=properties).code == ResponseCode.SUCCESS
    return made


def table_of(made: SimulatedBroker) -> TransactionTable:
    return made.broker.store.transaction_table


def test_pending_half_messages_are_saved_periodically() -> None:
    made = with_halves(3)
    made.system.advance(10)
    assert [each.queue_offset for each in table_of(made).pending(10)] == [0, 1, 2]
    made.system.advance(STORE.flush_queue_thorough_interval_ms + 2000)
    assert table_of(made).unsynced() is None
    made.restart_killed()
    assert not made.broker.store.lagging.behind
    assert [each.queue_offset for each in table_of(made).pending(10)] == [0, 1, 2]


def test_a_new_table_is_marked_before_the_thorough_sync() -> None:
    made = with_halves(1)
    assert not made.disk.exists(REDO_LOG)
    made.system.advance(2 * STORE.flush_queue_interval_ms)
    assert made.disk.exists(REDO_LOG)


def test_the_table_catches_up_with_records_not_synced_before_a_kill() -> None:
    made = with_halves(3)
    made.restart_killed()
    made.system.run_until(lambda: table_of(made) in made.broker.store.dispatcher.followers)
    made.system.advance(300)
    assert table_of(made).pending_count == 3


def test_the_scrubber_has_a_table_with_a_flipped_bit_rebuilt() -> None:
    made = with_halves(3)
    made.system.advance(2000)
    made.stop()
    made.start()
    file = made.disk.open(STATE_TABLE)
    file.pwrite(bytes((file.pread(1, 23)[0] ^ 8,)), 23)
    assert [unit.state for unit in table_of(made).snapshot()] == [12, 4, 4]
    with capture_logs() as logs:
        made.system.advance(SCRUBBED_MS)
    assert "transaction table rebuild started" in [line["event"] for line in logs]
    assert [unit.state for unit in table_of(made).snapshot()] == [4, 4, 4]
    assert table_of(made) in made.broker.store.dispatcher.followers
    made.send(properties="TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01more")
    made.system.advance(2000)
    assert table_of(made).pending_count == 4
    with capture_logs() as logs:
        made.stop()
        made.start()
        made.system.advance(SCRUBBED_MS)
    assert "transaction table rebuild started" not in [line["event"] for line in logs]
    assert table_of(made).pending_count == 4
