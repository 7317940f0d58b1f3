"""Recorded sessions of consumers that filter by SQL92, played to our broker.

Of a queue only the messages that matched are known, by the answers; others are put around them.
"""

from typing import Any

import pytest

from actors.pulling.held_pulls import TICK_MS
from protocol.bodies import HeartbeatData
from protocol.codes import PULL_SUSPEND, RequestCode, ResponseCode
from protocol.frame import RemotingCommand, decode_frame
from protocol.headers.client import PullMessageHeader
from protocol.message import MessageRecord, decode_records
from tests.support.brokers import SimulatedBroker
from tests.support.golden import frames
from tests.support.pulls import broker

GROUPS = {"java-4.9.7": "CG_Sql", "java-5.3.3": "CV_Sql", "go-v2": "GCG_goOrder"}
Pair = tuple[RemotingCommand, RemotingCommand]


def session(name: str) -> list[Pair]:
    """Heartbeats and pulls of the group with their answers, in the order of the answers."""
    asked: dict[int, RemotingCommand] = {}
    found: list[tuple[int, Pair]] = []
    for record in frames(name):
        if record["direction"] == "request" and is_of(GROUPS[name], record):
            asked[record["pair"]] = decode_frame(record["frame"][4:])
        elif record["direction"] == "response" and record["pair"] in asked:
            answer = decode_frame(record["frame"][4:])
            found.append((record["ts"], (asked[record["pair"]], answer)))
    return [pair for _, pair in sorted(found, key=lambda each: each[0])]


def is_of(group: str, record: dict[str, Any]) -> bool:
    if record["code"] == RequestCode.PULL_MESSAGE:
        fields = decode_frame(record["frame"][4:]).fields or {}
        return fields["consumerGroup"] == group and not fields["topic"].startswith("%")
    return record["code"] == RequestCode.HEART_BEAT and group.encode() in record["body"]


def expression_of(pairs: list[Pair], group: str) -> str:
    """Return the group's filter expression."""
    data = [
        HeartbeatData.decode(request.body)
        for request, _ in pairs
        if request.code == RequestCode.HEART_BEAT
    ]
    (found,) = {
        each.sub_string
        for beat in data
        for consumer in beat.consumer_data_set
        for each in consumer.subscription_data_set
        if consumer.group_name == group and each.expression_type == "SQL92"
    }
    return found


def records(answer: RemotingCommand) -> list[MessageRecord]:
    return list(decode_records(bytes(answer.body or b"")))


def fill_up(
    made: SimulatedBroker, header: PullMessageHeader, known: dict[int, MessageRecord], end: int
) -> None:
    """Puts messages into the queue of a pull up to `end`: those that are known, else others."""
    code, topic, queue_id = RequestCode.GET_MAX_OFFSET, header.topic, header.queue_id
    for offset in range(made.offset(code, topic, queue_id), end):
        body, text = b"other", "a\x01-1"
        if offset in known:
            body, text = known[offset].body, known[offset].properties.decode()
        made.start_send(body, topic=topic, queue_id=queue_id, properties=text)
        made.system.drain()


@pytest.mark.heavy
@pytest.mark.parametrize("name", GROUPS)
def test_a_recorded_filtering_session_gets_the_recorded_answers(name: str) -> None:
    pairs = session(name)
    group = GROUPS[name]
    expression = expression_of(pairs, group)
    made = broker(property_filter_enable=True)
    codes = set()
    for request, wanted in pairs:
        if request.code == RequestCode.HEART_BEAT:
            answer = made.ask(request)
            assert (answer.code, answer.fields, answer.body) == (wanted.code, None, None)
            continue
        header = PullMessageHeader.decode(request.fields)
        if header.topic not in made.broker.tables.topics.value:
            made.make_topic(header.topic, queues=8)
        codes.add(wanted.code)
        if wanted.code == ResponseCode.SUBSCRIPTION_NOT_LATEST:
            assert told(made.ask(request)) == told(wanted)
            continue
        version = header.sub_version or 1 << 62
        # not all heartbeats were kept: the newest may be missing
        made.subscribe(expression, topic=header.topic, group=group, version=version, kind="SQL92")
        found = pulled(made, request, header, wanted)
        assert told(found) == told(wanted)
        assert contents(found) == contents(wanted)
    assert ResponseCode.PULL_RETRY_IMMEDIATELY in codes
    if name.startswith("java"):
        assert ResponseCode.SUCCESS in codes


def pulled(
    made: SimulatedBroker,
    request: RemotingCommand,
    header: PullMessageHeader,
    wanted: RemotingCommand,
) -> RemotingCommand:
    """The answer to a pull; one that nothing matched while it was held gets it at its deadline."""
    assert wanted.fields is not None
    known = {record.queue_offset: record for record in records(wanted)}
    end = int(wanted.fields["maxOffset"])
    was_held = header.sys_flag & PULL_SUSPEND and not known
    fill_up(made, header, known, header.queue_offset if was_held else end)
    answers: list[RemotingCommand] = []
    made.client.start(request, answers.append)
    made.system.drain()
    if was_held:
        fill_up(made, header, known, end)
        assert answers == []
        made.system.advance(header.suspend_timeout_ms + TICK_MS)
    (answer,) = answers
    return answer


def told(answer: RemotingCommand) -> tuple[object, ...]:
    return answer.code, answer.remark, answer.fields


def contents(answer: RemotingCommand) -> list[tuple[object, ...]]:
    return [
        (each.topic, each.queue_id, each.queue_offset, each.body, each.properties)
        for each in records(answer)
    ]
