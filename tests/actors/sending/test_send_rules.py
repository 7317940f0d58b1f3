"""Every check of a send: its code, its words, and which one comes first; through a whole broker."""

from dataclasses import replace
from typing import Any

import pytest

from actors.config import BrokerConfig
from actors.sending import admission, send_rules
from actors.tables.messages import SetOrderTopics
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import (
    MULTI_TAGS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RequestCode,
    ResponseCode,
)
from protocol.frame import RemotingCommand
from protocol.headers.transaction import EndTransactionHeader
from tests.support.brokers import BROKER, STORE, SimulatedBroker

START_MS = 1_700_000_000_000
SEED = 11
CONSTANT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
ILLEGAL_LETTERS = (
    "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
)
TOO_LONG = "The specified topic is longer than topic max length."
BLANK = "The specified topic is blank."
TOO_BIG = (
    "the message is illegal, maybe msg body or properties length not matched."
    " msg body length limit 1000B, msg properties length limit 32KB."
)
SMALL = replace(STORE, max_message_bytes=1000)
REFUSED = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
)


def broker(**settings: Any) -> SimulatedBroker:
    """Return a broker with the topic `Topic` and the system topics of every broker."""
    made = SimulatedBroker(SEED, config=replace(BROKER, **settings), store_config=SMALL)
    made.make_topic()
    return made


def refused(answer: RemotingCommand, code: int, remark: str) -> None:
    assert (answer.code, answer.remark) == (code, remark)
    assert answer.fields == CONSTANT
    assert answer.body is None


def test_sends_are_refused_before_the_broker_accepts_messages() -> None:
    start = START_MS + 10_000
    made = broker(start_accept_send_request_timestamp_ms=start)
    early = made.send()
    assert early.code == ResponseCode.SYSTEM_ERROR
    assert (early.remark or "").startswith("broker unable to service, until 2023-11-1")
    assert (early.remark or "").endswith(",000")
    made.system.advance(10_000)
    assert made.send().code == ResponseCode.SUCCESS


