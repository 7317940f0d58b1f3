"""A slave started as a master continues transactions, delays and offsets."""

from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from structlog.testing import capture_logs

from actors.naming.messages import MasterClientAddress
from storage.tables.json_config import save
from storage.tables.topics import format_topics, parse_topics
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.receiving import (
    Received,
    ack_command,
    batch_ack_command,
    receive_command,
    received,
)
from tests.support.replication import TOPIC, Pair, following
from tests.support.slave_tables import MASTER, commit, text_of
from tests.support.slave_tables import following as taking_tables
from tests.support.transacting import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    end_command,
    pending_count,
    producing,
    questions,
    sending,
)
from troupemq.testing.fake_disk import FakeDisk


def becomes_master(
    pair: Pair, *, kills: bool = False, power_cut: int | None = None
) -> SimulatedBroker:
    """The master dies; the slave is stopped, or dies too, and is started as a master."""
    pair.die(pair.master, pair.master.disk)  # type: ignore[arg-type]
    slave = pair.slave
    if power_cut is not None:
        pair.die(slave, slave.disk.crashed(power_cut))  # type: ignore[attr-defined]
    elif kills:
        pair.die(slave, slave.disk.killed())  # type: ignore[attr-defined]
    else:
        pair.stop(slave)
    slave.config = replace(slave.config, broker_role="ASYNC_MASTER", broker_id=0)
    slave.start()
    return slave


def test_a_promotion_keeps_the_state_of_transactions() -> None:
    with following(master_role="SYNC_MASTER") as pair:
        keys = ("committed", "rolled back", "open", "ended later")
        halves = {}
        for key in keys:
            answers = pair.send(topic=TOPIC, **sending(key))
            pair.advance(200)
            halves[key] = pair.master.stored(answers[0])
        for key, outcome in (("committed", COMMIT), ("rolled back", ROLLBACK)):
            pair.master.client.start(end_command(halves[key], outcome))
        pair.advance(1000)
        assert pending_count(pair.slave) == 2, "the slave's table follows its log"
        pair.slave.system.advance(2 * INTERVAL_MS)
        new = becomes_master(pair)
        assert pending_count(new) == 2
        producer = producing(new)
        new.client.start(end_command(halves["ended later"], COMMIT))
        new.system.advance(INTERVAL_MS + 1000)
        (question,) = questions(producer)
        assert question.half.body == b"body of open"
        new.client.start(end_command(question, COMMIT))
        new.system.advance(1000)
        bodies = [record.body for record in new.messages(TOPIC)]
        assert sorted(bodies) == [b"body of committed", b"body of ended later", b"body of open"]
        assert pending_count(new) == 0


def test_delayed_messages_are_delivered_by_the_new_master() -> None:
    with following(master_role="SYNC_MASTER") as pair:
        for number, level in enumerate((1, 5)):
            pair.send(b"%d" % number, topic=TOPIC, queue_id=0, properties=f"DELAY\x01{level}\x02")
        pair.advance(5000)
        assert len(pair.master.messages(TOPIC)) == 1
        assert len(pair.slave.records()) == 3
        new = becomes_master(pair)
        new.system.advance(70_000)
        assert {record.body for record in new.messages(TOPIC)} == {b"0", b"1"}


def test_promotion_after_a_power_cut_delivers_a_delayed_message_whose_copy_is_lost() -> None:
    """The slave's table said that it was delivered, and the copy in its log was not synced."""
    with taking_tables(store=replace(STORE, flush_interval_ms=700)) as (pair, _):
        pair.master.make_topic(TOPIC)
        pair.advance(12_600)
        pair.send(b"delayed", topic=TOPIC, queue_id=0, properties="DELAY\x013\x02")
        pair.advance(10_450)  # to the copy of the tables, between two syncs
        assert text_of(pair.slave, "delayOffset").startswith(b'{\n\t"offsetTable":{3:1')
        new = becomes_master(pair, power_cut=1)
        new.system.advance(15_000)
        assert [each.body for each in new.messages(TOPIC)] == [b"delayed"]


@pytest.mark.parametrize("kills", [False, True])
def test_messages_of_a_topic_unknown_to_the_slave_are_served(kills: bool) -> None:
    """Acknowledged under SYNC_MASTER: the log has them, and no table of the slave's the topic."""
    with following(master_role="SYNC_MASTER") as pair:
        pair.master.make_topic("New")
        pair.master.make_topic("Other")
        answers = [pair.send(b"%d" % n, topic="New", queue_id=n % 3) for n in range(9)]
        answers += [pair.send(b"retried", topic="%RETRY%group", queue_id=0)]
        pair.advance(100)
        assert [answer[0].code for answer in answers] == [0] * 10
        assert "New" not in pair.slave.broker.tables.topics.value
        with capture_logs() as lines:
            new = becomes_master(pair, kills=kills)
        (line,) = (each for each in lines if each["event"] == "topics found by their queues")
        assert line["topics"] == ["%RETRY%group", "New"], "and none without a message"
        for queue_id in range(3):
            bodies = [b"%d" % n for n in range(9) if n % 3 == queue_id]
            assert [record.body for record in new.messages("New", queue_id)] == bodies
        assert [record.body for record in new.messages("%RETRY%group")] == [b"retried"]
        assert "group" in new.broker.tables.groups.value
        assert (new.send(topic="New", queue_id=2).fields or {})["queueOffset"] == "3"


