"""Internal appends: prepared records, their queues, and the results of failures."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from actors.dispatching.messages import WritesForbidden
from actors.engine.actor import Actor, handles
from actors.engine.supervisor import ChildSpec
from actors.sending.appender import InternalRecord
from actors.sending.internal_append import InternalAppends
from actors.sending.messages import AppendResult, InternalAppend, InternalAppendGroup
from actors.sending.put_message import PutMessage
from actors.tables.messages import CreateSystemTopic, TopicReady
from protocol.bodies_tables import TopicConfig
from protocol.codes import ResponseCode
from protocol.message import MessageRecord
from protocol.properties import parse
from storage.message_store import MessageStore
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.numbering import delete_topic
from tests.support.peers import Told
from troupemq.testing.fake_disk import FakeDisk


@dataclass(slots=True, eq=False)
class Stored(AppendResult):
    """Result of an append of these tests."""

    name: str = ""


@dataclass(slots=True)
class AllStored:
    """Results of a group of these tests."""

    results: deque[Stored]


class Asker(Actor):
    """Keeps the answers."""

    def __init__(self, answers: list[Stored]) -> None:
        super().__init__()
        self._answers = answers

    @handles(Stored)
    def on_answer(self, message: Stored) -> None:
        self._answers.append(message)


def asked(made: SimulatedBroker) -> list[Stored]:
    answers: list[Stored] = []
    made.system.start(ChildSpec("asker", lambda _: Asker(answers)))
    return answers


def put(made: SimulatedBroker, *records: InternalRecord, name: str = "", **options: Any) -> None:
    reply_to = made.system.address("asker")
    made.system.address("put_message").tell(
        InternalAppend(records, reply_to, Stored(name), **options)
    )


def record(body: bytes = b"own", **fields: Any) -> InternalRecord:
    usual = {"topic": "Topic", "queue_id": 1, "born_timestamp": 5}
    return InternalRecord(body=body, **{**usual, **fields})


def read(made: SimulatedBroker, answer: Stored, number: int = 0) -> MessageRecord:
    found = made.broker.store.commit_log.read_record(answer.results[number].physical_offset)
    assert found is not None
    return found


def test_an_internal_record_is_stored_as_prepared_and_can_be_pulled() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    answers = asked(made)
    host = bytes(range(20))
    put(
        made,
        record(
            properties=b"TAGS\x01a",
            tags_code=97,
            flag=3,
            sys_flag=8 | 0x20,
            born_host=host,
            reconsume_times=4,
            prepared_offset=77,
        ),
        record(b"second"),
        name="mine",
    )
    made.system.advance(100)
    (answer,) = answers
    assert answer.name == "mine"
    assert [(each.code, each.queue_offset) for each in answer.results] == [(0, 0), (0, 1)]
    found = read(made, answer)
    assert (found.topic, found.queue_id, found.body, found.flag) == ("Topic", 1, b"own", 3)
    assert (found.sys_flag, found.born_host, found.born_timestamp) == (8 | 0x10, host, 5)
    assert (found.reconsume_times, found.prepared_transaction_offset) == (4, 77)
    assert [each.body for each in made.messages("Topic", 1)] == [b"own", b"second"]
    unit = made.broker.store.consume_queues.get_or_create("Topic", 1).unit(0)
    assert unit is not None and unit[2] == 97


def test_internal_appends_and_sends_share_queue_offsets() -> None:
    made = SimulatedBroker(2)
    made.make_topic()
    answers = asked(made)
    for number in range(20):
        if number % 3:
            put(made, record(b"%d" % number))
        else:
            made.start_send(b"%d" % number, queue_id=1)
    made.system.advance(200)
    assert len(answers) == 13
    assert [each.queue_offset for each in made.messages("Topic", 1)] == [*range(20)]


def test_internal_records_that_do_not_fit_wait_for_the_next_file() -> None:
    made = SimulatedBroker(3)
    made.make_topic()
    answers = asked(made)
    bodies = [bytes([number]) * 5_000 for number in range(60)]
    put(made, *map(record, bodies[:30]))
    put(made, *map(record, bodies[30:]))
    made.system.advance(1000)
    assert [len(answer.results) for answer in answers] == [30, 30]
    assert all(result.is_stored for answer in answers for result in answer.results)
    assert [each.body for each in made.messages("Topic", 1)] == bodies


def test_records_too_large_for_the_log_are_refused_and_the_rest_is_stored() -> None:
    made = SimulatedBroker(4)
    made.make_topic()
    answers = asked(made)
    long_text, long_body = bytes(32_768), bytes(STORE.commit_log_file_bytes)
    put(made, record(b"a"), record(properties=long_text), record(b"b"), record(long_body))
    put(made, record(topic="t" * 128), record(b"c"))
    made.system.advance(100)
    codes = [[result.code for result in answer.results] for answer in answers]
    assert sorted(codes) == [[0, 13, 0, 13], [13, 0]]
    assert sorted(each.body for each in made.messages("Topic", 1)) == [b"a", b"b", b"c"]


def test_a_missing_topic_is_created_first() -> None:
    made = SimulatedBroker(5)
    answers = asked(made)
    wanted = (CreateSystemTopic("%RETRY%g", 2), CreateSystemTopic("%DLQ%g", 1))
    put(made, record(topic="%DLQ%g", queue_id=0), topics=wanted)
    put(made, record(b"next", topic="%DLQ%g", queue_id=0), topics=wanted)
    made.system.advance(100)
    assert [answer.results[0].code for answer in answers] == [0, 0]
    topics = made.broker.tables.topics.value
    assert (topics["%RETRY%g"].write_queue_nums, topics["%DLQ%g"].write_queue_nums) == (2, 1)


class Uncopied(dict[str, object]):
    """Topics of a broker: there may be half a million."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("copied")

    keys = __iter__


