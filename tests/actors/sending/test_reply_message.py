"""Replies: passed on to the producer that asked, stored, and answered by what became of them."""

from dataclasses import replace
from typing import Any

import pytest

from actors.network.hooks import SendContext
from actors.network.messages import CALL_MS
from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand, decode_frame
from protocol.headers.client import UnregisterClientHeader
from protocol.headers.send import SendMessageHeader
from protocol.message import MessageRecord
from protocol.properties import parse
from tests.support import golden
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.virtual_broker import LocalClient

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKER = "192.0.2.1@asker"
PROPERTIES = (
    f"MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{ASKER}\x02TTL\x015000\x02"
    "CORRELATION_ID\x01c-1\x02UNIQ_KEY\x01u\x02TAGS\x01t\x02"
)
"""Properties as a 5.x client writes them, with a separator at the end."""


def broker(store_config: Any = STORE, hooks: Any = (), **settings: Any) -> SimulatedBroker:
    config = replace(BROKER, **settings)
    return SimulatedBroker(9, config=config, store_config=store_config, hooks=hooks)


def asker(made: SimulatedBroker, client_id: str = ASKER, port: int = 7) -> LocalClient:
    """A producer that has sent its heartbeat."""
    client = made.new_client(port)
    body = HeartbeatData(client_id, producer_data_set=[ProducerData("askers")]).encode()
    answer = client.request(RemotingCommand(RequestCode.HEART_BEAT, body=body), timeout_s=120)
    assert answer.code == 0
    return client


def reply(
    body: bytes | None = b"reply",
    properties: str | None = PROPERTIES,
    *,
    v2: bool = True,
    flag: int = 0,
    **fields: Any,
) -> RemotingCommand:
    header = SendMessageHeader(
        producer_group="repliers",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_123,
        flag=5,
        properties=properties,
        reconsume_times=0,
    )
    header = replace(header, **fields)
    if v2:
        return RemotingCommand(
            RequestCode.SEND_REPLY_MESSAGE_V2, header.encode_v2(), body, flag=flag
        )
    return RemotingCommand(RequestCode.SEND_REPLY_MESSAGE, header.encode(), body, flag=flag)


def start(made: SimulatedBroker, command: RemotingCommand) -> list[RemotingCommand]:
    """The list gets the answer, once the system has run so far."""
    answers: list[RemotingCommand] = []
    made.client.start(command, answers.append)
    made.system.advance(1)
    return answers


def pushed(client: LocalClient) -> RemotingCommand:
    """Return the broker's request to the producer."""
    (command,) = client.received
    client.received.clear()
    assert command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and not command.is_oneway
    return command


def stored(made: SimulatedBroker) -> MessageRecord:
    (record,) = made.records()
    return record


@pytest.mark.parametrize("v2", [True, False])
def test_a_reply_reaches_the_requesting_producer_and_is_stored(v2: bool) -> None:
    made = broker()
    client = asker(made)
    answers = start(made, reply(v2=v2))
    push = pushed(client)
    assert answers == []  # the producer has not said anything yet
    now_ms = made.clock.now_ms()
    fields = push.fields or {}
    assert int(fields.pop("storeTimestamp")) in (now_ms, now_ms - 1)
    properties = parse(fields.pop("properties").encode())
    assert int(properties.pop("PUSH_REPLY_TIME")) in (now_ms, now_ms - 1)
    assert properties == parse(PROPERTIES.encode())
    assert fields == {
        "producerGroup": "repliers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000123",
        "flag": "5",
        "bornHost": "127.0.0.1:1",
        "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    assert push.body == b"reply"
    client.reply(push.answer())
    made.system.advance(10)
    (answer,) = answers
    record = stored(made)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert answer.fields == {
        "msgId": f"7F00000100002A9F{record.physical_offset:016X}",
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert (record.topic, record.queue_id, record.body, record.flag) == (TOPIC, 0, b"reply", 5)
    assert record.properties == PROPERTIES.encode()  # as it came, without CLUSTER
    assert (record.born_timestamp, record.born_host) == (1_700_000_000_123, made.client.host)
    assert [each.body for each in made.messages(TOPIC)] == [b"reply"]


NOT_FOUND = f"push reply message fail, channel of <{ASKER}> not found."
NULL = "reply message properties[REPLY_TO_CLIENT] is null"
FAILED = f"push reply message to {ASKER}fail."


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        (PROPERTIES, NOT_FOUND),
        ("MSG_TYPE\x01reply", NULL),
        (None, NULL),
        ("REPLY_TO_CLIENT\x01", NULL),
    ],
)
def test_a_reply_without_a_waiting_producer_is_an_error_and_stored(
    properties: str | None, remark: str
) -> None:
    made = broker()
    other = asker(made, "192.0.2.1@another")
    answer = made.ask(reply(properties=properties))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert (answer.fields or {})["msgId"].endswith(f"{stored(made).physical_offset:016X}")
    assert not other.received


