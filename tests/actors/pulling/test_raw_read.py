"""Reading queues in bulk, through a whole broker: what is answered, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import RawResponseHeader
from protocol.message import MessageRecord, decode_records
from protocol.raw_records import ANSWER_BYTES_MAX, PIECE
from storage.queues.consume_queue import UNIT
from tests.actors.pulling.test_cold_read import Slow, cold_broker
from tests.support.brokers import STORE, pull_command, send_command
from tests.support.pulls import as_slave, broker, code_and_bodies, fill

RECORDS, UNITS = RequestCode.READ_RECORDS, RequestCode.READ_UNITS
BOTH = pytest.mark.parametrize("code", [RECORDS, UNITS])


def command(code: RequestCode, first: int, end: int, **fields: object) -> RemotingCommand:
    asked = {"topic": "Topic", "queueId": 0, "queueOffset": first, "endOffset": end, **fields}
    return RemotingCommand(code, {name: str(value) for name, value in asked.items()})


def taken_apart(
    answer: RemotingCommand,
) -> tuple[RawResponseHeader, Sequence[tuple[int, int, int]], bytes]:
    """Header, units, and the pieces."""
    assert (answer.code, answer.remark) == (0, None), answer
    header, body = RawResponseHeader.decode(answer.fields), bytes(answer.body or b"")
    table_at = header.unit_count * UNIT.size
    at = table_at + header.piece_count * PIECE.size
    lengths = [size for _, size in PIECE.iter_unpack(body[table_at:at])]
    assert sum(lengths) == len(body) - at
    return header, [*UNIT.iter_unpack(body[:table_at])], body[at:]


def records(answer: RemotingCommand) -> list[MessageRecord]:
    """Return the records of an answer without other queues' messages between them."""
    return list(decode_records(taken_apart(answer)[2]))


def test_units_and_records_of_a_range_are_returned_together() -> None:
    made = broker(10)
    header, units, log = taken_apart(made.ask(command(RECORDS, 3, 8)))
    stored = made.messages()
    assert [record.queue_offset for record in decode_records(log)] == [3, 4, 5, 6, 7]
    assert list(decode_records(log)) == stored[3:8]
    assert [unit[:2] for unit in units] == [
        (record.physical_offset, record.record_bytes) for record in stored[3:8]
    ]
    assert (header.next_offset, header.min_offset, header.max_offset) == (8, 0, 10)
    assert header.log_min_offset == 0
    assert header.log_end_offset == stored[-1].physical_offset + stored[-1].record_bytes
    header, alone, nothing = taken_apart(made.ask(command(UNITS, 3, 8)))
    assert (alone, nothing, header.next_offset) == (units, b"", 8)


def test_long_records_of_other_queues_are_omitted() -> None:
    made = broker()
    for number in range(20):
        made.send(b"%d" % number)
        made.send(b"-" * 2000, queue_id=1)
    made.system.drain()
    assert [r.body for r in records(made.ask(command(RECORDS, 0, 20)))] == [
        b"%d" % number for number in range(20)
    ]
    log = taken_apart(made.ask(command(RECORDS, 0, 20, queueId=1)))[2]
    assert len(list(decode_records(log))) > 20, "the small ones come along"


def test_an_answer_has_at_most_the_requested_bytes_or_one_record() -> None:
    made = broker(10)
    (first, *_) = made.messages()
    size = first.record_bytes
    for limit, count in ((1, 1), (2 * size, 2), (3 * size - 1, 2), (1 << 30, 10)):
        answer = made.ask(command(RECORDS, 0, 10, maxBytes=limit))
        assert len(records(answer)) == count
        assert taken_apart(answer)[0].next_offset == count
    assert ANSWER_BYTES_MAX < 1 << 30


@BOTH
@pytest.mark.parametrize(
    ("fields", "wrong_code", "remark"),
    [
        ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST, "topic[None] not exist"),
        ({"queueId": 4}, ResponseCode.SYSTEM_ERROR, "queueId[4] is illegal, topic:[Topic]"),
        ({"queueId": -1}, ResponseCode.SYSTEM_ERROR, "queueId[-1] is illegal"),
        ({"queueId": "x"}, ResponseCode.SYSTEM_ERROR, "the custom field <queueId> is null"),
        ({"queueOffset": ""}, ResponseCode.SYSTEM_ERROR, "the custom field <queueOffset> is null"),
        (
            {"queueOffset": 7},
            ResponseCode.SYSTEM_ERROR,
            "endOffset is 5: it must be above queueOffset, 7",
        ),
        ({"queueOffset": 5}, ResponseCode.SYSTEM_ERROR, "endOffset is 5: it must be above"),
    ],
)
def test_invalid_fields_are_refused_with_one_sentence(
    code: RequestCode, fields: dict[str, object], wrong_code: int, remark: str
) -> None:
    made = broker(5)
    answer = made.ask(command(code, 0, 5, **fields))
    assert (answer.code, answer.body) == (wrong_code, None)
    assert remark in (answer.remark or "")