def test_waiting_appends_copy_no_table_of_topics() -> None:
    """3,000 dead letters of a group, beside 50,000 topics, blocked the loop for 3.3 s."""
    made, topics, known = SimulatedBroker(5), Told("topics"), Uncopied()
    (put_message,) = [each for each in made.system.live if isinstance(each, PutMessage)]
    own = InternalAppends(put_message._appender, topics.address, Told("owner").address)
    wanted = (CreateSystemTopic("%RETRY%g", 2), CreateSystemTopic("%DLQ%g", 1))
    append = InternalAppend((record(),), Told("asker").address, Stored(), topics=wanted)
    own.keep(append, known)
    own.topic_ready(TopicReady("%RETRY%g", TopicConfig("%RETRY%g")), known)
    known["%RETRY%g"] = TopicConfig("%RETRY%g")
    assert own.pending == [] and [each.topic for each in topics.take()] == ["%RETRY%g", "%DLQ%g"]
    own.topic_ready(TopicReady("%DLQ%g", TopicConfig("%DLQ%g")), known)
    assert own.pending == [append]


def test_internal_appends_are_refused_while_writes_are_disabled() -> None:
    made = SimulatedBroker(6)
    answers = asked(made)
    made.system.address("put_message").tell(WritesForbidden("full", "test"))
    made.system.drain()
    put(made, record())
    made.system.advance(10)
    made.system.address("put_message").tell(WritesForbidden(None, "test"))
    made.system.drain()
    put(made, record(b"later"))
    made.system.advance(10)
    assert [each.results[0].code for each in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE, 0]
    assert not answers[0].results[0].is_stored
    assert (answers[0].remark or "").startswith("service not available now.")


@pytest.mark.parametrize("waits", [True, False])
def test_under_sync_flush_the_result_waits_for_the_sync_on_request(waits: bool) -> None:
    disk = FakeDisk()
    made = SimulatedBroker(7, disk, store_config=replace(STORE, flush_disk_type="SYNC_FLUSH"))
    answers = asked(made)
    log = made.broker.store.commit_log
    put(made, record(), waits=waits)
    made.system.run_until(lambda: bool(answers))
    result = answers[0].results[0]
    assert result.code == 0
    on_disk = log.flushed_offset >= result.physical_offset + result.record_bytes
    assert on_disk or not waits
    made.system.advance(100)
    assert (
        log.flushed_offset == log.end_offset
    )  # the append that does not wait has woken the flusher


def test_waiting_appends_are_answered_when_put_message_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SimulatedBroker(8)
    made.make_topic()
    answers = asked(made)
    log = made.broker.store.commit_log
    append = log.append

    def broken(*_: object) -> None:
        monkeypatch.setattr(log, "append", append)
        raise ValueError("broken")

    monkeypatch.setattr(log, "append", broken)
    put(made, record())
    put(made, record(), topics=(CreateSystemTopic("%DLQ%g", 1),))
    made.system.advance(1000)
    assert len(answers) == 2
    assert {answer.results[0].code for answer in answers} <= {0, ResponseCode.SYSTEM_ERROR}
    assert ResponseCode.SYSTEM_ERROR in {answer.results[0].code for answer in answers}
    put(made, record(b"again"))
    made.system.advance(1000)
    assert [each.queue_offset for each in made.messages("Topic", 1)] == [
        *range(len([1 for answer in answers if answer.results[0].is_stored]))
    ]


