"""Check-backs of pending transactions: which producers, when, how often; the stored records."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from actors.dispatching.messages import WritesForbidden
from actors.sending.messages import InternalAppend
from actors.transactions.half_messages import HalfMessage
from protocol.frame import RemotingCommand, decode_frame
from protocol.headers.transaction import CheckTransactionStateHeader
from protocol.message import decode_record
from protocol.message_id import offset_message_id
from protocol.properties import find_pairs
from storage.transactions.units import REPLACED
from tests.support.brokers import STORE
from tests.support.golden import frames
from tests.support.transacting import (
    COMMIT,
    GROUP,
    HALF,
    INTERVAL_MS,
    MAX_TIME,
    OP,
    ROLLBACK,
    beat,
    broker,
    end,
    end_command,
    half,
    of_topic,
    pending_count,
    producing,
    questions,
    round_of_checks,
)


def test_a_pending_message_is_stored_again_and_its_producer_asked() -> None:
    made = broker()
    producer = producing(made)
    prepared = half(made, "K", queue_id=2, flag=9, properties={"TAGS": "T"})
    made.system.advance(INTERVAL_MS - 1000)
    assert questions(producer) == []
    made.system.advance(1100)
    (question,) = questions(producer)
    again = of_topic(made, HALF)[-1]
    assert (again.queue_offset, again.physical_offset) != (0, prepared.physical_offset)
    header = question.header
    assert (header.tran_state_table_offset, header.commit_log_offset) == (
        again.queue_offset,
        again.physical_offset,
    )
    assert (header.msg_id, header.transaction_id) == ("K", "K")
    assert header.offset_msg_id == offset_message_id(again.store_host, again.physical_offset)
    asked = question.half
    assert (asked.topic, asked.queue_id, asked.body) == ("Topic", 2, b"body of K")
    assert (asked.queue_offset, asked.physical_offset) == (
        again.queue_offset,
        again.physical_offset,
    )
    pairs = dict(find_pairs(again.properties))
    assert pairs == {**dict(find_pairs(prepared.properties)), b"TRANSACTION_CHECK_TIMES": b"1"}
    assert question.properties == {**pairs, b"WAIT": b"false"}
    assert (again.flag, again.reconsume_times) == (9, 0)
    table = made.broker.store.transaction_table
    unit = table.find(prepared.physical_offset)
    assert unit is not None and unit.state == REPLACED and pending_count(made) == 1
    assert end(made, question, COMMIT).code == 0
    (message,) = made.messages(queue_id=2)
    assert message.prepared_transaction_offset == again.physical_offset
    assert pending_count(made) == 0
    round_of_checks(made)
    assert questions(producer) == []


def test_the_check_back_request_equals_the_originals() -> None:
    """Fields and body of recorded ones, and of ours about the same half message."""
    compared = 0
    for name in ("java-4.9.7", "go-v2"):
        for record in frames(name):
            if record["code"] != 39 or record["direction"] != "server-oneway":
                continue
            compared += 1
            wanted = decode_frame(record["frame"][4:])
            body = decode_record(wanted.body or b"")
            pairs = dict(find_pairs(body.properties))
            if pairs.pop(b"TRANSACTION_CHECK_TIMES") != b"1":
                continue
            made = broker()
            made.make_topic(body.topic)
            for key in (b"REAL_TOPIC", b"REAL_QID", b"CLUSTER"):
                pairs.pop(key)
            pairs[b"WAIT"] = b"true"
            properties = b"\x02".join(b"%s\x01%s" % pair for pair in pairs.items()).decode()
            producer = producing(made, group=pairs[b"PGROUP"].decode())
            made.send(
                body.body,
                topic=body.topic,
                queue_id=body.queue_id,
                properties=properties,
                sys_flag=4,
                born_timestamp=body.born_timestamp,
            )
            made.clock.set_wall(body.born_timestamp + 10_000)
            round_of_checks(made)
            (found,) = producer.received
            assert (found.flag, set(found.fields or {})) == (2, set(wanted.fields or {}))
            ours = decode_record(found.body or b"")
            for field in ("topic", "queue_id", "body", "flag", "sys_flag", "body_crc"):
                assert getattr(ours, field) == getattr(body, field)
            assert ours.record_bytes == body.record_bytes == len(found.body or b"")
            assert dict(find_pairs(ours.properties)) == dict(find_pairs(body.properties))
            header = CheckTransactionStateHeader.decode(found.fields)
            assert header.msg_id == (wanted.fields or {})["msgId"]
            made.stop()
    assert compared >= 3


def test_young_or_immune_messages_are_not_checked() -> None:
    made = broker(transaction_timeout_ms=70_000)
    producer = producing(made)
    half(made, "usual")
    half(made, "soon", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": 5})
    half(made, "late", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": 130})
    half(made, "minus", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": -1})
    half(made, "words", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "x"})
    rounds = []
    for _ in range(3):
        round_of_checks(made)
        beat(producer)
        rounds.append([question.header.msg_id for question in questions(producer)])
    assert rounds == [
        ["soon"],
        ["usual", "minus", "words", "soon"],
        ["late", "usual", "minus", "words", "soon"],
    ]


def test_a_message_born_in_the_future_is_checked_at_once() -> None:
    made = broker()
    producer = producing(made)
    half(made, "K", born_timestamp=made.clock.now_ms() + 10_000_000)
    round_of_checks(made)
    assert [question.header.msg_id for question in questions(producer)] == ["K"]


def test_a_message_stored_with_a_fast_clock_is_checked() -> None:
    made = broker()
    producer = producing(made)
    now_ms = made.clock.now_ms()
    made.clock.set_wall(now_ms + 300_000)
    half(made, "ahead", born_timestamp=now_ms)
    made.clock.set_wall(now_ms)
    half(made, "then", born_timestamp=now_ms)
    assert now_ms <= of_topic(made, HALF)[-1].store_timestamp < now_ms + 1000
    round_of_checks(made)
    assert [question.header.msg_id for question in questions(producer)] == ["ahead", "then"]


def test_check_backs_go_to_the_connected_producers_in_turn() -> None:
    made = broker()
    one, two, other = producing(made), producing(made, 8), producing(made, 9, "others")
    for number in range(6):
        half(made, f"{number}")
    round_of_checks(made)
    first, second = questions(one), questions(two)
    assert len(first) == len(second) == 3 and questions(other) == []
    two.close()
    round_of_checks(made)
    assert len(questions(one)) == 6 and questions(two) == []


def test_a_check_without_a_producer_counts() -> None:
    """The half message is copied with a higher count, as in 4.9.7.

    A later producer is asked next.
    """
    made = broker()
    half(made, "K")
    with capture_logs() as logs:
        round_of_checks(made)
    assert [line["names"] for line in logs if line["event"].startswith("no producer")] == [[GROUP]]
    producer = producing(made)
    round_of_checks(made)
    (question,) = questions(producer)
    assert question.properties[b"TRANSACTION_CHECK_TIMES"] == b"2"


def test_a_message_over_the_check_limit_is_discarded() -> None:
    made = broker(transaction_check_max=3)
    producer = producing(made)
    prepared = half(made, "K", flag=5)
    times = []
    for _ in range(5):
        round_of_checks(made)
        beat(producer)
        times += [each.properties[b"TRANSACTION_CHECK_TIMES"] for each in questions(producer)]
    assert times == [b"1", b"2", b"3"]
    (given_up,) = made.messages(MAX_TIME)
    assert given_up.body == prepared.body and given_up.flag == 5
    assert dict(find_pairs(given_up.properties))[b"TRANSACTION_CHECK_TIMES"] == b"3"
    topic = made.broker.tables.topics.value[MAX_TIME]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert pending_count(made) == 0 and made.messages() == []
    # a commit that comes only now delivers it, as in 4.9.7
    assert end(made, prepared, COMMIT).code == 0
    assert [message.body for message in made.messages()] == [b"body of K"]


def test_a_message_older_than_the_retention_is_discarded_without_a_check() -> None:
    made = broker(store=replace(STORE, file_reserved_hours=1))
    producer = producing(made)
    half(made, "K", born_timestamp=made.clock.now_ms() - 3_600_001)
    round_of_checks(made)
    assert questions(producer) == []
    assert len(made.messages(MAX_TIME)) == 1 and pending_count(made) == 0


def test_a_message_without_space_for_its_check_count_is_discarded() -> None:
    made = broker()
    half(made, "K", properties={"FILL": "x" * 32_650})
    round_of_checks(made)
    assert len(of_topic(made, HALF)) == 1
    assert len(made.messages(MAX_TIME)) == 1 and pending_count(made) == 0


def test_transaction_topics_are_created_when_the_original_creates_them() -> None:
    made = broker()
    assert HALF not in made.broker.tables.topics.value
    round_of_checks(made)
    topics = made.broker.tables.topics.value
    assert (topics[HALF].write_queue_nums, topics[HALF].perm) == (1, 6)
    assert OP not in topics and MAX_TIME not in topics


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a_commit_or_rollback_of_an_older_copy_settles_the_newest(outcome: int) -> None:
    """4.9.7 ends the older one, asks about the newer one, and delivers twice."""
    made = broker()
    producer = producing(made)
    prepared = half(made, "K")
    for _ in range(3):
        round_of_checks(made)
        beat(producer)
    assert len(questions(producer)) == 3
    assert end(made, prepared, outcome).code == 0
    assert pending_count(made) == 0
    assert end(made, prepared, outcome).code == 0
    assert len(made.messages()) == (outcome == COMMIT)
    round_of_checks(made)
    assert questions(producer) == []
    answer = end(made, prepared, COMMIT + ROLLBACK - outcome)
    assert answer.remark == "Find prepared transaction message failed"


@pytest.mark.trial(short=2, long=500)
def test_a_concurrent_commit_and_check_deliver_once(seed: int) -> None:
    """The verdict comes just before the check, or just after it, with the places of before."""
    made = broker(seed)
    producer = producing(made)
    prepared = half(made, "K")
    answers: list[RemotingCommand] = []
    if seed % 2:
        made.system.advance(INTERVAL_MS - (made.clock.now_ms() - made.start_ms))
    else:
        made.system.run_until(lambda: bool(producer.received), 2 * INTERVAL_MS)
    made.client.start(end_command(prepared, COMMIT), answers.append)
    for question in questions(producer):
        made.client.start(end_command(question, COMMIT), answers.append)
    made.system.advance(10)
    for question in questions(producer):
        made.client.start(end_command(question, COMMIT), answers.append)
    made.system.advance(2 * INTERVAL_MS)
    assert {answer.code for answer in answers} == {0}
    assert len(made.messages()) == 1 and pending_count(made) == 0


def test_a_commit_without_operation_is_settled_and_not_checked() -> None:
    """4.9.7 would ask, and deliver the message once more."""
    made = broker()
    producer = producing(made)
    prepared = half(made)
    own = HalfMessage(prepared).committed(prepared.physical_offset, (), made.broker.timer_rules)
    assert own is not None
    made.system.address("put_message").tell(InternalAppend([own], None))
    round_of_checks(made)
    assert questions(producer) == [] and pending_count(made) == 0
    assert [op.body for op in of_topic(made, OP)] == [b"0"]
    assert len(of_topic(made, HALF)) == len(made.messages()) == 1


def test_half_messages_that_cannot_be_copied_stay_pending() -> None:
    made = broker()
    producer = producing(made)
    half(made, "K")
    made.system.address("put_message").tell(WritesForbidden("full", source="test"))
    with capture_logs() as logs:
        round_of_checks(made, 2)
    assert "half message checks failed" in [line["event"] for line in logs]
    assert questions(producer) == [] and pending_count(made) == 1
    made.system.address("put_message").tell(WritesForbidden(None, source="test"))
    beat(producer)
    round_of_checks(made)
    assert len(questions(producer)) == 1
