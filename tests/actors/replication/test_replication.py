"""A slave has its master's bytes, from any start and after any failure."""

import errno
import re
from dataclasses import replace
from socket import socketpair
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.engine.actor import Actor, handles
from actors.naming.messages import MasterHaAddress
from actors.network.messages import Dial, Dialed
from actors.replication.put_replica import DISPATCH_MS, FEW_RECORDS
from actors.retention.clean_files import FIRST_ROUND_MS
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.replication import CHUNK_BYTES, TOPIC, end_of, fill, following
from tests.support.slave_tables import commit
from troupemq.testing.fake_disk import FakeDisk


def pulled(made: SimulatedBroker, queue_id: int = 0) -> list[bytes]:
    """Return the message bodies that a consumer of this broker gets."""
    topics = made.broker.tables.topics
    topics.value = {**topics.value, TOPIC: replace(topics.value["SELF_TEST_TOPIC"])}
    return [record.body for record in made.messages(TOPIC, queue_id)]


def lines(logs: list[Any], event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


# --- what is transferred


def test_existing_and_new_records_are_replicated_over_many_files() -> None:
    with following() as pair:
        fill(pair, 20)
        pair.advance(1000)
        pair.assert_equal()
        fill(pair, 300)
        pair.advance(1000)
        pair.assert_equal()
        assert end_of(pair.slave) > 4 * STORE.commit_log_file_bytes
        assert pulled(pair.slave) == pulled(pair.master)
        assert len(pulled(pair.slave)) == 80


def test_records_received_in_any_slices_are_published_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.replication.CHUNK_BYTES", 7)
    assert CHUNK_BYTES > 7
    with following(ha_transfer_batch_bytes=50) as pair:
        for number in range(12):
            pair.send(b"%d " % number, topic=TOPIC, queue_id=0)
            pair.settle()
        pair.assert_equal()
        pair.advance(DISPATCH_MS)
        assert len(pulled(pair.slave)) == 12


def dispatched(made: SimulatedBroker) -> int:
    """The messages that the first queue has, in memory or in its files."""
    queue = made.broker.store.consume_queues.get(TOPIC, 0)
    return 0 if queue is None else queue.max_offset


@pytest.mark.parametrize(("rounds", "count"), ((3, 1), (1, FEW_RECORDS + 1)))
def test_few_records_are_dispatched_together_a_little_later(rounds: int, count: int) -> None:
    """The log has them, and they are reported, at once."""
    with following(master_role="SYNC_MASTER") as pair:
        for _ in range(rounds):
            answers = [pair.send(topic=TOPIC, queue_id=0) for _ in range(count)]
            pair.settle()
            assert all(answer[0].code == ResponseCode.SUCCESS for answer in answers)
        pair.assert_equal()
        assert dispatched(pair.slave) == (0 if count == 1 else count)
        pair.advance(DISPATCH_MS)
        assert dispatched(pair.slave) == rounds * count


def test_a_stop_leaves_nothing_for_the_next_start_to_dispatch() -> None:
    with following() as pair:
        pair.send(topic=TOPIC, queue_id=0)
        pair.settle()
        pair.assert_equal()
        assert dispatched(pair.slave) == 0
        pair.stop(pair.slave)
        assert dispatched(pair.slave) == 1
        pair.restart(pair.slave)


def test_unannounced_records_are_dispatched_after_a_failure() -> None:
    """PutReplica fails before Reput has its records; Reput reads them from the log."""
    with following() as pair:
        pair.send(topic=TOPIC, queue_id=0)
        pair.settle()
        assert dispatched(pair.slave) == 0
        pair.slave.system.address("put_message").tell(object())
        pair.advance(1000)
        pair.assert_equal()
        assert dispatched(pair.slave) == 1


def test_an_empty_slave_starts_at_the_masters_last_file() -> None:
    with following() as pair:
        pair.die(pair.slave, FakeDisk())
        fill(pair, 200)
        with capture_logs() as logs:
            pair.restart(pair.slave)
            pair.advance(1000)
        pair.assert_equal()
        begin = pair.slave.broker.store.commit_log.min_offset()
        assert begin == end_of(pair.master) // STORE.commit_log_file_bytes * 65_536 > 0
        (line,) = lines(logs, "commit log started at the master's last file")
        assert line["offset"] == begin
        bodies = pulled(pair.slave)
        assert bodies and pulled(pair.master)[-len(bodies) :] == bodies
        fill(pair, 100)
        pair.advance(1000)
        for died in (pair.kill, pair.cut_power):
            died(pair.slave)
            pair.advance(10_000)
            pair.assert_equal()
            assert pulled(pair.slave)[: len(bodies)] == bodies


def test_a_slave_killed_within_a_record_continues_there() -> None:
    with following(ha_transfer_batch_bytes=700) as pair:
        fill(pair, 3)
        pair.advance(1000)
        pair.cut()
        fill(pair, 1, 5000)
        pair.heal()
        for line in pair.lines:  # one transfer and a bit of it
            line.ways[1].move(712)
        pair.slave.system.drain()
        assert pair.replica.received_offset > end_of(pair.slave)
        pair.kill(pair.slave)
        assert pair.replica.received_offset == end_of(pair.slave)
        pair.advance(10_000)
        pair.assert_equal()


def test_a_slave_stopped_within_a_record_leaves_zeros_after_its_end() -> None:
    with following(ha_transfer_batch_bytes=700) as pair:
        fill(pair, 3)
        pair.cut()
        fill(pair, 1, 5000)
        for line in pair.lines:
            line.ways[1].move(712)
        pair.slave.system.drain()
        log = pair.slave.broker.store.commit_log
        end = log.end_offset
        assert pair.replica.received_offset > end
        pair.stop(pair.slave)
        data = pair.slave.disk.read_bytes(f"{STORE.root}/commitlog/{0:020d}")
        assert data[end:] == bytes(len(data) - end)
        pair.restart(pair.slave)


def test_cold_log_data_is_read_on_a_thread_first() -> None:
    with following() as pair:
        pair.die(pair.slave, pair.slave.disk.killed())  # type: ignore[attr-defined]
        fill(pair, 200)
        pair.stop(pair.master)
        pair.restart(pair.master)
        assert isinstance(pair.master.disk, FakeDisk)
        pair.master.disk.forget_cache(f"{STORE.root}/commitlog")
        pair.send(b"new", topic=TOPIC)
        asked = pair.master.system.address("ha_cold_read").handled
        pair.restart(pair.slave)
        pair.advance(10_000)
        pair.assert_equal()
        assert pair.master.system.address("ha_cold_read").handled > asked


def test_damaged_bytes_are_replicated_unchanged_and_skipped() -> None:
    with following() as pair:
        fill(pair, 3)
        pair.advance(100)
        assert isinstance(pair.master.disk, FakeDisk) and isinstance(pair.slave.disk, FakeDisk)
        pair.die(pair.slave, pair.slave.disk.killed())
        end = end_of(pair.master)
        fill(pair, 3)
        pair.master.disk.flip_bit(f"{STORE.root}/commitlog/{0:020d}", end + 4, 3)
        pair.restart(pair.slave)
        with capture_logs() as logs:
            pair.advance(1000)
        pair.assert_equal()
        (line,) = lines(logs, "invalid record received")
        assert line["offset"] == end
        assert [record.queue_id for record in pair.slave.records()] == [0, 1, 2, 1, 2]
        queue = pair.slave.broker.store.consume_queues.get(TOPIC, 1)
        assert queue is not None and queue.max_offset == 2


# --- refusals


def test_a_slave_ahead_of_the_master_is_refused_and_keeps_its_log() -> None:
    """The master has lost what it had not flushed."""
    with following() as pair:
        fill(pair, 3)
        pair.advance(60_000)
        fill(pair, 50)
        pair.settle()
        before = end_of(pair.slave)
        with capture_logs() as logs:
            pair.die(pair.master, FakeDisk())
            pair.restart(pair.master)
            pair.advance(60_000)
        assert end_of(pair.slave) == before
        refused = [line for line in lines(logs, "slave refused")]
        assert len(refused) == 1 and "log is longer" in refused[0]["reason"]
        (said,) = [
            line
            for line in lines(logs, "replication failed")
            if "cannot connect" not in line["reason"]
        ]
        assert said["reason"].startswith(f"log ends at {before}, the master's at 0: the slave's")


def test_diverged_logs_are_never_joined() -> None:
    """Even a log of the same length differs: 4.9.7 would continue in the middle."""
    with following() as pair:
        fill(pair, 10)
        pair.advance(100)
        before, received = pair.slave.records(), pair.replica.received_offset
        pair.die(pair.master, FakeDisk())
        pair.restart(pair.master)
        pair.master.make_topic(TOPIC)
        fill(pair, 20)
        with capture_logs() as logs:
            pair.advance(30_000)
        assert (pair.slave.records(), pair.replica.received_offset) == (before, received)
        (said,) = lines(logs, "replication failed")
        assert "differs from the master's" in said["reason"]


def test_the_divergence_of_two_logs_is_logged_once() -> None:
    with following() as pair:
        fill(pair, 3, body_bytes=10)
        common = end_of(pair.slave)
        behind = pair.master.disk.killed()  # type: ignore[attr-defined]
        fill(pair, 2, body_bytes=10)
        pair.die(pair.master, behind)
        pair.restart(pair.master)
        with capture_logs() as logs:
            for _ in range(5):
                pair.send(b"of another history")
                pair.advance(12_000)
        (said,) = [
            line["reason"]
            for line in lines(logs, "replication failed")
            if "differs" in line["reason"]
        ]
        told = re.search(r"differs from the master's at (\d+):", said)
        assert told
        record_bytes = 200
        assert common <= int(told[1]) < common + record_bytes


def test_a_slave_that_was_away_too_long_logs_the_reason() -> None:
    with following() as pair:
        fill(pair, 3)
        pair.advance(100)
        before = end_of(pair.slave)
        pair.cut()
        pair.advance(30_000)
        fill(pair, 200)
        log = pair.master.broker.store.commit_log
        log.drop_before(3 * STORE.commit_log_file_bytes)
        pair.heal()
        with capture_logs() as logs:
            pair.advance(30_000)
        assert end_of(pair.slave) == before
        (refused,) = lines(logs, "slave refused")
        assert "the log begins at 196608" in refused["reason"]
        said = lines(logs, "replication failed")[-1]
        assert f"log ends at {before}, the master's begins at 196608" in said["reason"]


def test_a_slave_whose_next_bytes_were_deleted_logs_the_reason() -> None:
    with following() as pair:
        pair.cut()
        fill(pair, 700)
        log = pair.master.broker.store.commit_log
        assert log.drop_before(end_of(pair.master))
        before = log.min_offset()
        with capture_logs() as logs:
            pair.heal()
            pair.advance(1000)
        (refused,) = lines(logs, "slave refused")
        assert f"the log begins at {before}:" in refused["reason"]
        (said,) = lines(logs, "replication failed")
        assert f"the master's begins at {before}" in said["reason"]
        assert 0 < end_of(pair.slave) < before


def test_files_of_another_size_are_refused() -> None:
    with following(slave_store=replace(STORE, commit_log_file_bytes=32_768)) as pair:
        with capture_logs() as logs:
            fill(pair, 50, 900)
            pair.advance(20_000)
        (said,) = lines(logs, "replication failed")[-1:]
        assert "mappedFileSizeCommitLog must be the same as the master's" in said["reason"]
        assert 0 < end_of(pair.slave) < 32_768


def test_a_half_open_link_is_detected_on_both_sides() -> None:
    with following() as pair:
        fill(pair, 3)
        pair.advance(100)
        replicas = pair.master.broker.replicas
        assert replicas.link_count == 1
        pair.cut()
        with capture_logs() as logs:
            pair.advance(19_000)
            assert replicas.link_count == 1
            pair.advance(3_000)
            assert replicas.link_count == 0
        assert "silent for" in lines(logs, "slave disconnected")[0]["reason"]
        assert "silent for" in lines(logs, "master connection closed")[0]["reason"]
        fill(pair, 3)
        pair.heal()
        pair.advance(7_000)
        pair.assert_equal()


class Dials(Actor):
    """Keeps the calls of a slave, for a test to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Dial] = []

    @handles(Dial)
    def on_dial(self, message: Dial) -> None:
        self.calls.append(message)


def test_a_connection_to_a_master_replaced_meanwhile_is_dropped() -> None:
    """The slave would follow the former master, away from the promoted one."""
    dials, late = Dials(), socketpair()
    slave = SimulatedBroker(
        1,
        config=replace(BROKER, broker_role="SLAVE", broker_id=1),
        instead={"ha_dial": lambda _: dials},
    )
    for address in ("192.0.2.1:10912", "192.0.2.3:10912"):
        slave.system.address("ha_slave").tell(MasterHaAddress(address))
        slave.system.drain()
    dials.calls[0].reply_to.tell(Dialed(late[0]))
    slave.system.drain()
    assert late[0].fileno() < 0, "closed"
    assert [each.address for each in dials.calls] == ["192.0.2.1:10912", "192.0.2.3:10912"]
    late[1].close()


def test_an_idle_pair_stays_connected() -> None:
    with following() as pair:
        with capture_logs() as logs:
            pair.advance(120_000)
        assert not lines(logs, "slave disconnected")
        assert len(pair.lines) == 1


def test_a_clean_stop_of_the_master_completes_the_slave() -> None:
    with following() as pair:
        fill(pair, 50)
        end = end_of(pair.master)
        for line in pair.lines:
            line.ways[1].move(1 << 30)
        pair.settle()
        pair.stop(pair.master)
        assert end_of(pair.slave) == end


# --- a disk that refuses


def test_a_slave_reconnects_after_its_disk_was_full() -> None:
    with following() as pair:
        fill(pair, 3)
        pair.advance(100)
        assert isinstance(pair.slave.disk, FakeDisk)
        pair.slave.disk.fail_next("pwrite", OSError(errno.EIO, "Input/output error"))
        with capture_logs() as logs:
            fill(pair, 3)
            pair.advance(500)
        assert lines(logs, "replication failed")
        pair.advance(6_000)
        pair.assert_equal()


@pytest.mark.parametrize("name", ("put_message", "ha_slave", "reput", "flusher"))
def test_a_restarted_ha_slave_continues(name: str) -> None:
    with following(ha_transfer_batch_bytes=700) as pair:
        fill(pair, 3)
        pair.send(bytes(5000), topic=TOPIC)
        pair.stir(3)
        pair.slave.system.address(name).tell(object())
        fill(pair, 3)
        pair.advance(12_000)
        pair.assert_equal()
        assert pair.slave.system.address(name).incarnation == 2


@pytest.mark.parametrize("name", ("put_message", "ha_master", "group_commit", "ha_cold_read"))
def test_a_restarted_ha_master_continues(name: str) -> None:
    with following(master_role="SYNC_MASTER") as pair:
        answers = [pair.send(bytes(5000), topic=TOPIC) for _ in range(20)]
        pair.stir(2)
        pair.master.system.address(name).tell(object())
        pair.advance(12_000)
        assert all(answers), "a send was not answered"
        last = pair.send(topic=TOPIC)
        pair.advance(100)
        assert last[0].code == 0
        pair.assert_equal()
        assert pair.master.system.address(name).incarnation == 2


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [False, True])
def test_a_slave_keeps_new_messages_of_a_queue_that_its_master_cleaned(kills: bool) -> None:
    """The queue began again below the numbers that the slave has; after a kill it does."""
    with following(store=replace(STORE, commit_log_file_bytes=16_384)) as pair:
        master = pair.master
        for number in range(30):
            pair.send(b"old %d" % number, topic=TOPIC, queue_id=0)
        commit(master, "consumers", 25)
        master.make_topic("Other", queues=1)
        for _ in range(60):
            pair.send(bytes(1000), topic="Other", queue_id=0)
        pair.advance(20_000)
        for code in (Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_EXPIRED_CONSUMEQUEUE):
            assert master.ask(RemotingCommand(code)).code == ResponseCode.SUCCESS
            pair.advance(FIRST_ROUND_MS)
        if kills:
            pair.kill(master)
            pair.advance(10_000)
        new = [b"new %d" % number for number in range(40)]
        for body in new:
            pair.send(body, topic=TOPIC, queue_id=0)
        pair.advance(1000)
        assert pulled(master) == new
        assert pulled(pair.slave)[-40:] == new
        assert master.offset(Code.GET_MAX_OFFSET) == pair.slave.offset(Code.GET_MAX_OFFSET)
        assert (master.offset(Code.GET_MIN_OFFSET) == 25) is kills