NAMES = {
    "blank": ("  ", ResponseCode.SYSTEM_ERROR, BLANK),
    "empty": ("", ResponseCode.SYSTEM_ERROR, BLANK),
    "with a blank": ("bad topic", ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
    "with a slash": ("../x", ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
    "with a line's end": ("Topic\n", ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
    "with a letter that is not ASCII": ("Tópic", ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
    "with a digit that is not ASCII": ("Topic٣", ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
    "of 128 letters": ("x" * 128, ResponseCode.SYSTEM_ERROR, TOO_LONG),
    "illegal and too long": ("x y" * 60, ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
}


@pytest.mark.parametrize(("topic", "code", "remark"), NAMES.values(), ids=NAMES.keys())
def test_an_illegal_name_is_refused(topic: str, code: int, remark: str) -> None:
    made = broker()
    refused(made.send(topic=topic), code, remark)


def test_a_name_of_127_letters_is_legal() -> None:
    made = broker()
    topic = "t" * 127
    record = made.stored(made.send(topic=topic))
    assert record.topic == topic
    assert made.messages(topic)[0].body == b"body"


def test_sends_to_system_topics_are_refused() -> None:
    made = broker()
    for topic in REFUSED:
        remark = f"Sending message to topic[{topic}] is forbidden."
        refused(made.send(topic=topic), ResponseCode.NO_PERMISSION, remark)
        body = encode_batch([BatchMessage(b"b")])
        answer = made.send(body, topic=topic, batch=True)
        refused(answer, ResponseCode.NO_PERMISSION, remark)
    assert made.send(topic="TBW102").code == ResponseCode.SUCCESS
    assert made.send(topic="BenchmarkTest").code == ResponseCode.SUCCESS


# --- topics that are not there


def topic_of(made: SimulatedBroker, name: str) -> tuple[int, int, int, int]:
    config = made.broker.tables.topics.value[name]
    return config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag


def test_an_unknown_topic_is_created_from_its_default_topic() -> None:
    made = broker(default_topic_queue_nums=6)
    assert made.send(topic="New").code == ResponseCode.SUCCESS
    assert topic_of(made, "New") == (4, 4, 6, 0)
    assert made.send(topic="More", default_topic_queue_nums=16).code == ResponseCode.SUCCESS
    assert topic_of(made, "More") == (6, 6, 6, 0)
    assert made.send(topic="Unit", unit_mode=True).code == ResponseCode.SUCCESS
    assert topic_of(made, "Unit") == (4, 4, 6, 1)


def test_without_auto_creation_an_unknown_topic_is_refused() -> None:
    made = broker(auto_create_topic_enable=False)
    remark = f"topic[New] not exist, apply first please!{FAQ}"
    refused(made.send(topic="New"), ResponseCode.TOPIC_NOT_EXIST, remark)
    assert "New" not in made.broker.tables.topics.value


@pytest.mark.parametrize("default_topic", ["NoSuchTopic", "Topic"])
def test_an_unknown_or_not_inherited_default_topic_creates_none(
    default_topic: str,
) -> None:
    made = broker()
    remark = f"topic[New] not exist, apply first please!{FAQ}"
    answer = made.send(topic="New", default_topic=default_topic)
    refused(answer, ResponseCode.TOPIC_NOT_EXIST, remark)


def test_a_user_topic_with_the_inherit_bit_is_a_default_topic() -> None:
    made = broker(auto_create_topic_enable=False)
    made.make_topic("Pattern", queues=2, perm=7)
    assert made.send(topic="New", default_topic="Pattern").code == ResponseCode.SUCCESS
    assert topic_of(made, "New") == (2, 2, 6, 0)


def test_the_first_send_of_a_topic_may_name_a_queue_it_does_not_get() -> None:
    made = broker()
    answer = made.send(topic="New", queue_id=4)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(
        "request queueId[4] is illegal, TopicConfig [topicName=New, readQueueNums=4,"
    )


# --- queues


def test_a_missing_queue_is_refused_with_the_topic_s_settings() -> None:
    made = broker()
    text = (
        "TopicConfig [topicName=Topic, readQueueNums=4, writeQueueNums=4, perm=RW-,"
        " topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]"
    )
    remark = f"request queueId[99] is illegal, {text} Producer: 127.0.0.1:1"
    refused(made.send(queue_id=99), ResponseCode.SYSTEM_ERROR, remark)
    body = encode_batch([BatchMessage(b"b")])
    refused(made.send(body, queue_id=99, batch=True), ResponseCode.SYSTEM_ERROR, remark)


def test_a_read_queue_accepts_sends() -> None:
    made = broker()
    made.make_topic("Shrunk", queues=2, read_queues=8)
    assert made.send(topic="Shrunk", queue_id=7).code == ResponseCode.SUCCESS
    assert made.send(topic="Shrunk", queue_id=8).code == ResponseCode.SYSTEM_ERROR


def test_a_negative_queue_means_any_write_queue() -> None:
    made = broker()
    made.make_topic("Shrunk", queues=2, read_queues=8)
    answers = [made.send(topic="Shrunk", queue_id=-1) for _ in range(40)]
    queues = [int((answer.fields or {})["queueId"]) for answer in answers]
    assert set(queues) == {0, 1}
    assert [made.stored(answer).queue_id for answer in answers] == queues


def test_a_topic_without_write_permission_still_accepts_messages() -> None:
    made = broker()
    made.make_topic("ReadOnly", perm=4)
    assert made.send(topic="ReadOnly").code == ResponseCode.SUCCESS


def test_a_read_only_broker_refuses_ordered_topics_only() -> None:
    made = broker(broker_permission=4)
    made.make_topic("Ordered")
    made.system.address("topics").tell(SetOrderTopics(frozenset({"Ordered"})))
    made.system.advance(100)
    remark = "the broker[127.0.0.1] sending message is forbidden"
    refused(made.send(topic="Ordered"), ResponseCode.NO_PERMISSION, remark)
    assert made.send().code == ResponseCode.SUCCESS


def test_a_topic_of_many_tags_sets_the_flag() -> None:
    made = broker()
    made.make_topic("Many", filter_type="MULTI_TAG")
    assert made.stored(made.send(topic="Many", sys_flag=1)).sys_flag == MULTI_TAGS | 1
    body = encode_batch([BatchMessage(b"b")])
    assert made.stored(made.send(body, topic="Many", batch=True)).sys_flag == MULTI_TAGS
    assert made.stored(made.send()).sys_flag == 0


# --- sizes


def test_a_body_longer_than_the_setting_is_refused() -> None:
    made = broker()
    assert made.stored(made.send(b"x" * 1000)).body == b"x" * 1000
    refused(made.send(b"x" * 1001), ResponseCode.MESSAGE_ILLEGAL, TOO_BIG)
    assert made.stored(made.send(b"")).body == b""


def test_stored_properties_over_32767_bytes_are_refused() -> None:
    made = broker()
    cluster = len("\x02CLUSTER\x01DefaultCluster")
    fits = "big\x01" + "p" * (32_767 - cluster - 4)
    assert len(made.stored(made.send(properties=fits)).properties) == 32_767
    refused(made.send(properties=fits + "p"), ResponseCode.MESSAGE_ILLEGAL, TOO_BIG)
    letters = "big\x01" + "ü" * ((32_767 - cluster - 4) // 2)
    assert made.send(properties=letters).code == ResponseCode.SUCCESS
    refused(made.send(properties=letters + "üü"), ResponseCode.MESSAGE_ILLEGAL, TOO_BIG)


def test_a_record_that_no_file_could_hold_is_refused() -> None:
    config = replace(STORE, commit_log_file_bytes=4096)
    made = SimulatedBroker(SEED, store_config=config)
    answer = made.send(b"x" * 4000)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    body = encode_batch([BatchMessage(b"x" * 1300)] * 3)
    assert made.send(body, batch=True).code == ResponseCode.MESSAGE_ILLEGAL
    assert made.send(b"x" * 3000).code == ResponseCode.SUCCESS


# --- half messages


def test_half_messages_are_refused_under_reject_transaction_message() -> None:
    made = broker(reject_transaction_message=True)
    half: dict[str, Any] = {
        "properties": "TRAN_MSG\x01true\x02PGROUP\x01p",
        "sys_flag": TRANSACTION_PREPARED,
    }
    remark = "the broker[127.0.0.1] sending transaction message is forbidden"
    refused(made.send(**half), ResponseCode.NO_PERMISSION, remark)
    assert made.send(properties="TRAN_MSG\x01false").code == ResponseCode.SUCCESS


def test_half_messages_beyond_the_limit_wait_for_the_end_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes half a KiB of memory: an account could fill it with open transactions."""
    monkeypatch.setattr(admission, "OPEN_TRANSACTIONS_MAX", 3)
    monkeypatch.setattr(send_rules, "OPEN_TRANSACTIONS_MAX", 3)
    made, text = broker(), "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01"
    for number in range(3):
        assert made.send(properties=f"{text}{number}").code == ResponseCode.SUCCESS
    made.system.advance(100)
    remark = "limit of 3 open transactions reached: end some, send it later"
    refused(made.send(properties=f"{text}3"), ResponseCode.SYSTEM_BUSY, remark)
    assert made.send().code == ResponseCode.SUCCESS
    header = EndTransactionHeader("p", 0, 0, TRANSACTION_ROLLBACK)
    assert made.ask(RemotingCommand(RequestCode.END_TRANSACTION, header.encode())).code == 0
    made.system.advance(100)
    assert made.send(properties=f"{text}3").code == ResponseCode.SUCCESS


def test_a_message_that_its_sender_calls_prepared_opens_no_transaction() -> None:
    """Nothing could settle it: it took memory until its log file was deleted."""
    made = broker()
    assert made.send(sys_flag=TRANSACTION_PREPARED).code == ResponseCode.SUCCESS
    made.system.advance(100)
    assert made.broker.store.transaction_table.pending_count == 0


# --- which comes first

FIRST = {
    "not accepting, then illegal": (
        {"start_accept_send_request_timestamp_ms": START_MS + 10_000},
        {"topic": "bad topic"},
        (ResponseCode.SYSTEM_ERROR, "broker unable to service"),
    ),
    "illegal, then too long for a body": (
        {},
        {"topic": "bad topic", "body": b"x" * 1001},
        (ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS),
    ),
    "a system's topic, then a bad queue": (
        {},
        {"topic": "SELF_TEST_TOPIC", "queue_id": 99},
        (ResponseCode.NO_PERMISSION, "Sending message to"),
    ),
    "an unknown topic, then a bad queue": (
        {"auto_create_topic_enable": False},
        {"topic": "New", "queue_id": 99},
        (ResponseCode.TOPIC_NOT_EXIST, "topic[New]"),
    ),
    "a bad queue, then an unknown group": (
        {"auto_create_group_enable": False},
        {"topic": "%RETRY%nobody", "queue_id": 99},
        (ResponseCode.SYSTEM_ERROR, "request queueId[99]"),
    ),
    "an unknown group, then a half message": (
        {"auto_create_group_enable": False, "reject_transaction_message": True},
        {"topic": "%RETRY%nobody", "properties": "TRAN_MSG\x01true"},
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist"),
    ),
    "a half message, then a long body": (
        {"reject_transaction_message": True},
        {"properties": "TRAN_MSG\x01true", "body": b"x" * 1001},
        (ResponseCode.NO_PERMISSION, "the broker[127.0.0.1] sending transaction"),
    ),
    "a bad queue, then a long body": (
        {},
        {"queue_id": 99, "body": b"x" * 1001},
        (ResponseCode.SYSTEM_ERROR, "request queueId[99]"),
    ),
}


@pytest.mark.parametrize(("settings", "options", "first"), FIRST.values(), ids=FIRST.keys())
def test_a_send_that_breaks_two_rules_gets_the_first(
    settings: dict[str, Any], options: dict[str, Any], first: tuple[int, str]
) -> None:
    made = broker(**settings)
    answer = made.send(**options)
    assert answer.code == first[0]
    assert (answer.remark or "").startswith(first[1])
    assert answer.fields == CONSTANT


SLAVE: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1}
UNAVAILABLE = (
    "service not available now. It may be caused by one of the following reasons: the broker's "
    "disk is full [CL:  0.00 CQ: -1.00 INDEX: -1.00], messages are put to the slave, "
    "message store has been shut down, etc."
)


def test_a_slave_refuses_sends_after_all_other_checks() -> None:
    made = SimulatedBroker(SEED, config=replace(BROKER, **SLAVE), store_config=SMALL)
    refused(made.send(topic="TBW102"), ResponseCode.SERVICE_NOT_AVAILABLE, UNAVAILABLE)
    refused(made.send(topic="Unknown"), ResponseCode.SERVICE_NOT_AVAILABLE, UNAVAILABLE)
    assert "Unknown" not in made.broker.tables.topics.value
    refused(made.send(topic="bad topic"), ResponseCode.SYSTEM_ERROR, ILLEGAL_LETTERS)
    assert made.send(topic="SELF_TEST_TOPIC").code == ResponseCode.NO_PERMISSION
    assert made.send(topic="TBW102", queue_id=99).code == ResponseCode.SYSTEM_ERROR
    long_body = made.send(b"x" * 1001, topic="TBW102")
    refused(long_body, ResponseCode.SERVICE_NOT_AVAILABLE, UNAVAILABLE)
    assert made.records() == []


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_send_without_mandatory_fields_is_refused_without_region(code: RequestCode) -> None:
    made = broker()
    answer = made.ask(RemotingCommand(code, {"topic": "Topic"}))
    assert (answer.code, answer.fields) == (ResponseCode.SYSTEM_ERROR, None)
    assert "is null" in (answer.remark or "")


def test_every_answer_has_region_and_trace_switch() -> None:
    config: BrokerConfig = replace(BROKER, region_id="eu-1", trace_on=False)
    made = SimulatedBroker(SEED, config=config)
    own = {"MSG_REGION": "eu-1", "TRACE_ON": "false"}
    stored, bad = made.send(), made.send(topic="bad topic")
    assert own.items() <= (stored.fields or {}).items()
    assert bad.fields == own