@pytest.mark.parametrize("how", ["says no", "is silent", "goes"])
def test_a_producer_that_rejects_the_reply_makes_it_an_error(how: str) -> None:
    made = broker()
    client = asker(made)
    answers = start(made, reply())
    push = pushed(client)
    if how == "says no":
        client.reply(push.answer(ResponseCode.SYSTEM_ERROR, remark="not mine"))
        made.system.advance(10)
    elif how == "goes":
        client.close()
        made.system.advance(10)
    else:
        made.system.advance(CALL_MS - 100)
        assert answers == []
        made.system.advance(200)
    (answer,) = answers
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, FAILED)
    assert (answer.fields or {})["queueOffset"] == "0"
    assert stored(made).body == b"reply"


@pytest.mark.parametrize("found", [True, False])
def test_a_setting_disables_the_storage_of_replies(found: bool) -> None:
    made = broker(store_reply_message_enable=False)
    client = asker(made)
    answers = start(made, reply(properties=PROPERTIES if found else "a\x01b", queue_id=-1))
    if found:
        client.reply(pushed(client).answer())
        made.system.advance(10)
    (answer,) = answers
    constant = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    place = {"msgId": "0", "queueId": "0", "queueOffset": "0"}
    assert (answer.code, answer.fields) == ((0, constant | place) if found else (1, constant))
    assert made.records() == []


def test_a_producer_is_found_as_long_as_it_is_in_any_group_and_by_its_last_connection() -> None:
    made = broker()
    first, second = asker(made, port=7), asker(made, port=8)
    start(made, reply())
    assert not first.received
    pushed(second)
    header = UnregisterClientHeader(ASKER, producer_group="askers")
    command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode())
    assert second.request(command, timeout_s=120).code == 0
    made.system.advance(CALL_MS + 1000)  # and a scan: the first is known again
    start(made, reply())
    push = pushed(first)
    first.reply(push.answer())
    made.system.advance(121_000)  # silent for too long
    answer = made.ask(reply())
    assert answer.remark == NOT_FOUND


def test_a_reply_passes_the_checks_of_a_send_first() -> None:
    made = broker()
    client = asker(made)
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"topic": "bad topic"}, 1, "The specified topic contains illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is"),
        ({"queue_id": 1}, 1, "request queueId[1] is illegal, TopicConfig [topicName=Default"),
        ({"topic": "X", "default_topic": "none"}, 17, "topic[X] not exist, apply first please!"),
    ]
    for fields, code, remark in cases:
        answer = made.ask(reply(**fields))
        assert (answer.code, (answer.remark or "")[: len(remark)]) == (code, remark)
        assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert not client.received and made.records() == []


def test_a_reply_creates_a_missing_topic_like_a_send() -> None:
    made = broker()
    answers = [start(made, reply(topic="Other_REPLY_TOPIC", queue_id=3)) for _ in range(3)]
    made.system.advance(100)
    assert [answer.remark for (answer,) in answers] == [NOT_FOUND] * 3
    assert made.broker.tables.topics.value["Other_REPLY_TOPIC"].write_queue_nums == 4
    assert [record.queue_offset for record in made.records()] == [0, 1, 2]


def test_replies_are_refused_before_the_broker_accepts_messages() -> None:
    made = broker(start_accept_send_request_timestamp_ms=1_900_000_000_000)
    answer = made.ask(reply())
    assert (answer.remark or "").startswith("broker unable to service, until 2030-")


