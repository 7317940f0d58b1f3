"""Typed headers: what is mandatory, what is lenient, and what the error says."""

from collections.abc import Mapping

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    GetRouteInfoHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueueHeader,
    UnregisterClientHeader,
)
from protocol.headers.fields import Header
from protocol.headers.namesrv import RegisterBrokerResponseHeader
from protocol.headers.pop import ALL_QUEUES, PopMessageHeader, PopMessageResponseHeader
from protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from protocol.headers.transaction import EndTransactionHeader
from tests.support.headers_by_code import REQUEST_HEADERS, RESPONSE_HEADERS

SEND = SendMessageHeader(
    "PG", "T", "TBW102", 4, 2, 0, 1795189028865, 0, "TAGS\x01a", 0, False, None, False, "broker-a"
)
SEND_LONG = {"producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102"}
SEND_LONG |= {"defaultTopicQueueNums": "4", "queueId": "2", "sysFlag": "0"}
SEND_LONG |= {"bornTimestamp": "1795189028865", "flag": "0", "properties": "TAGS\x01a"}
SEND_LONG |= {"reconsumeTimes": "0", "unitMode": "false", "batch": "false", "bname": "broker-a"}
SEND_SHORT = dict(zip("abcdefghijkmn", SEND_LONG.values(), strict=True))
PULL = PullMessageHeader(
    consumer_group="CG",
    topic="T",
    queue_id=3,
    queue_offset=1 << 40,
    max_msg_nums=32,
    sys_flag=3,
    commit_offset=5,
    suspend_timeout_ms=15000,
    sub_version=1795188797085,
    expression_type="TAG",
    broker_name="broker-a",
)
PULL_FIELDS = {"consumerGroup": "CG", "topic": "T", "queueId": "3"}
PULL_FIELDS |= {"queueOffset": "1099511627776", "maxMsgNums": "32", "sysFlag": "3"}
PULL_FIELDS |= {"commitOffset": "5", "suspendTimeoutMillis": "15000"}
PULL_FIELDS |= {"subVersion": "1795188797085", "expressionType": "TAG", "bname": "broker-a"}
CASES: list[tuple[Header, dict[str, str]]] = [
    (SEND, SEND_LONG),
    (PULL, PULL_FIELDS),
    (
        SendMessageResponseHeader("ID", 1, 2),
        {"msgId": "ID", "queueId": "1", "queueOffset": "2"},
    ),
    (
        PullMessageResponseHeader(0, 7, 0, 9),
        {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "9"},
    ),
    (QueueHeader("T", 3), {"topic": "T", "queueId": "3"}),
    (OffsetResponseHeader(-1), {"offset": "-1"}),
    (UnregisterClientHeader("c", None, "g"), {"clientID": "c", "consumerGroup": "g"}),
    (GetRouteInfoHeader("T", True), {"topic": "T", "acceptStandardJsonOnly": "true"}),
    (RegisterBrokerResponseHeader(), {}),
]


@pytest.mark.parametrize(("header", "fields"), CASES)
def test_a_header_is_its_ext_fields_in_order(header: Header, fields: dict[str, str]) -> None:
    encoded = header.encode()
    assert encoded == fields
    assert list(encoded) == list(fields)
    assert type(header).decode(fields) == header
    assert type(header).decode({"AccessKey": "x", **fields, "later": "y"}) == header


def test_a_send_has_long_and_short_names() -> None:
    assert SEND.encode_v2() == SEND_SHORT
    assert list(SEND.encode_v2()) == list("abcdefghijkmn")
    assert SendMessageHeader.decode_v2(SEND_SHORT) == SEND
    for code in (10, 324):
        assert SendMessageHeader.of_command(RemotingCommand(code, SEND_LONG)) == SEND
    for code in (310, 320, 325):
        assert SendMessageHeader.of_command(RemotingCommand(code, SEND_SHORT)) == SEND


def remark_of(header: type[Header], fields: Mapping[str, str] | None) -> str:
    with pytest.raises(RemoteError) as caught:
        header.decode(fields)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    return caught.value.remark


def without(fields: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in fields.items() if key != name}