def test_an_internal_append_survives_a_clean_stop() -> None:
    disk = FakeDisk()
    made = SimulatedBroker(9, disk)
    made.make_topic()
    answers = asked(made)
    put(made, record(b"kept"))
    made.system.run_until(lambda: bool(answers))
    made.stop()
    store = MessageStore(STORE, disk, made.system.clock)
    store.open()
    assert store.consume_queues.get_or_create("Topic", 1).max_offset == 1
    store.close()


def test_a_pull_outside_of_its_queue_leaves_a_message_about_it() -> None:
    made = SimulatedBroker(10)
    made.make_topic()
    made.send(queue_id=2)
    made.system.advance(100)
    assert made.pull(99, queue_id=2).code == ResponseCode.PULL_OFFSET_MOVED
    made.system.advance(100)
    (event,) = made.messages("OFFSET_MOVED_EVENT")
    assert event.body == (
        b'{"consumerGroup":"consumers","messageQueue":{"brokerName":"broker-a","queueId":2,'
        b'"topic":"Topic"},"offsetNew":1,"offsetRequest":99}'
    )
    assert parse(event.properties) == {"KEYS": "consumers", "DELAY": "0", "TAGS": "consumers"}
    assert event.born_host == event.store_host
    assert made.pull(topic="OFFSET_MOVED_EVENT", expression="consumers").code == 0


def test_a_chain_stores_nothing_after_a_record_that_does_not_fit() -> None:
    """Otherwise a half message would be settled without a stored commit."""
    too_long = bytes(STORE.commit_log_file_bytes)
    for is_chain, codes in ((False, [13, 0]), (True, [13, 13])):
        made = SimulatedBroker(1)
        made.make_topic()
        answers = asked(made)
        put(made, record(too_long), record(b"small"), is_chain=is_chain)
        made.system.advance(100)
        assert [result.code for result in answers[0].results] == codes
        made.stop()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_delayed_messages_come_back_to_queues_that_are_read(after: int) -> None:
    """Messages of a topic that now has fewer queues: 9 of 12 were in unreadable queues."""
    made = SimulatedBroker(1)
    made.make_topic(queues=8)
    for number in range(12):
        answer = made.send(b"%d" % number, queue_id=number % 8, properties="DELAY\x011\x02")
        assert answer.code == 0
    with capture_logs() as lines:
        made.make_topic(queues=after)
    (line,) = [each for each in lines if each["event"] == "queues no longer read"]
    assert (line["first_queue"], line["last_queue"]) == (after, 7)
    made.system.advance(3000)
    found = [each.body for queue_id in range(after) for each in made.messages(queue_id=queue_id)]
    assert sorted(map(int, found)) == [*range(12)]


def test_a_send_without_a_queue_goes_to_one_that_is_read() -> None:
    made = SimulatedBroker(1)
    made.make_topic(queues=8, read_queues=2)
    for _ in range(20):
        assert int((made.send(queue_id=-1).fields or {})["queueId"]) < 2


def test_internal_messages_to_a_deleted_topic_are_readable_after_its_recreation() -> None:
    """Formerly they went to queues that the new topic did not have."""
    made = SimulatedBroker(1)
    made.make_topic(queues=8)
    for number in range(8):
        made.send(b"%d" % number, queue_id=number, properties="DELAY\x011\x02")
    delete_topic(made)
    made.system.advance(2_000)
    made.make_topic(queues=1)
    assert sorted(each.body for each in made.messages()) == [b"%d" % number for number in range(8)]


def test_results_of_a_group_are_one_message() -> None:
    made, told = SimulatedBroker(11), Told("asker")
    made.make_topic()
    appends = [
        InternalAppend([record(name.encode())], told.address, Stored(name)) for name in ("a", "b")
    ]
    made.system.address("put_message").tell(InternalAppendGroup(appends, AllStored))
    made.system.advance(100)
    (answer,) = told.take()
    assert isinstance(answer, AllStored)
    assert [(each.name, each.results[0].code) for each in answer.results] == [("a", 0), ("b", 0)]
    assert [each.body for each in made.messages("Topic", 1)] == [b"a", b"b"]


def test_an_internal_append_is_answered_once() -> None:
    told = Told("asker")
    append = InternalAppend([record()], told.address, Stored("a"))
    append.on_undelivered("first")
    InternalAppendGroup([append], AllStored).on_undelivered("second")
    (answer,) = told.take()
    assert (answer.name, answer.code, answer.remark) == ("a", 1, "first")
