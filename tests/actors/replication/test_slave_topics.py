"""Topics that the master creates, deletes and recreates while a slave follows."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from actors.naming.messages import MasterClientAddress
from actors.tables.messages import RemoveTopic
from protocol.bodies_tables import TopicConfigTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import TopicHeader
from storage.tables.json_config import save
from storage.tables.topics import format_topics
from tests.support.brokers import SimulatedBroker
from tests.support.replication import TOPIC, Pair, following
from tests.support.slave_tables import MASTER, ToMaster, commit
from tests.support.slave_tables import following as taking_tables


def delete_topic(made: SimulatedBroker, topic: str = TOPIC) -> None:
    fields = TopicHeader(topic).encode()
    assert made.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, fields)).code == 0


def send(pair: Pair, *bodies: str, queue_id: int = 0, topic: str = TOPIC) -> None:
    answers = [pair.send(body.encode(), topic=topic, queue_id=queue_id) for body in bodies]
    pair.advance(100)
    assert all(answer[0].code == 0 for answer in answers)


def pulled(made: SimulatedBroker, queue_id: int = 0, topic: str = TOPIC) -> list[str]:
    return [record.body.decode() for record in made.messages(topic, queue_id)]


def queued(made: SimulatedBroker, queue_id: int = 0) -> list[str]:
    """Return the messages in the queue, whatever the topic table has."""
    store = made.broker.store
    queue = store.consume_queues.get(TOPIC, queue_id)
    assert queue is not None
    units = [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]
    records = [store.commit_log.read_record(unit[0]) for unit in units if unit is not None]
    return [record.body.decode() for record in records if record is not None]


def on_disk(made: SimulatedBroker, queue_id: int = 0) -> bool:
    made.system.advance(1000)
    return bool(made.disk.listdir(f"/store/consumequeue/{TOPIC}/{queue_id}"))


@contextmanager
def with_tables() -> Iterator[tuple[Pair, ToMaster]]:
    with taking_tables() as (pair, client):
        pair.master.make_topic(TOPIC)
        pair.advance(4000)
        yield pair, client


OLD = [f"old {number}" for number in range(5)]
NEW = [f"new {number}" for number in range(9)]


def test_a_recreated_topic_starts_from_zero_on_the_slave() -> None:
    with with_tables() as (pair, _):
        send(pair, *OLD)
        delete_topic(pair.master)
        pair.master.make_topic(TOPIC)
        send(pair, *NEW[:1])
        assert pulled(pair.slave) == NEW[:1]
        send(pair, *NEW[1:])
        assert pulled(pair.slave) == NEW == pulled(pair.master)
        assert on_disk(pair.slave)
        assert pair.slave.disk.listdir("/store/troupemq/removed") == [], "the old files are deleted"


def test_queues_still_empty_at_the_master_are_emptied() -> None:
    with with_tables() as (pair, _):
        for queue_id in range(3):
            send(pair, *OLD, queue_id=queue_id)
        delete_topic(pair.master)
        pair.master.make_topic(TOPIC)
        send(pair, "first", queue_id=1)
        send(pair, "second", queue_id=0)
        pair.advance(11_000)
        for queue_id, expected in ((0, ["second"]), (1, ["first"]), (2, []), (3, [])):
            assert pulled(pair.slave, queue_id) == expected
        send(pair, *NEW, queue_id=2)
        assert pulled(pair.slave, 2) == NEW


def test_other_queues_of_a_recreated_topic_are_kept() -> None:
    """A master also removes single queues without messages in its log (306)."""
    with with_tables() as (pair, _):
        for queue_id in range(3):
            send(pair, *OLD, queue_id=queue_id)
        clean_files = pair.master.system.address("clean_files")
        clean_files.tell(RemoveTopic(TOPIC, None, queue_ids=frozenset({0})))
        pair.advance(1000)
        send(pair, "new")
        pair.advance(21_000)
        assert pulled(pair.slave) == ["new"]
        assert [pulled(pair.slave, queue_id) for queue_id in (1, 2)] == [OLD, OLD]


def test_the_next_table_removes_a_deleted_topics_queues() -> None:
    with with_tables() as (pair, _):
        send(pair, *OLD)
        pair.master.make_topic("Other")
        send(pair, "other", topic="Other")
        assert on_disk(pair.slave)
        delete_topic(pair.master)
        pair.advance(11_000)
        assert pair.slave.broker.store.consume_queues.get(TOPIC, 0) is None
        assert not pair.slave.disk.exists(f"/store/consumequeue/{TOPIC}/0")
        pair.kill(pair.slave)
        pair.advance(5000)
        assert pair.slave.broker.store.consume_queues.get(TOPIC, 0) is None
        pair.slave.system.address("slave_sync").tell(MasterClientAddress(MASTER))
        pair.master.make_topic(TOPIC)
        send(pair, *NEW)
        pair.advance(11_000)
        assert pulled(pair.slave) == NEW


def test_a_disconnected_slave_applies_the_deletion_later() -> None:
    with with_tables() as (pair, _):
        send(pair, *OLD)
        pair.cut()
        for body in NEW:
            pair.send(body.encode(), topic=TOPIC, queue_id=0)
        pair.master.system.drain()
        delete_topic(pair.master)
        pair.slave.system.advance(11_000)
        pair.master.system.advance(11_000)
        pair.heal()
        pair.advance(60_000)
        pair.assert_equal()
        assert pair.slave.broker.store.consume_queues.get(TOPIC, 0) is None


def test_a_master_that_lost_its_topic_table_causes_no_deletion() -> None:
    with with_tables() as (pair, _):
        pair.master.make_topic("Other")
        send(pair, *OLD)
        pair.advance(11_000)
        pair.die(pair.master, pair.master.disk)  # type: ignore[arg-type]
        save(pair.master.disk, "/store/config/topics.json", format_topics(TopicConfigTable()))
        pair.restart(pair.master)
        pair.advance(40_000)
        assert TOPIC not in pair.slave.broker.tables.topics.value
        queue = pair.slave.broker.store.consume_queues.get(TOPIC, 0)
        assert queue is not None and queue.max_offset == len(OLD)


def test_a_slave_that_is_killed_between_both_generations_serves_the_new_one() -> None:
    for count in (1, 2, 5, 9):
        with following() as pair:
            send(pair, *OLD)
            pair.advance(2000)
            delete_topic(pair.master)
            pair.master.make_topic(TOPIC)
            send(pair, *NEW[:count])
            pair.kill(pair.slave)
            pair.advance(6000)
            send(pair, *NEW[count:], "the last")
            assert queued(pair.slave) == [*NEW, "the last"], count


def test_a_topic_is_requested_when_its_first_message_arrives() -> None:
    with with_tables() as (pair, client):
        client.asked.clear()
        for name in ("A", "B"):
            pair.master.make_topic(name)
        answers = [pair.send(topic=name, queue_id=0) for name in ("A", "B")]
        pair.advance(200)
        assert all(answer[0].code == 0 for answer in answers)
        assert {"A", "B"} <= pair.slave.broker.tables.topics.value.keys()
        assert client.asked == [21, 43, 45, 201, 28, 402], "once for both"


def test_unknown_topics_are_requested_at_most_once_a_second() -> None:
    with with_tables() as (pair, client):
        client.asked.clear()
        for number in range(30):
            name = f"New{number}"
            pair.master.make_topic(name)
            send(pair, "body", topic=name)
            pair.advance(100)
        pair.advance(1000)
        assert client.asked.count(21) <= 9, "30 topics in 6 s"
        assert "New29" in pair.slave.broker.tables.topics.value


def test_a_topic_missing_at_the_master_is_requested_once() -> None:
    with with_tables() as (pair, client):
        client.down = True
        pair.master.make_topic("New")
        with capture_logs() as lines:
            for _ in range(5):
                send(pair, "body", topic="New")
                pair.advance(1100)
        assert [line["event"] for line in lines].count("unknown topics received") == 1
        client.down = False
        pair.advance(10_000)
        assert len(pulled(pair.slave, topic="New")) == 5


@pytest.mark.parametrize("again", [False, True])
def test_offsets_of_a_deleted_topic_are_deleted_on_the_slave(again: bool) -> None:
    """Else a slave that becomes the master would skip what the topic gets when it is made again."""
    with with_tables() as (pair, _):
        send(pair, *OLD)
        commit(pair.master, "consumers", len(OLD))
        pair.advance(11_000)
        assert pair.slave.broker.tables.live_offsets.value["Topic@consumers"] == {0: len(OLD)}
        delete_topic(pair.master)
        if again:
            pair.master.make_topic(TOPIC)
            send(pair, *NEW)
        pair.advance(31_000)
        assert "Topic@consumers" not in pair.slave.broker.tables.live_offsets.value
