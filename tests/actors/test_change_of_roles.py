"""A slave started as a master goes on where its master was: transactions, delays, offsets."""

from dataclasses import replace

from tests.support.brokers import SimulatedBroker
from tests.support.replication import TOPIC, Pair, following
from tests.support.transacting import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    Producer,
    end_command,
    pending_count,
    sending,
)


def becomes_master(pair: Pair) -> SimulatedBroker:
    pair.die(pair.master, pair.master.disk)  # type: ignore[arg-type]
    pair.stop(pair.slave)
    slave = pair.slave
    slave.config = replace(slave.config, broker_role="SYNC_MASTER", broker_id=0)
    slave.start()
    slave.make_topic(TOPIC)
    return slave


def test_open_transactions_stay_open_and_ended_ones_ended() -> None:
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
        producer = Producer(new)
        new.client.start(end_command(halves["ended later"], COMMIT))
        new.system.advance(INTERVAL_MS + 1000)
        (question,) = producer.questions()
        assert question.half.body == b"body of open"
        new.client.start(end_command(question, COMMIT))
        new.system.advance(1000)
        bodies = [record.body for record in new.messages(TOPIC)]
        assert sorted(bodies) == [b"body of committed", b"body of ended later", b"body of open"]
        assert pending_count(new) == 0


def test_what_was_delayed_is_delivered_by_the_new_master() -> None:
    with following(master_role="SYNC_MASTER") as pair:
        for number, level in enumerate((1, 5)):
            pair.send(b"%d" % number, topic=TOPIC, queue_id=0, properties=f"DELAY\x01{level}\x02")
        pair.advance(5000)
        assert len(pair.master.messages(TOPIC)) == 1
        assert len(pair.slave.records()) == 3
        new = becomes_master(pair)
        new.system.advance(70_000)
        assert {record.body for record in new.messages(TOPIC)} == {b"0", b"1"}
