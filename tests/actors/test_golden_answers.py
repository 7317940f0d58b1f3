"""Recorded requests, sent to our broker: the same code, the same words, the same fields.

Each pair is replayed on a broker of its own, set up as the answer says that the original was.  Left
out is what depends on what had happened before: pulls that found something, or nothing yet.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from actors.config import BrokerConfig
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand, decode_frame
from protocol.headers.send import SendMessageHeader
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.golden import frames

SENDS = (10, 310, 320)
PULL = 11
QUERY, VIEW = 12, 33
END = 37
SETTINGS, STATISTICS, UNITS = 25, 315, 321
OTHERS = (14, 25, 29, 30, 31, 207, 215, 305, 306, 315, 316, 321, 329)
CODES = (*SENDS, PULL, QUERY, VIEW, END, *OTHERS)
Record = dict[str, Any]
FILES = {"negative": 35, "java-4.9.7": 82, "java-5.3.3": 38, "binary-header": 38, "go-v2": 13}
"""Minimum number of compared pairs. For `acl` see tests/system/test_golden_acl_session.py."""

ON_THE_QUEUE = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
"""Answers to pulls that depend on what lies in the queue."""

FIGURES = re.compile(r"(CL|CQ|INDEX): +-?[0-9.]+")
EXCEPTION = re.compile(r"^((?:[a-z]+\.)+[A-Z]\w+Exception)\b.*", re.DOTALL)
PORT = re.compile(r"127\.0\.0\.1:(\d+)\]?$")


def pairs(name: str) -> Iterator[tuple[Record, Record | None]]:
    """Requests to a broker with these codes, each with its answer."""
    waiting: Record | None = None
    for record in frames(name):
        if waiting is not None:
            answered = record["pair"] == waiting["pair"]
            yield waiting, record if answered else None
            waiting = None
            if answered:
                continue
        asked = record["direction"] in ("request", "oneway") and "broker" in record["to"]
        if asked and record["code"] in CODES:
            waiting = record
    if waiting is not None:
        yield waiting, None


def left_out(request: Record, answer: Record | None) -> str | None:
    """Return the reason why a pair is not compared; None if it is compared."""
    if request["direction"] == "oneway":
        return "one-way"
    if answer is None:
        return "never answered"
    if b"brokerConfigPath" in request["body"]:
        return "refused here, as later versions do"
    if request["code"] == PULL and answer["code"] in ON_THE_QUEUE:
        return "depends on the queue"
    if request["code"] in (QUERY, VIEW):
        if answer["serialize"] != "JSON" and answer["serialize"] != request["serialize"]:
            return "a server that prefers another serialisation"
        if answer["code"] == ResponseCode.SUCCESS and request["to"] == "slave-broker":
            return "depends on the master"
    return None


def told(record: Record) -> RemotingCommand:
    return decode_frame(record["frame"][4:])


def replayed(request: Record, answer: RemotingCommand) -> RemotingCommand:
    """The answer of a broker that is set up as the recorded answer says."""
    made = SimulatedBroker(
        1,
        config=config_for(request, answer),
        store_config=store_for(answer),
        start_ms=request["ts"],
    )
    command = told(request)
    set_up(made, command, answer)
    port = PORT.search(answer.remark or "")
    made.client = made.new_client(
        int(port.group(1)) if port else 1, fast=request["to"] == "broker-vip"
    )
    found = made.ask(command)
    made.stop()
    return found


def config_for(request: Record, answer: RemotingCommand) -> BrokerConfig:
    remark = answer.remark or ""
    config = replace(BROKER, trace_topic_enable=True, config_path="/etc/broker.conf")
    if request["to"] == "slave-broker":
        config = replace(config, broker_role="SLAVE", broker_id=1)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST and "GN_new" in remark:
        config = replace(config, auto_create_topic_enable=False)
    if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        config = replace(config, auto_create_group_enable=False)
    if "sending transaction message is forbidden" in remark:
        config = replace(config, reject_transaction_message=True)
    if remark.startswith("the broker[") and "pulling message is forbidden" in remark:
        config = replace(config, broker_permission=2)
    return config


def store_for(answer: RemotingCommand) -> Any:
    limit = re.search(r"msg body length limit (\d+)B", answer.remark or "")
    return replace(STORE, max_message_bytes=int(limit.group(1))) if limit else STORE


def set_up(made: SimulatedBroker, command: RemotingCommand, answer: RemotingCommand) -> None:
    fields, remark = command.fields or {}, answer.remark or ""
    if command.code in SENDS:
        if "Producer: " in remark:  # the queue is out of range of a topic that is there
            made.make_topic(SendMessageHeader.of_command(command).topic)
        elif answer.code == ResponseCode.SUCCESS:
            header = SendMessageHeader.of_command(command)
            if header.queue_id > 3:  # an administrator had made this one
                made.make_topic(header.topic, queues=header.queue_id + 1)
        return
    if command.code in (QUERY, VIEW) and answer.code == ResponseCode.SUCCESS:
        offset = int(fields.get("offset", "0"))
        if offset:  # a message before it, so long that the next one begins there
            made.send(bytes(offset - empty_record_bytes()))
        made.send(topic=fields.get("topic", "Topic"), properties=f"KEYS\x01{fields.get('key')}")
        made.system.advance(1000)
        return
    if command.code == END:
        if answer.code == ResponseCode.SUCCESS:
            set_up_half_message(made, fields)
        return
    if command.code in (STATISTICS, UNITS) and answer.code == ResponseCode.SUCCESS:
        topic = fields.get("topic") or fields["statsKey"].partition("@")[0]
        made.make_topic(topic)
        made.send(topic=topic)
        made.system.drain()
        if "@" in fields.get("statsKey", ""):
            made.pull(topic=topic, consumer_group=fields["statsKey"].partition("@")[2])
        return
    topic, group = fields.get("topic", ""), fields.get("consumerGroup", "")
    if made.config.is_slave or answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return
    if topic and topic not in made.broker.tables.topics.value:
        made.make_topic(topic, perm=2 if "the topic[" in remark else 6)
    if "subscription group no permission" in remark:
        made.make_group(group, consume_enable=False)
    if answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST:
        made.subscribe(topic=topic, group=group, version=1)


def set_up_half_message(made: SimulatedBroker, fields: dict[str, str]) -> None:
    """One with the places that the request names, and what must lie before it."""
    text = f"TRAN_MSG\x01true\x02PGROUP\x01{fields['producerGroup']}"
    for _ in range(int(fields["tranStateTableOffset"])):
        made.send(properties=text)
    gap = int(fields["commitLogOffset"]) - made.broker.store.commit_log.end_offset
    made.send(bytes(gap - empty_record_bytes()))
    made.send(properties=text)


@cache
def empty_record_bytes() -> int:
    """Return the size of the record of a message without a body."""
    made = SimulatedBroker(1)
    size = made.stored(made.send(b"")).record_bytes
    made.stop()
    return size


def plain(remark: str | None) -> str | None:
    """A remark without the figures of a disk; of an exception only its name."""
    if remark is None:
        return None
    return EXCEPTION.sub(r"\1", FIGURES.sub(r"\1: n", remark))


def outcome(answer: RemotingCommand, request: Record) -> tuple[Any, ...]:
    """Return the parts of an answer that depend on the request only: code, words, fields."""
    fields = answer.fields
    names = None if fields is None else set(fields)
    values = {name: (fields or {}).get(name) for name in ("MSG_REGION", "TRACE_ON")}
    if request["code"] in SENDS and answer.code == ResponseCode.SUCCESS:
        chosen = SendMessageHeader.of_command(told(request)).queue_id >= 0
        values["queueId"] = (fields or {})["queueId"] if chosen else None
    if request["code"] in (QUERY, VIEW):
        values["serialize type"] = str(answer.serialize_type)
        values["found"] = str(bool(answer.body))
    if request["code"] == SETTINGS and answer.code == ResponseCode.SUCCESS:
        return answer.code, None, names, values  # ours says what waits for a restart
    return answer.code, plain(answer.remark), names, values


@pytest.mark.heavy
@pytest.mark.parametrize("name", FILES)
def test_recorded_requests_get_the_recorded_answers(name: str, tell: Callable[[str], None]) -> None:
    count: Counter[str] = Counter()
    compared = 0
    differing = []
    for request, record in pairs(name):
        reason = left_out(request, record)
        if reason is not None:
            count[reason] += 1
            continue
        assert record is not None
        wanted = told(record)
        found = replayed(request, wanted)
        compared += 1
        if outcome(found, request) != outcome(wanted, request):
            differing.append((request["id"], found, wanted))
    tell(f"{compared} answers compared; left out: {dict(count)}")
    assert differing == []
    assert compared >= FILES[name]