def test_a_delayed_reply_waits_in_its_level_with_the_time_of_its_push() -> None:
    made = broker(replace(STORE, message_delay_level="1s 2s"))
    client = asker(made)
    answers = start(made, reply(properties=PROPERTIES + "DELAY\x012"))
    client.reply(pushed(client).answer())
    made.system.advance(10)
    record = stored(made)
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    properties = parse(record.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == (TOPIC, "0")
    assert len(answers) == 1
    made.system.advance(2500)
    assert [each.body for each in made.messages(TOPIC)] == [b"reply"]


def test_a_compressed_reply_is_readable_in_the_store() -> None:
    made = broker()
    client = asker(made)
    start(made, reply(b"\x78\x9c...", sys_flag=769 | 8))
    push = pushed(client)
    assert (push.fields or {})["sysFlag"] == "777"
    client.reply(push.answer())
    made.system.advance(10)
    assert (stored(made).sys_flag, stored(made).body) == (769, b"\x78\x9c...")


@pytest.mark.parametrize("too_long", ["body", "properties"])
def test_a_reply_is_forwarded_even_if_it_cannot_be_stored(too_long: str) -> None:
    made = broker(replace(STORE, max_message_bytes=1000))
    client = asker(made)
    long = {"properties": PROPERTIES + "a\x01" + "b" * 33_000}
    answers = start(made, reply(b"x" * 1001) if too_long == "body" else reply(**long))  # type: ignore[arg-type]
    client.reply(pushed(client).answer())
    made.system.advance(10)
    (answer,) = answers
    assert (answer.code, (answer.fields or {})["msgId"]) == (0, "0")
    assert made.records() == []


def test_a_one_way_reply_is_forwarded_stored_and_not_answered() -> None:
    made = broker()
    client = asker(made)
    answers = start(made, reply(flag=ONEWAY_FLAG))
    client.reply(pushed(client).answer())
    made.system.advance(10)
    assert answers == [] and stored(made).body == b"reply"


def test_a_reply_in_flight_at_a_stop_is_stored_and_answered() -> None:
    made = broker()
    client = asker(made)
    answers = start(made, reply())
    push = pushed(client)
    made.stop()
    client.reply(push.answer())
    (answer,) = answers
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, FAILED)
    made.start()
    assert stored(made).body == b"reply"


def test_send_hooks_see_replies() -> None:
    seen: list[SendContext] = []

    class Watching:
        def before_send(self, context: SendContext) -> None:
            assert (context.topic, context.body_bytes, context.success) == (TOPIC, 5, False)

        def after_send(self, context: SendContext) -> None:
            seen.append(context)

    made = broker(hooks=[Watching()])
    client = asker(made)
    answers = start(made, reply())
    client.reply(pushed(client).answer())
    made.system.advance(10)
    made.ask(reply(properties="a\x01b"))
    first, second = seen
    assert (first.success, first.code) == (True, 0)
    assert first.message_id == (answers[0].fields or {})["msgId"]
    assert first.record_bytes == made.records()[0].record_bytes
    assert (second.success, second.remark, second.queue_offset) == (False, NULL, 1)


RECORDED = ("java-4.9.7", "java-5.3.3", "binary-header")


def recorded_replies(name: str) -> list[tuple[RemotingCommand, RemotingCommand]]:
    """Every reply of a recording, and its answer."""
    pairs: dict[int, list[RemotingCommand]] = {}
    for record in golden.frames(name):
        if record["code"] in (324, 325) and record["direction"] == "request":
            pairs[record["pair"]] = [decode_frame(record["frame"][4:])]
        elif record["pair"] in pairs:
            pairs[record["pair"]].append(decode_frame(record["frame"][4:]))
    return [(request, answer) for request, answer in pairs.values()]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_replies_get_the_recorded_answers(name: str) -> None:
    replies = recorded_replies(name)
    assert replies
    for request, wanted in replies:
        made = broker()
        answers: list[RemotingCommand] = []
        client = asker(made, "192.0.2.2@PG_reqI") if wanted.code == 0 else made.new_client()
        made.client.start(request, answers.append)
        made.system.advance(1)
        if wanted.code == 0:
            client.reply(pushed(client).answer())
        made.system.advance(100)
        (answer,) = answers
        assert (answer.code, answer.remark) == (wanted.code, wanted.remark)
        assert but_for_its_place(answer) == but_for_its_place(wanted)
        made.stop()


def but_for_its_place(answer: RemotingCommand) -> dict[str, str | None]:
    by_place = ("msgId", "queueOffset")
    fields = answer.fields or {}
    return {key: None if key in by_place else value for key, value in fields.items()}


@pytest.mark.parametrize("name", RECORDED)
def test_a_push_to_a_producer_has_the_recorded_fields(name: str) -> None:
    theirs = next(record for record in golden.frames(name) if record["code"] == 326)
    made = broker()
    client = asker(made)
    start(made, reply())
    ours = pushed(client)
    assert (ours.fields or {}).keys() == (decode_frame(theirs["frame"][4:]).fields or {}).keys()
