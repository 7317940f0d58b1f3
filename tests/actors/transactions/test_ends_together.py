"""Ends that come right after their half messages, many in one read: each as if it came alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from actors.sending.appender import InternalRecord
from actors.sending.half_message_cache import HalfRecord
from actors.sending.messages import InternalAppend
from actors.transactions.half_messages import HalfMessage
from actors.transactions.messages import End as CarriedOut
from actors.transactions.transaction_finisher import TransactionFinisher
from protocol.codes import LanguageCode, SerializeType
from protocol.frame import RemotingCommand
from protocol.message import MessageRecord
from tests.support.brokers import SimulatedBroker
from tests.support.sockets import PairedLine, paired_lines
from tests.support.transacting import (
    COMMIT,
    OP,
    ROLLBACK,
    broker,
    end,
    end_command,
    half,
    of_topic,
    pending_count,
)

NOT_FOUND = "Find prepared transaction message failed"


def forget(made: SimulatedBroker) -> None:
    """Half messages are read from the log, as after a start."""
    halves = made.broker.recent_halves
    halves._young, halves._old = {}, {}


def keep(_: SimulatedBroker) -> None:
    """Leave the half messages as sent."""


def story(
    before_each: Callable[[SimulatedBroker], None],
) -> tuple[list[tuple[int, str | None]], list[MessageRecord]]:
    """Ends of all kinds: what is answered, and what is in the log then."""
    made = broker()
    more = {"TAGS": "T", "KEYS": "a b"}, {"DELAY": 2}, {"WAIT": "false"}, {"PGROUP": "others"}
    halves = [half(made, f"K{n}", properties=each, flag=n) for n, each in enumerate(more)]
    one, two, three, others = halves
    wanted: list[tuple[MessageRecord, int, dict[str, object]]] = [
        (one, COMMIT, {"producer_group": "wrong"}),
        (one, COMMIT, {"tran_state_table_offset": 9}),
        (one, COMMIT, {"commit_log_offset": 1}),
        (one, COMMIT, {}),
        (one, COMMIT, {}),
        (one, ROLLBACK, {}),
        (two, COMMIT, {}),
        (three, ROLLBACK, {}),
        (three, COMMIT, {}),
        (others, COMMIT, {}),
        (others, COMMIT, {"producer_group": "others"}),
    ]
    answers: list[tuple[int, str | None]] = []
    for record, outcome, fields in wanted:
        before_each(made)
        answer = end(made, record, outcome, **fields)
        answers.append((answer.code, answer.remark))
    records = [replace(each, store_timestamp=0) for each in made.records()]
    assert pending_count(made) == 0
    made.stop()
    return answers, records


def test_a_cached_half_message_is_settled_like_a_read_one() -> None:
    kept, read = story(keep), story(forget)
    assert kept == read
    assert [code for code, _ in kept[0]].count(0) == 5


@contextmanager
def line(made: SimulatedBroker) -> Iterator[PairedLine]:
    with paired_lines(made, 1) as (opened,):
        yield opened


def usual(record: MessageRecord, outcome: int, *, oneway: bool = False) -> RemotingCommand:
    """Return an end request as a Java client encodes it."""
    command = end_command(record, outcome, oneway=oneway)
    command.serialize_type, command.language = SerializeType.ROCKETMQ, LanguageCode.JAVA
    return command


def test_all_end_requests_of_one_read_are_executed_and_answered() -> None:
    made = broker()
    halves = [half(made, f"K{number:03}") for number in range(100)]
    with line(made) as producer:
        producer.send(usual(halves[0], COMMIT))
        outcomes = [ROLLBACK if number % 3 == 0 else COMMIT for number in range(1, 100)]
        ends = [usual(each, how) for each, how in zip(halves[1:], outcomes, strict=True)]
        again = usual(halves[5], COMMIT), usual(halves[5], ROLLBACK)
        ends[7:7] = again
        asked = producer.send(*ends)
        answers = {answer.opaque: answer for answer in producer.receive_now()}
        codes = [answers[opaque].code for opaque in asked]
        assert [number for number, code in enumerate(codes) if code] == [8]
        assert answers[asked[8]].remark == NOT_FOUND
        expected = {halves[0].body} | {
            each.body for each, how in zip(halves[1:], outcomes, strict=True) if how == COMMIT
        }
        assert sorted(message.body for message in made.messages()) == sorted(expected)
        assert len(of_topic(made, OP)) == 100
        assert pending_count(made) == 0


def test_one_way_end_requests_are_executed_and_not_answered() -> None:
    made = broker()
    halves = [half(made, f"K{number}") for number in range(9)]
    with line(made) as producer:
        producer.send(usual(halves[0], COMMIT))
        assert len(producer.receive_now()) == 1
        producer.send(*(usual(each, COMMIT, oneway=True) for each in halves[1:]))
        assert producer.receive_now() == []
        assert len(made.messages()) == 9 and pending_count(made) == 0


def test_a_failing_end_request_answers_each_of_its_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker()
    halves = [half(made, f"K{number}") for number in range(5)]
    with line(made) as producer:
        producer.send(usual(halves[0], COMMIT))
        assert len(producer.receive_now()) == 1
        find = made.broker.store.transaction_table.get_pending
        bad = halves[3].physical_offset
        monkeypatch.setattr(
            made.broker.store.transaction_table,
            "get_pending",
            lambda offset: 1 // 0 if offset == bad else find(offset),
        )
        asked = producer.send(*(usual(each, COMMIT) for each in halves[1:]))
        made.system.advance(5000)
        answers = producer.receive_now()
        assert sorted(answer.opaque for answer in answers) == asked
        assert any(answer.code for answer in answers)
        monkeypatch.undo()
        asked = producer.send(*(usual(each, COMMIT) for each in halves[1:]))
        assert [answer.code for answer in producer.receive_now()] == [0] * 4
        assert len(made.messages()) == 5 and pending_count(made) == 0


def slots_of(own: InternalRecord) -> dict[str, object]:
    kinds = InternalRecord.__mro__[:-1]
    return {name: getattr(own, name) for kind in kinds for name in vars(kind)["__slots__"]}


def test_a_recent_half_message_is_committed_as_its_properties_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker()
    quick: list[int] = []
    records_for_recent = TransactionFinisher.records_for_recent

    def compared(
        ends: TransactionFinisher, end: CarriedOut, recent: HalfRecord
    ) -> InternalAppend | None:
        put = records_for_recent(ends, end, recent)
        offset = recent.physical_offset
        record = made.broker.store.commit_log.read_record(offset)
        if put is not None and record is not None:
            quick.append(recent.flag)
            read, host = HalfMessage(record), record.store_host
            message = read.committed(offset, (), made.broker.timer_rules)
            body, op = b"%d" % record.queue_offset, OP.encode()
            settle = InternalRecord(
                OP, record.queue_id, body, b"WAIT\x01true\x02TAGS\x01d", ord("d"),
                born_timestamp=put.records[1].born_timestamp, born_host=host,
            )  # fmt: skip
            assert message is not None and settle.topic == op
            assert [*map(slots_of, put.records)] == [slots_of(message), slots_of(settle)]
            assert put.waits == read.waits
        return put

    monkeypatch.setattr(TransactionFinisher, "records_for_recent", compared)
    more: list[dict[str, object]] = [
        {},
        {"TAGS": "T", "KEYS": "a b"},
        {"KEYS": "  a "},
        {"TAGS": "é\U0001f600"},
        {"WAIT": "false"},
        {"WAIT": "TRUE"},
        {"REAL_TOPIC": "other", "REAL_QID": "7"},
        {"DELAY": 2},
        {"xDELAY": 2},
        {"PGROUP": "others"},
    ]
    for number, properties in enumerate(more):
        end(made, half(made, f"K{number}", properties=properties, flag=number), COMMIT)
    assert quick == [0, 1, 2, 3, 4, 5, 6]
    assert pending_count(made) == 1
