"""Answers to batches of a sink, and the records stored of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from actors.sending import sink
from actors.sending.sink import BatchStored, Sink
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.properties import find_pairs
from protocol.sink import SINK_MARK, parse_mark
from storage.message_store import MessageStore
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.sinking import (
    batch_command,
    chained,
    marks,
    progress_command,
    progress_in,
    pulled,
)
from troupemq.testing.fake_disk import FakeDisk

MESSAGES = chained([b"body %d" % number for number in range(10)], b"TAGS\x01a\x02KEYS\x01k1 k2")


@pytest.fixture
def made() -> SimulatedBroker:
    made = SimulatedBroker(1)
    made.make_topic()
    made.system.drain()
    return made


def sent(made: SimulatedBroker, command: RemotingCommand) -> tuple[int, int]:
    return progress_in(made.ask(command))


def refused(made: SimulatedBroker, command: RemotingCommand) -> tuple[int, str]:
    answer = made.ask(command)
    return answer.code, answer.remark or ""


def test_a_sink_batch_is_stored_as_marked_messages(made: SimulatedBroker) -> None:
    assert sent(made, batch_command(MESSAGES)) == (0, 10)
    records = sorted(pulled(made), key=lambda record: record.physical_offset)
    assert [record.body for record in records] == [each.body for each in MESSAGES]
    assert [record.queue_id for record in records] == [number % 4 for number in range(10)]
    for number, record in enumerate(records):
        found = dict(find_pairs(record.properties))
        mark = parse_mark(found[b"TROUPE_SINK"])
        assert mark is not None
        assert mark[:4] == ("query-1", 0, 0, number)
        assert found[b"UNIQ_KEY"] == mark.unique_key("Topic")
        assert (found[b"TAGS"], found[b"KEYS"]) == (b"a", b"k1 k2")
        assert record.prepared_transaction_offset == SINK_MARK
        assert record.born_timestamp == 1_700_000_000_000


def test_a_timer_of_a_sink_is_delivered_at_its_time() -> None:
    made = SimulatedBroker(1, store_config=replace(STORE, message_delay_level="1s 20s"))
    made.make_topic()
    assert sent(made, batch_command(chained([b"timer"], b"TIMER_DELAY_MS\x0111000"))) == (0, 1)
    made.system.advance(10_900)
    assert made.messages() == []
    made.system.advance(200)
    assert [record.body for record in made.messages()] == [b"timer"]


def test_a_repeated_batch_is_answered_as_done_and_stores_nothing(made: SimulatedBroker) -> None:
    assert sent(made, batch_command(MESSAGES, 0, 7)) == (0, 7)
    assert sent(made, batch_command(MESSAGES, 0, 7)) == (0, 7)
    assert sent(made, batch_command(MESSAGES, 2, 4)) == (0, 7)
    assert sent(made, batch_command(MESSAGES, 5)) == (0, 10)
    assert sent(made, progress_command()) == (0, 10)
    assert list(marks(made).values()) == [1] * 10


def test_an_earlier_batch_is_answered_as_done(made: SimulatedBroker) -> None:
    for batch in (3, 4, 3, 0):
        sent(made, batch_command(MESSAGES, batch=batch))
    assert len(pulled(made)) == 20
    assert sent(made, progress_command()) == (4, 10)


def test_a_batch_after_a_gap_is_refused(made: SimulatedBroker) -> None:
    code, remark = refused(made, batch_command(MESSAGES, 3))
    assert code == ResponseCode.SINK_BATCH_HAS_GAP
    assert remark == "expected message 0 of the batch, got 3"
    sent(made, batch_command(MESSAGES, 0, 3))
    assert refused(made, batch_command(MESSAGES, 4))[0] == ResponseCode.SINK_BATCH_HAS_GAP
    assert refused(made, batch_command(MESSAGES, 3, batch=1))[0] == ResponseCode.SINK_BATCH_HAS_GAP
    assert len(pulled(made)) == 3


@pytest.mark.parametrize("first", [0, 2, 4])
def test_other_rows_under_the_same_numbers_are_refused(made: SimulatedBroker, first: int) -> None:
    sent(made, batch_command(MESSAGES, 0, 4))
    other = [MESSAGES[1], MESSAGES[0], *MESSAGES[2:]]
    other = chained([each.body for each in other], MESSAGES[0].properties)
    code, remark = refused(made, batch_command(other, first))
    assert code == ResponseCode.SINK_BATCH_DIFFERS
    assert "planned differently" in remark
    assert "sortRows" in remark
    assert len(pulled(made)) == 4


def test_lanes_are_independent(made: SimulatedBroker) -> None:
    made.make_topic("Other")
    lanes = [{}, {"partition": 1}, {"query": "query-2"}, {"topic": "Other"}]
    for lane in lanes:
        assert sent(made, batch_command(MESSAGES, **lane)) == (0, 10)  # type: ignore[arg-type]
    keys = {dict(find_pairs(record.properties))[b"UNIQ_KEY"] for record in made.records()}
    assert len(keys) == 40
    assert sent(made, progress_command(query="nobody")) == (-1, 0)


def test_two_concurrent_attempts_store_no_duplicate() -> None:
    seen: set[int] = set()
    for seed in range(5):  # the order of the attempts and the time between them are random
        made = SimulatedBroker(seed)
        made.make_topic()
        answers: list[RemotingCommand] = []
        zombie = made.new_client(2)
        made.client.start(batch_command(MESSAGES, 0, 6), answers.append)
        zombie.start(batch_command(MESSAGES), answers.append)
        made.system.drain()
        seen |= {answer.code for answer in answers}
        assert sent(made, batch_command(MESSAGES)) == (0, 10)
        assert list(marks(made).values()) == [1] * 10
        made.stop()
    assert seen == {0, ResponseCode.SYSTEM_BUSY}


WRONG: dict[str, tuple[dict[str, object], int, str]] = {
    "no topic": ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "topic[Nowhere] not exist"),
    "a topic of the broker's": (
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        ResponseCode.NO_PERMISSION,
        "forbidden",
    ),
    "no query": ({"query": "a:b"}, ResponseCode.SYSTEM_ERROR, "no query"),
    "no partition": ({"partition": -1}, ResponseCode.SYSTEM_ERROR, "no query"),
    "no batch": ({"batch": -1}, ResponseCode.SYSTEM_ERROR, "count from 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_batches_are_refused(made: SimulatedBroker, name: str) -> None:
    options, code, words = WRONG[name]
    found, remark = refused(made, batch_command(MESSAGES, **options))  # type: ignore[arg-type]
    assert found == code
    assert words in remark
    assert made.records() == []


ILLEGAL = {
    "queue": MESSAGES[1]._replace(queue_id=4),
    "key": MESSAGES[1]._replace(properties=b"UNIQ_KEY\x01mine"),
    "half": MESSAGES[1]._replace(properties=b"TRAN_MSG\x01true"),
    "body": MESSAGES[1]._replace(body=bytes(STORE.max_message_bytes + 1)),
    "properties": MESSAGES[1]._replace(properties=b"a\x01" + b"b" * 32_700),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_one_refused_message_refuses_the_whole_batch(made: SimulatedBroker, name: str) -> None:
    code, _ = refused(made, batch_command([MESSAGES[0], ILLEGAL[name], *MESSAGES[2:]]))
    assert code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert made.records() == []
    assert sent(made, batch_command(MESSAGES)) == (0, 10)


def test_a_torn_body_is_refused(made: SimulatedBroker) -> None:
    command = batch_command(MESSAGES)
    assert command.body is not None
    command.body = bytes(command.body)[:-1]
    assert "ends in the middle" in refused(made, command)[1]


def test_a_delayed_sink_message_and_its_delivery_count_once(made: SimulatedBroker) -> None:
    delayed = chained([b"late 0", b"late 1"], b"DELAY\x011")
    assert sent(made, batch_command(delayed)) == (0, 2)
    assert pulled(made) == []
    made.system.advance(5000)
    assert sorted(marks(made).values()) == [1, 1]
    assert sent(made, batch_command(delayed)) == (0, 2)
    made.stop()
    made.start()
    made.system.advance(5000)
    assert sent(made, batch_command(delayed)) == (0, 2)
    assert sent(made, progress_command()) == (0, 2)
    assert len(pulled(made)) == 2


def test_a_copy_from_another_producer_does_not_change_a_lane(made: SimulatedBroker) -> None:
    sent(made, batch_command(MESSAGES, 0, 2))
    text = pulled(made)[0].properties.replace(b":0:0:0:", b":0:7:9:").decode()
    assert made.send(properties=text).code == 0
    made.stop()
    made.start()
    assert sent(made, progress_command()) == (0, 2)


@pytest.mark.parametrize("how", ["stop", "kill", "power cut", "no file"])
def test_the_progress_of_lanes_survives_restarts(how: str) -> None:
    made = SimulatedBroker(1, store_config=replace(STORE, flush_disk_type="SYNC_FLUSH"))
    made.make_topic()
    made.system.drain()
    sent(made, batch_command(MESSAGES, 0, 4, batch=5))
    if how in ("stop", "no file"):
        made.stop()
        assert made.disk.exists("/store/troupemq/sinks.json")
    else:
        made.crash()
    assert isinstance(made.disk, FakeDisk)
    if how == "no file":
        made.disk.unlink("/store/troupemq/sinks.json")
    elif how != "stop":
        made.disk = made.disk.crashed(7) if how == "power cut" else made.disk.killed()
    made.start()
    made.system.advance(2000)
    assert sent(made, batch_command(MESSAGES, batch=5)) == (5, 10)
    assert list(marks(made).values()) == [1] * 10


def test_a_slave_refuses_sink_batches() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, broker_role="SLAVE", broker_id=1))
    code, remark = refused(made, progress_command())
    assert (code, remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave")


def test_after_a_failure_of_an_appending_actor_nothing_is_stored_twice(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor that knows forgets; what it asked for is decided before anything new is taken."""
    sent(made, batch_command(MESSAGES, 0, 4))
    handler = Sink.handlers[BatchStored]

    def fails(*_: object) -> None:
        monkeypatch.setitem(Sink.handlers, BatchStored, handler)
        raise RuntimeError("for the test")

    monkeypatch.setitem(Sink.handlers, BatchStored, fails)
    answer = made.ask(batch_command(MESSAGES, 4, 8))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    made.system.advance(5000)
    assert sent(made, progress_command()) == (0, 8)
    assert sent(made, batch_command(MESSAGES)) == (0, 10)
    assert list(marks(made).values()) == [1] * 10