def test_a_missing_mandatory_field_is_named() -> None:
    assert remark_of(QueueHeader, None).startswith("java.lang.NullPointerException")
    assert "<queueId> is null" in remark_of(QueueHeader, {"topic": "T"})
    remark = remark_of(PullMessageHeader, without(PULL_FIELDS, "subVersion"))
    assert remark.endswith("RemotingCommandException: the custom field <subVersion> is null")
    with pytest.raises(RemoteError, match="<e> is null"):
        SendMessageHeader.decode_v2(without(SEND_SHORT, "e"))


@pytest.mark.parametrize(
    "text", ["abc", "", " 3", "3 ", "1_0", "3.0", "0x3", "2147483648", "-2147483649", "-", "9" * 99]
)
def test_numbers_are_parsed_as_in_java(text: str) -> None:
    assert "<queueId> is null" in remark_of(QueueHeader, {"topic": "T", "queueId": text})
    remark = remark_of(PullMessageHeader, PULL_FIELDS | {"queueId": text})
    assert remark == f'java.lang.NumberFormatException: For input string: "{text}"'


def test_numbers_have_a_sign_and_32_or_64_bits() -> None:
    assert QueueHeader.decode({"topic": "T", "queueId": "-2147483648"}).queue_id == -(1 << 31)
    assert QueueHeader.decode({"topic": "T", "queueId": "+7"}).queue_id == 7
    assert OffsetResponseHeader.decode({"offset": "9223372036854775807"}).offset == (1 << 63) - 1
    assert "<offset>" in remark_of(OffsetResponseHeader, {"offset": "9223372036854775808"})


def test_an_invalid_optional_number_keeps_its_default() -> None:
    fields = {"offset": "1", "group": "g", "delayLevel": "0", "maxReconsumeTimes": "many"}
    assert ConsumerSendMsgBackHeader.decode(fields).max_reconsume_times is None
    with pytest.raises(RemoteError, match="NumberFormatException"):
        SendMessageHeader.decode_v2(SEND_SHORT | {"l": "many"})


def test_only_the_text_true_is_true() -> None:
    for text, value in (("TRUE", True), ("true", True), ("yes", False), ("1", False)):
        decoded = GetRouteInfoHeader.decode({"topic": "T", "acceptStandardJsonOnly": text})
        assert decoded.accept_standard_json_only is value


def test_values_that_the_original_refuses_in_decoding_are_refused() -> None:
    topic = {"topic": "T", "defaultTopic": "D", "readQueueNums": "1", "writeQueueNums": "1"}
    topic |= {"perm": "6", "topicFilterType": "MANY"}
    assert remark_of(CreateTopicHeader, topic).endswith("topicFilterType = [MANY] value invalid")
    end = {"producerGroup": "g", "tranStateTableOffset": "1", "commitLogOffset": "2"}
    remark = remark_of(EndTransactionHeader, end | {"commitOrRollback": "5"})
    assert remark.endswith("commitOrRollback field wrong")
    assert EndTransactionHeader.decode(end | {"commitOrRollback": "8"}).commit_or_rollback == 8


def test_every_code_with_a_header_is_known() -> None:
    codes = set(map(int, RequestCode))
    assert set(map(int, REQUEST_HEADERS)) <= codes
    assert set(map(int, RESPONSE_HEADERS)) <= set(map(int, REQUEST_HEADERS)) | {26, 52}


def test_primitives_of_a_receive_are_zero_where_they_are_missing() -> None:
    header = PopMessageHeader.decode({"consumerGroup": "CG", "topic": "T", "queueId": "-1"})
    assert header.queue_id == ALL_QUEUES
    assert header.max_msg_nums == header.poll_time_ms == header.born_time_ms == 0
    assert not header.order and not header.hold_with_connection


def test_answer_to_a_receive_says_so_where_a_hold_lives_with_its_connection() -> None:
    answer = PopMessageResponseHeader(
        pop_time_ms=1, invisible_time_ms=2, revive_queue_id=0, rest_num=3
    )
    assert "holdWithConnection" not in answer.encode()
    answer.hold_with_connection = True
    assert answer.encode()["holdWithConnection"] == "true"
    assert PopMessageResponseHeader.decode(answer.encode()) == answer