def test_a_promotion_creates_missing_queues_of_a_topic() -> None:
    with following(master_role="SYNC_MASTER") as pair:
        pair.slave.config = replace(pair.slave.config, broker_role="ASYNC_MASTER", broker_id=0)
        pair.stop(pair.slave)
        pair.slave.start()
        pair.slave.make_topic(TOPIC, queues=2, perm=4)
        pair.stop(pair.slave)
        pair.slave.config = replace(pair.slave.config, broker_role="SLAVE", broker_id=1)
        pair.restart(pair.slave)
        pair.advance(6000)
        pair.send(topic=TOPIC, queue_id=3)
        pair.advance(100)
        new = becomes_master(pair)
        config = new.broker.tables.topics.value[TOPIC]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 4)
        assert len(new.messages(queue_id=3)) == 1


def test_deleted_topics_do_not_reappear_at_the_masters_next_start() -> None:
    """Only a slave's store lacks topics; of a master's, queues are what a deletion has left."""
    with following(master_role="SYNC_MASTER") as pair:
        pair.send(topic=TOPIC)
        pair.advance(100)
        new = becomes_master(pair)
        new.system.advance(1000)
        assert TOPIC in new.broker.tables.topics.value
        new.stop()
        text = new.disk.read_bytes("/store/config/topics.json").decode()
        table = parse_topics(text)
        del table.topic_configs[TOPIC]
        save(new.disk, "/store/config/topics.json", format_topics(table))
        new.start()
        assert new.broker.store.consume_queues.get(TOPIC, 0) is not None
        assert TOPIC not in new.broker.tables.topics.value


@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_a_promotion_interrupted_by_a_power_cut_is_repeated(steps: int) -> None:
    with following(master_role="SYNC_MASTER") as pair:
        pair.send(topic=TOPIC)
        pair.advance(1100)
        new = becomes_master(pair)
        left = count(-steps)
        with suppress(TimeoutError):  # nothing is left to do
            new.system.run_until(lambda: next(left) >= 0, 0)
        disk = new.disk
        assert isinstance(disk, FakeDisk)
        pair.die(new, disk.crashed(steps))
        new.start()
        new.system.advance(1000)
        assert len(new.messages(TOPIC)) == 1


def test_a_slave_started_empty_continues_after_the_offsets_of_an_idle_topic() -> None:
    """The slave's log starts at the master's last file: it has only offsets of the topic."""
    with taking_tables() as (pair, _):
        pair.master.make_topic(TOPIC)
        pair.master.make_topic("Busy")
        for _ in range(30):
            pair.send(topic=TOPIC, queue_id=0)
            pair.send(properties="DELAY\x011\x02", topic="Busy", queue_id=0)
        pair.advance(5000)
        commit(pair.master, "consumers", 30)
        for _ in range(100):
            pair.send(bytes(1000), topic="Busy", queue_id=1)
        pair.advance(1000)
        pair.die(pair.slave, FakeDisk())
        pair.restart(pair.slave)
        pair.slave.system.address("slave_sync").tell(MasterClientAddress(MASTER))
        pair.advance(25_000)
        assert pair.slave.broker.store.commit_log.min_offset() > 0
        new = becomes_master(pair)
        sent = [b"%d" % number for number in range(30)]
        numbers = [
            new.stored(new.send(body, topic=TOPIC, queue_id=0)).queue_offset for body in sent
        ]
        assert numbers == [*range(30, 60)]
        assert [record.body for record in new.messages(TOPIC)] == sent
        new.send(b"late", topic=TOPIC, queue_id=1, properties="DELAY\x011\x02")
        new.system.advance(5000)
        assert [record.body for record in new.messages(TOPIC, 1)] == [b"late"]


def test_offsets_beyond_the_slaves_log_are_lowered_to_its_end() -> None:
    with taking_tables() as (pair, _):
        pair.master.make_topic(TOPIC)
        for _ in range(5):
            pair.send(topic=TOPIC, queue_id=0)
        pair.advance(1000)
        commit(pair.master, "consumers", 5)
        pair.advance(21_000)
        commit(pair.slave, "consumers", 9)  # from a master with a longer log
        with capture_logs() as logs:
            new = becomes_master(pair)
        (line,) = [each for each in logs if each["event"] == "consumer offset moved"]
        assert (line["offset"], line["moved_to"]) == (9, 5)
        assert new.broker.tables.offsets.value["Topic@consumers"] == {0: 5}


@pytest.mark.trial(short=1, long=100)
def test_promoted_slave_hands_out_all_that_was_not_settled(seed: int) -> None:
    """The slave has offsets of up to ten seconds before, and nothing settled above them."""
    print(f"seed {seed}")
    random = Random(seed)
    with taking_tables() as (pair, _):
        pair.master.make_topic(TOPIC)
        pair.advance(21_000)
        settled: set[bytes] = set()
        held: list[Received] = []
        for number in range(random.randrange(20, 60)):
            pair.send(b"%d" % number, topic=TOPIC, queue_id=number % 2)
            pair.advance(random.choice((10, 200, 2_000)))
            held += receive_some(pair.master, random.randrange(1, 9))
            random.shuffle(held)
            count_now = random.randrange(len(held) + 1)
            if count_now:
                now, held = held[:count_now], held[count_now:]
                command = batch_ack_command(now) if len(now) > 1 else ack_command(now[0])
                pair.master.client.start(command)
                settled |= {each.body for each in now}
            if random.random() < 0.05:
                pair.kill(pair.master)
                held = []
        pair.advance(random.choice((100, 5_000, 21_000)))
        sent = {each.body for each in pair.slave.records() if each.topic == TOPIC}
        new = becomes_master(pair, kills=random.random() < 0.5)
        for _ in range(2):
            found = {each.body for _ in range(9) for each in receive_some(new, 32)}
            assert sent - settled <= found
            new.restart_killed()


def receive_some(made: SimulatedBroker, number: int) -> list[Received]:
    made.system.drain()
    command = receive_command(topic=TOPIC, count=number, invisible_ms=1_000_000)
    return received(made.client.request(command), TOPIC)