def test_a_failing_disk_causes_no_loss_and_no_duplicate(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(made, batch_command(MESSAGES, 0, 4))
    log = made.broker.store.commit_log
    append: Callable[..., object] = log.append

    def refuses(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "append", refuses)
    assert refused(made, batch_command(MESSAGES, 4))[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    monkeypatch.setattr(log, "append", append)
    made.system.drain()
    assert sent(made, batch_command(MESSAGES)) == (0, 10)
    assert list(marks(made).values()) == [1] * 10


def test_sink_batches_wait_until_the_whole_log_is_dispatched(made: SimulatedBroker) -> None:
    """While the table is rebuilt, it would take a repeated batch for a new one."""
    sent(made, batch_command(MESSAGES, 0, 4))
    store = made.broker.store
    known = store.dispatcher.followers
    store.dispatcher.followers = tuple(each for each in known if each is not store.sink_table)
    for command in (progress_command(), batch_command(MESSAGES)):
        code, remark = refused(made, command)
        assert (code, "still being read" in remark) == (ResponseCode.SYSTEM_BUSY, True)
    store.dispatcher.followers = known
    assert sent(made, batch_command(MESSAGES)) == (0, 10)
    assert list(marks(made).values()) == [1] * 10


def test_the_sink_table_agrees_with_the_log(made: SimulatedBroker) -> None:
    for batch in range(3):
        sent(made, batch_command(MESSAGES, batch=batch, partition=batch % 2))
    made.system.drain()
    store = made.broker.store
    known = dict(store.sink_table.lanes())
    assert sorted((lane.partition, each.batch, each.sequence) for lane, each in known.items()) == [
        (0, 2, 10),
        (1, 1, 10),
    ]
    made.stop()
    made.disk.unlink("/store/troupemq/sinks.json")
    again = MessageStore(made.store_config, made.disk, made.clock)
    again.open()
    again.catch_up()
    assert again.sink_table.lanes() == known
    again.close()


def test_evicted_lanes_are_logged_for_the_operator() -> None:
    made = SimulatedBroker(1, store_config=replace(STORE, sink_progress_max=2))
    made.make_topic()
    made.system.drain()
    with capture_logs() as logs:
        for partition in range(4):
            sent(made, batch_command(MESSAGES, partition=partition))
            made.system.drain()
        sent(made, progress_command())
    said = [each for each in logs if each["event"] == "sink progress evicted"]
    assert [each["lanes"] for each in said][-1] == 2


def sends_during(made: SimulatedBroker, batch: list[RemotingCommand]) -> int:
    """Return how many sends of another client are answered before the batch is."""
    count, others = 0, made.start_send(b"other", topic="Others")
    while not batch:
        assert made.system.loop.step()
        if others and not batch:
            count += 1
            others = made.start_send(b"other", topic="Others")
    made.system.drain()
    return count


def test_others_are_answered_while_a_batch_with_long_properties_is_prepared(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 500 messages with 28 KB of properties kept all others waiting for 1.0 s."""
    monkeypatch.setattr(sink, "PIECE_BYTES", 60)
    long = chained([b"body %d" % number for number in range(100)], b"TAGS\x01" + b"t" * 20)
    made.make_topic("Others")
    answers: list[RemotingCommand] = []
    made.client.start(batch_command(long), answers.append)
    assert sends_during(made, answers) > 5
    assert progress_in(answers[0]) == (0, 100)
    assert list(marks(made).values()) == [1] * 100


def test_a_batch_with_one_bad_message_is_refused_as_a_whole_after_pieces(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "PIECE_BYTES", 60)
    bad = [*MESSAGES[:-1], MESSAGES[-1]._replace(queue_id=99)]
    code, remark = refused(made, batch_command(bad))
    assert (code, "no queue 99" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert pulled(made) == []
    assert sent(made, batch_command(MESSAGES)) == (0, 10), "its lane is free again"