def test_a_limit_below_one_is_refused() -> None:
    made = broker(5)
    refused_for = made.ask(command(RECORDS, 0, 5, maxBytes=0))
    assert (refused_for.code, refused_for.remark) == (1, "maxBytes is 0: it must be 1 or more")


@BOTH
def test_queues_without_pull_permission_cannot_be_read(code: RequestCode) -> None:
    made = broker(5)
    made.make_topic("Topic", perm=2)
    answer = made.ask(command(code, 0, 5))
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, None)
    assert answer.remark == "the topic[Topic] pulling message is forbidden"
    made.stop()
    closed = broker(broker_permission=2)
    answer = closed.ask(command(code, 0, 5))
    assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, None)
    assert answer.remark == "the broker[127.0.0.1] pulling message is forbidden"


@BOTH
def test_an_offset_out_of_range_is_answered_with_min_and_max_offset(code: RequestCode) -> None:
    made = broker(12, store=replace(STORE, consume_queue_file_bytes=100))
    made.stop()
    made.start()
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    unit = queue.unit(5)
    assert unit is not None
    queue.trim_before(unit[0])
    for asked, following in ((0, 5), (4, 5), (-7, 5), (12, 12), (99, 12)):
        answer = made.ask(command(code, asked, 100))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        header = RawResponseHeader.decode(answer.fields)
        assert (header.next_offset, header.min_offset, header.max_offset) == (following, 5, 12)
        assert (answer.remark or "").endswith(
            "is outside of queue 0 of Topic: min offset 5, max offset 12"
        )
    idle = made.ask(command(code, 0, 1, queueId=3))
    assert (idle.code, RawResponseHeader.decode(idle.fields).max_offset) == (21, 0)


@BOTH
def test_only_dispatched_records_can_be_read(code: RequestCode) -> None:
    """A record in the log has no unit yet until Reput comes to it."""
    made = broker(3)
    answers: list[RemotingCommand] = []
    for _ in range(20):
        made.client.start(send_command(b"new"))
        made.client.start(command(code, 0, 1 << 60), answers.append)
    made.system.drain()
    answers.append(made.ask(command(code, 0, 1 << 60)))
    ends = []
    for answer in answers:
        header, units, log = taken_apart(answer)
        assert len(units) == header.next_offset == header.max_offset
        assert all(start + size <= header.log_end_offset for start, size, _ in units)
        if code == RECORDS:
            assert len(list(decode_records(log))) == len(units)
        ends.append(header.max_offset)
    assert len(set(ends)) > 1, "none was answered while there were sends under way"
    assert ends[-1] == 23


def test_the_fast_port_does_not_serve_raw_reads() -> None:
    made = broker(3)
    fast = made.new_client(2, fast=True)
    for code in (RECORDS, UNITS):
        answer = fast.request(command(code, 0, 3))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_slave_serves_raw_reads() -> None:
    made = as_slave(broker(4))
    assert [record.queue_offset for record in records(made.ask(command(RECORDS, 1, 4)))] == [
        1,
        2,
        3,
    ]


def test_cold_pages_are_read_on_a_thread_while_others_are_served() -> None:
    slow = Slow()
    made = cold_broker(slow)
    answers: list[RemotingCommand] = []
    made.client.start(command(RECORDS, 0, 20), answers.append)
    made.system.drain()
    assert len(slow.taken) == 1
    made.make_topic("ColdReadForPull")
    fill(made, 1, b"new", topic="ColdReadForPull")
    assert code_and_bodies(made.pull(0, topic="ColdReadForPull")) == (0, [b"new"])
    assert answers == []
    for _ in range(2):  # the queue's file first, then the log
        slow.let_go(made)
        made.system.drain()
    assert [record.queue_offset for record in records(answers[0])] == list(range(20))


def test_records_that_stay_cold_are_sent_after_some_tries() -> None:
    slow = Slow()
    made = cold_broker(slow)
    answers: list[RemotingCommand] = []
    made.client.start(command(RECORDS, 0, 20), answers.append)
    made.system.drain()
    asked = 0
    while not answers:
        (message,) = slow.taken
        slow.taken.clear()
        message.reply_to.tell(message.then)
        made.system.drain()
        asked += 1
    assert asked == 3
    assert len(records(answers[0])) == 20


def test_a_raw_read_is_answered_if_its_queue_is_deleted_meanwhile() -> None:
    slow = Slow()
    made = cold_broker(slow)
    answers: list[RemotingCommand] = []
    made.client.start(command(RECORDS, 0, 20), answers.append)
    made.system.drain()
    made.make_topic("Topic", perm=2)
    slow.let_go(made)
    made.system.drain()
    assert answers[0].code == ResponseCode.NO_PERMISSION


def test_a_one_way_read_is_not_answered() -> None:
    made = broker(2)
    asked = command(RECORDS, 0, 2)
    asked.flag = 2
    answers: list[RemotingCommand] = []
    made.client.start(asked, answers.append)
    made.system.drain()
    assert answers == []
    assert code_and_bodies(made.ask(pull_command(0))) == (0, [b"body"] * 2)
