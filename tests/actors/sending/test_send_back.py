"""A consumer gives a message back: it comes again later, and in the end lies with the dead ones."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from actors.dispatching.messages import WritesForbidden
from actors.network.hooks import SendBackContext
from actors.receipts.ledger import Ledger
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand, decode_frame
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.message import MessageRecord
from protocol.message_id import offset_message_id
from protocol.properties import parse
from tests.support import golden
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.receiving import (
    Received,
    ack_command,
    change_command,
    receive_command,
    received,
)

FEW = replace(STORE, message_delay_level="1s 2s 3s 4s 5s 6s")
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
RETRY, DEAD = "%RETRY%consumers", "%DLQ%consumers"


def broker(**settings: Any) -> SimulatedBroker:
    made = SimulatedBroker(3, store_config=FEW, config=replace(BROKER, **settings))
    made.make_topic()
    return made


def sent(made: SimulatedBroker, body: bytes = b"x", **options: Any) -> MessageRecord:
    return made.stored(made.send(body, properties="TAGS\x01a\x02UNIQ_KEY\x01u", **options))


def back(
    offset: int, *, group: str = "consumers", level: int = 0, oneway: bool = False, **fields: Any
) -> RemotingCommand:
    header = ConsumerSendMsgBackHeader(offset, group, level, **fields)
    code, flag = RequestCode.CONSUMER_SEND_MSG_BACK, ONEWAY_FLAG if oneway else 0
    return RemotingCommand(code, header.encode(), flag=flag, version=407)


def last(made: SimulatedBroker) -> MessageRecord:
    return made.records()[-1]


def receive(made: SimulatedBroker) -> list[Received]:
    made.system.drain()
    return received(made.ask(receive_command()))


def test_a_sent_back_message_is_redelivered_with_growing_delays() -> None:
    made = broker()
    first = sent(made, flag=7, queue_id=2)
    offset, delays = first.physical_offset, []
    for times in range(1, 5):
        before_ms = made.clock.now_ms()
        assert made.ask(back(offset)).code == 0
        waiting = last(made)
        assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", min(times + 1, 5))
        made.system.advance(7000)
        found = made.messages(RETRY)[-1]
        delays.append(round((found.store_timestamp - before_ms) / 1000))
        assert (found.reconsume_times, found.queue_offset) == (times, times - 1)
        offset = found.physical_offset
    assert delays == [3, 4, 5, 6]
    assert parse(found.properties) == {
        "TAGS": "a",
        "UNIQ_KEY": "u",
        "CLUSTER": "DefaultCluster",
        "RETRY_TOPIC": "Topic",
        "ORIGIN_MESSAGE_ID": offset_message_id(first.store_host, first.physical_offset),
        "WAIT": "false",
        "DELAY": "6",
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    assert (found.body, found.flag) == (b"x", 7)
    assert (found.born_timestamp, found.born_host) == (first.born_timestamp, first.born_host)


@pytest.mark.parametrize("level", [0, -1], ids=["retry", "dead"])
def test_the_latest_failure_reason_is_stored_with_the_retry(
    level: int,
) -> None:
    made = broker()
    offset = sent(made).physical_offset
    assert made.ask(back(offset, level=level, failure="ValueError: \x01no\x02\nmore")).code == 0
    made.system.advance(7000)
    found = made.messages(DEAD if level else RETRY)[-1]
    assert parse(found.properties)["TROUPE_FAILURE"] == "ValueError:  no  more"
    assert made.ask(back(found.physical_offset, level=-1)).code == 0
    assert "TROUPE_FAILURE" not in parse(last(made).properties)


def test_message_in_flight_that_is_stored_again_keeps_its_failure_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "span_max", 5)
    made = broker()
    sent(made, b"own")
    (message,) = receive(made)
    assert made.ask(change_command(message, 500, failure="no stock")).code == 0
    made.system.advance(1_000)
    client = made.new_client(2)
    client.request(receive_command(hold=True))
    for _ in range(4):
        for _ in range(5):
            sent(made)
        for each in receive(made):
            assert made.ask(change_command(each, 0, retry_delay_level=1)).code == 0
        made.system.advance(2_000)
        for each in receive(made):
            assert made.ask(ack_command(each)).code == 0
    found = [parse(each.properties) for each in made.messages(RETRY) if each.body == b"own"]
    assert len(found) > 1, "stored again"
    assert {each.get("TROUPE_FAILURE") for each in found} == {"no stock"}


@pytest.mark.parametrize(
    "settings", [{}, {"timer_wheel_enable": False}, {"timer_max_delay_sec": 1}, {"reserved": 0}]
)
def test_retry_of_a_message_in_flight_waits_for_its_level_with_any_timer_settings(
    settings: dict[str, Any],
) -> None:
    hours = settings.pop("reserved", 72)
    store = replace(FEW, file_reserved_hours=hours, **settings)
    made = SimulatedBroker(3, store_config=store)
    made.make_topic()
    sent(made)
    (message,) = receive(made)
    assert made.ask(change_command(message, 0, retry_delay_level=5)).code == 0
    before_ms = made.clock.now_ms()
    made.system.advance(4_900)
    assert receive(made) == []
    made.system.advance(300)
    (again,) = receive(made)
    assert 0 <= again.record.store_timestamp - before_ms - 5_000 < 200


@pytest.mark.parametrize(
    ("others", "kept"), [(0, 1024), (32_000, 200), (32_400, 0)], ids=["free", "little", "none"]
)
def test_a_long_failure_reason_is_cut_to_the_property_limit(others: int, kept: int) -> None:
    made = broker()
    properties = f"a\x01{'x' * others}" if others else "a\x01b"
    first = made.stored(made.send(b"x", properties=properties))
    assert made.ask(back(first.physical_offset, level=-1, failure="ä" * 40_000)).code == 0
    copy = parse(last(made).properties)
    reason = copy.get("TROUPE_FAILURE", "").encode()
    assert set(reason.decode()) <= {"ä"}
    if kept == 1024:
        assert len(reason) == 1024
    else:
        assert kept <= len(reason) < 700


def test_a_retry_level_above_the_highest_is_the_highest() -> None:
    made = broker()
    assert made.ask(back(sent(made).physical_offset, level=30)).code == 0
    waiting = last(made)
    assert (waiting.queue_id, parse(waiting.properties)["DELAY"]) == (5, "6")


@pytest.mark.parametrize(
    ("settings", "fields", "version", "dead"),
    [
        ({}, {"level": -1}, 407, True),
        ({}, {}, 407, False),
        ({"retry_max_times": 0}, {}, 407, True),
        ({"retry_max_times": 0}, {"max_reconsume_times": 1}, 407, False),
        ({"retry_max_times": 0}, {"max_reconsume_times": 1}, 121, False),
        ({"retry_max_times": 0}, {"max_reconsume_times": 1}, 120, True),
        ({}, {"max_reconsume_times": 0}, 407, True),
    ],
)
def test_over_the_limit_a_message_becomes_a_dead_letter(
    settings: dict[str, Any], fields: dict[str, Any], version: int, dead: bool
) -> None:
    made = broker()
    made.make_group(**settings)
    command = replace(back(sent(made).physical_offset, **fields), version=version)
    assert made.ask(command).code == 0
    made.system.advance(5000)
    topics = made.broker.tables.topics.value
    assert (DEAD in topics) == dead
    if dead:
        assert (topics[DEAD].write_queue_nums, topics[DEAD].perm) == (1, 6)
    (found,) = made.messages(DEAD if dead else RETRY)
    assert found.reconsume_times == 1
    assert parse(found.properties)["DELAY"] == ("0" if dead else "3")


@pytest.mark.parametrize("level", [0, -1])
def test_message_sent_with_the_highest_number_of_tries_becomes_a_dead_letter(level: int) -> None:
    made = broker()
    offset = sent(made, reconsume_times=2**31 - 1).physical_offset
    assert made.ask(back(offset, level=level)).code == 0
    assert (last(made).topic, last(made).reconsume_times) == (DEAD, 2**31 - 1)


def test_message_in_flight_with_the_highest_number_of_tries_becomes_a_dead_letter() -> None:
    made = broker()
    sent(made, reconsume_times=2**31 - 1)
    (found,) = receive(made)
    assert made.ask(change_command(found, 0, retry_delay_level=-1)).code == 0
    assert (last(made).topic, last(made).reconsume_times) == (DEAD, 2**31 - 1)


def test_retries_use_all_retry_queues_of_the_group() -> None:
    made = broker()
    made.make_group(retry_queue_nums=3)
    offset = sent(made).physical_offset
    for _ in range(20):
        assert made.ask(back(offset, level=1)).code == 0
    made.system.advance(2000)
    assert made.broker.tables.topics.value[RETRY].write_queue_nums == 3
    counts = [len(made.messages(RETRY, queue_id)) for queue_id in range(3)]
    assert sum(counts) == 20 and min(counts) > 0


def test_retries_use_existing_queues_when_the_group_gets_more() -> None:
    """`updateSubGroup -q 2` of a group that has been there leaves its retry topic as it is."""
    made = broker()
    made.make_group(retry_queue_nums=1)
    offset = sent(made).physical_offset
    assert made.ask(back(offset, level=1)).code == 0
    made.make_group(retry_queue_nums=2)
    for _ in range(20):
        assert made.ask(back(offset, level=1)).code == 0
    made.system.advance(2000)
    assert made.broker.tables.topics.value[RETRY].read_queue_nums == 1
    assert len(made.messages(RETRY)) == 21


def test_a_one_way_send_back_is_stored_without_an_answer() -> None:
    made = broker()
    offset = sent(made).physical_offset
    answers: list[RemotingCommand] = []
    made.client.start(back(offset, level=1, oneway=True), answers.append)
    made.system.advance(2000)
    assert answers == []
    assert len(made.messages(RETRY)) == 1


def test_invalid_send_backs_are_refused_with_the_originals_texts() -> None:
    made = broker(auto_create_group_enable=False)
    made.make_group()
    offset = sent(made).physical_offset

    def refused(command: RemotingCommand) -> tuple[int, str | None]:
        answer = made.ask(command)
        assert answer.fields is None
        return answer.code, answer.remark

    assert refused(back(offset, group="nobody")) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, nobody {FAQ}",
    )
    for place in (99_999, -1, offset + 1):
        assert refused(back(place)) == (1, f"look message by offset failed, {place}")
    made.system.address("put_message").tell(WritesForbidden("full", "test"))
    made.system.drain()
    assert refused(back(offset)) == (1, "SERVICE_NOT_AVAILABLE")
    made.system.address("put_message").tell(WritesForbidden(None, "test"))
    made.system.drain()
    made.make_topic(RETRY, perm=4)
    assert refused(back(offset)) == (16, f"the topic[{RETRY}] sending message is forbidden")


def test_a_group_without_retry_queues_has_its_messages_dropped() -> None:
    made = broker()
    made.make_group(retry_queue_nums=0)
    count = len(made.records())
    assert made.ask(back(5)).code == 0
    assert len(made.records()) == count


def test_a_pending_send_back_is_answered_when_put_message_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker()
    offset = sent(made).physical_offset
    assert made.ask(back(offset)).code == 0  # its topic is there now
    log = made.broker.store.commit_log
    append = log.append

    def broken(*_: object) -> None:
        monkeypatch.setattr(log, "append", append)
        raise ValueError("broken")

    monkeypatch.setattr(log, "append", broken)
    assert made.ask(back(offset)).code == ResponseCode.SYSTEM_ERROR
    assert made.ask(back(offset)).code == 0


class Watching:
    def __init__(self) -> None:
        self.seen: list[SendBackContext] = []

    def before_send(self, _: object) -> None: ...

    def after_send(self, _: object) -> None: ...

    def after_send_back(self, context: SendBackContext) -> None:
        self.seen.append(context)


def test_send_hooks_see_send_backs() -> None:
    hook = Watching()
    made = SimulatedBroker(3, hooks=[hook])
    made.make_topic()
    offset = sent(made).physical_offset
    made.ask(back(offset, level=2, origin_msg_id="id", origin_topic="Topic"))
    made.ask(back(offset))  # without an id there is nothing to show
    assert [(each.group, each.topic, each.message_id) for each in hook.seen] == [
        ("consumers", "Topic", "id")
    ]
    assert hook.seen[0].delay_level == 2


# --- recorded


def recorded() -> Iterator[tuple[RemotingCommand, RemotingCommand]]:
    for name in ("negative", "java-4.9.7", "java-5.3.3", "binary-header", "go-v2"):
        asked: dict[int, RemotingCommand] = {}
        for frame in golden.frames(name):
            if frame["direction"] == "request" and frame["code"] == 36:
                asked[frame["pair"]] = decode_frame(frame["frame"][4:])
            elif frame["pair"] in asked and frame["direction"] == "response":
                yield asked[frame["pair"]], decode_frame(frame["frame"][4:])


@pytest.mark.heavy
def test_recorded_send_backs_get_the_recorded_answers() -> None:
    compared = 0
    for command, wanted in recorded():
        header = ConsumerSendMsgBackHeader.decode(command.fields)
        refused = re.search("sending message is forbidden", wanted.remark or "")
        unknown = wanted.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        config = replace(
            BROKER,
            broker_permission=4 if refused else 6,
            auto_create_group_enable=not unknown,
        )
        made = SimulatedBroker(1, config=config)
        made.make_topic()
        if header.group == "CG_off":
            made.make_group(header.group, retry_queue_nums=0)
        place = sent(made).physical_offset
        if wanted.code == 0:  # its message is another one here
            command = replace(command, fields={**(command.fields or {}), "offset": str(place)})
        answer = made.ask(command)
        assert (answer.code, answer.remark) == (wanted.code, wanted.remark)
        assert not answer.fields and not wanted.fields
        compared += 1
        made.stop()
    assert compared == 16
