"""Typed bodies: both dialects of the route, registrations plain and compressed, odd input."""

from zlib import compress

import pytest

from protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    ProducerData,
    QueueData,
    SubscriptionData,
    TopicRouteData,
)
from protocol.bodies_admin import ConsumeStatsBody, OffsetWrapper, TopicList
from protocol.bodies_assignment import (
    AssignmentAnswer,
    QueueAssignment,
    RequestMode,
    RequestModeTable,
)
from protocol.bodies_client import ConsumerRunningInfo, ResetOffsetBody
from protocol.bodies_own import Jobs
from protocol.bodies_tables import (
    DataVersion,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.json_body import Body

QUEUE = MessageQueue("T", "b", 3)
SUBSCRIPTION = SubscriptionData("T", "TagA", ["TagA"], [2598919], 9)
CASES: list[tuple[Body, bytes]] = [
    (
        HeartbeatData(
            "c@1",
            [ProducerData("PG")],
            [ConsumerData("CG", "CONSUME_PASSIVELY", "CLUSTERING", None, [SUBSCRIPTION])],
        ),
        b'{"clientID":"c@1","consumerDataSet":[{"consumeType":"CONSUME_PASSIVELY",'
        b'"groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":['
        b'{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG",'
        b'"subString":"TagA","subVersion":9,"tagsSet":["TagA"],"topic":"T"}],'
        b'"unitMode":false}],"producerDataSet":[{"groupName":"PG"}]}',
    ),
    (
        SubscriptionGroupConfig("CG", retry_queue_nums=2),
        b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"groupName":"CG","notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":2,"whichBrokerWhenConsumeSlowly":1}',
    ),
    (
        TopicConfigTable({"T": TopicConfig("T", 4, 4)}, DataVersion(17, 2)),
        b'{"dataVersion":{"counter":2,"timestamp":17},"topicConfigTable":{"T":{"order":false,'
        b'"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        b'"topicSysFlag":0,"writeQueueNums":4}}}',
    ),
    (
        ClusterInfo({"b": BrokerData("C", "b", {0: "1.2.3.4:5"})}, {"C": ["b"]}),
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"1.2.3.4:5"},"brokerName":"b",'
        b'"cluster":"C"}},"clusterAddrTable":{"C":["b"]}}',
    ),
    (LockBatchResponse([QUEUE]), b'{"lockOKMQSet":[{"brokerName":"b","queueId":3,"topic":"T"}]}'),
    (
        ConsumeStatsBody({QUEUE: OffsetWrapper(6, 2, 8)}, 2.0),
        b'{"consumeTps":2.0,"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:'
        b'{"brokerOffset":6,"consumerOffset":2,"lastTimestamp":8}}}',
    ),
    (
        ResetOffsetBody({QUEUE: 4}),
        b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:4}}',
    ),
    (TopicList(["a", "b"]), b'{"topicList":["a","b"]}'),
    (
        AssignmentAnswer([QueueAssignment(MessageQueue("T", "b", -1), "POP")]),
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":-1,'
        b'"topic":"T"},"mode":"POP"}]}',
    ),
    (
        RequestModeTable({"T": {"G": RequestMode("G", "POP", 3, "T")}}),
        b'{"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP",'
        b'"popShareQueueNum":3,"topic":"T"}}}}',
    ),
]


@pytest.mark.parametrize(("body", "text"), CASES)
def test_a_body_has_its_fields_in_alphabetical_order(body: Body, text: bytes) -> None:
    assert body.encode() == text
    assert type(body).decode(text) == body
    assert type(body).decode(memoryview(text[:-1] + b',"later":{"x":[1]}}')) == body


ROUTE = TopicRouteData(
    [QueueData("b", 8, 8, 6)],
    [BrokerData("Köln", "b", {10: "10.0.0.2:10911", 0: "10.0.0.1:10911"})],
    {"z/1": ["s"], "a": []},
)


def test_a_route_has_two_json_forms() -> None:
    assert ROUTE.encode(standard_json=True) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","10":"10.0.0.2:10911"},'
        b'"brokerName":"b","cluster":"K\\u00F6ln"}],'
        b'"filterServerTable":{"a":[],"z\\/1":["s"]},"queueDatas":[{"brokerName":"b","perm":6,'
        b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )
    assert (
        '"brokerAddrs":{10:"10.0.0.2:10911",0:"10.0.0.1:10911"},"brokerName":"b","cluster":"Köln"'
    ).encode() in ROUTE.encode()
    assert TopicRouteData.decode(ROUTE.encode()) == ROUTE
    assert TopicRouteData.decode(ROUTE.encode(standard_json=True)) == ROUTE


REGISTRATION = RegisterBrokerBody(
    TopicConfigTable(
        {"T": TopicConfig("T", 4, 8, 7), "städte": TopicConfig("städte", 1, 1, 6, "MULTI_TAG")},
        DataVersion(1795190027280, 3),
    ),
    ["1.2.3.4:5"],
)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_is_encoded_plain_and_compressed(compressed: bool) -> None:
    data = REGISTRATION.encode(compressed=compressed)
    assert RegisterBrokerBody.decode(data, compressed=compressed) == REGISTRATION
    assert (data[:1] == b"{") is not compressed


def test_a_plain_registration_has_the_originals_keys() -> None:
    assert RegisterBrokerBody().encode() == (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,'
        b'"timestamp":0},"topicConfigTable":{}}}'
    )


PLAIN = b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x01x"
BROKEN = [None, b"", b"not zlib", compress(b""), compress(b"\x00\x00\x00\x09{}"), compress(PLAIN)]


@pytest.mark.parametrize("data", BROKEN)
def test_an_invalid_compressed_registration_is_the_peers_error(data: bytes | None) -> None:
    with pytest.raises(RemoteError, match="IOException") as caught:
        RegisterBrokerBody.decode(data, compressed=True)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_missing_fields_and_nulls_are_defaults() -> None:
    assert LockBatchRequest.decode(b"{}") == LockBatchRequest()
    assert SubscriptionGroupConfig.decode(b'{"groupName":"g","retryMaxTimes":null}') == (
        SubscriptionGroupConfig("g")
    )
    assert SubscriptionData.decode(b"{}") == SubscriptionData("")
    assert LockBatchRequest.decode(b'{"mqSet":[{}]}').mq_set == [MessageQueue("", "", 0)]


def test_numbers_may_be_strings_and_keys_too() -> None:
    text = b'{"topic":5,"codeSet":["2598919",1.0],"subVersion":"9","classFilterMode":"true"}'
    assert SubscriptionData.decode(text) == SubscriptionData(
        "5", code_set=[2598919, 1], sub_version=9, class_filter_mode=True
    )
    quoted = b'{"offsetTable":{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\",\\"queueId\\":3}":4}}'
    assert ResetOffsetBody.decode(quoted) == ResetOffsetBody({QUEUE: 4})
    assert ConsumeStatsBody.decode(b'{"consumeTps":"2.5"}').consume_tps == 2.5


ODD = [b"", b"null", b"[]", b"5", b"not json", b"{", b'{"codeSet":5}', b'{"codeSet":[[]]}']
ODD += [b'{"subVersion":"x"}', b'{"subVersion":{}}', b'{"classFilterMode":"maybe"}']
ODD += [b'{"subVersion":1e999}', b'{"topic":' + b"[" * 900 + b"]" * 900 + b"}"]
ODD += [b'{"classFilterMode":[]}', b'{"subVersion":NaN,"codeSet":[true,"y"]}']


@pytest.mark.parametrize("data", ODD)
def test_an_invalid_body_is_the_peers_error(data: bytes) -> None:
    with pytest.raises(RemoteError, match="JSONException") as caught:
        SubscriptionData.decode(data)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "data", [b'{"offsetTable":[]}', b'{"offsetTable":{5:1}}', b'{"offsetTable":{"x":1}}']
)
def test_an_invalid_table_is_the_peers_error(data: bytes) -> None:
    with pytest.raises(RemoteError, match="JSONException"):
        ResetOffsetBody.decode(data)


def test_a_missing_body_is_the_peers_error() -> None:
    with pytest.raises(RemoteError, match="NullPointerException"):
        HeartbeatData.decode(None)


def test_a_table_read_twice_is_not_shared() -> None:
    first, second = LockBatchRequest.decode(b"{}"), LockBatchRequest.decode(b"{}")
    first.mq_set.append(QUEUE)
    assert second.mq_set == []


def test_a_data_version_increases() -> None:
    assert DataVersion(5, 1).next(9) == DataVersion(9, 2)
    assert DataVersion.decode(b'{"counter":2,"timestamp":9}') == DataVersion(9, 2)


ODD_KEYS = b"{'mqTable':{{1:a,'1':{}}:1}}"
"""Sorting such a key compared a text with an object: TypeError."""


@pytest.mark.parametrize(
    "data",
    [
        ODD_KEYS,
        b"{{{1:{},'1':2}:1}:1}",
        b'{"mqTable":{"{\\"queueId\\":[]}":{}}}',
        b'{"mqTable":{"[":{}}}',
        b'{"mqTable":{"' + b"[" * 2000 + b'":{}}}',
        b'{"statusTable":{"T":{"pullRT":1e999}}}',
        b'{"statusTable":{"T":{"consumeFailedMsgs":1e300}}}',
        b'{"statusTable":{"T":{"pullRT":%b}}}' % (b"9" * 399),
        b'{"jstack":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a":{"$ref":"$.a[%b]"},"mqTable":1}' % (b"9" * 5000),
        b"\xff\xfe",
    ],
)
def test_an_invalid_body_is_refused_without_another_failure(data: bytes) -> None:
    """Such answers of a consumer failed the actor that read them."""
    with pytest.raises(RemoteError):
        ConsumerRunningInfo.decode(data)


def test_a_report_is_valid_standard_json() -> None:
    """Pages show it as JSON, which has no objects as keys."""
    assert Jobs.decode(b"{runs:[{report:{1:[{a:2}]}}]}").runs[0].report == {"1": [{"a": 2}]}
    with pytest.raises(RemoteError, match="an object as a key"):
        Jobs.decode(b"{runs:[{report:{a:[{{a:1}:1}]}}]}")


def test_a_compressed_registration_of_long_similar_names_is_read() -> None:
    """Names of 250 characters that differ in six digits unfold to 87 times their length."""
    names = [f"%RETRY%{'abcdefghij' * 25}{number:06}" for number in range(5000)]
    table = TopicConfigTable({name: TopicConfig(name) for name in names}, DataVersion(1, 1))
    body = RegisterBrokerBody(table, []).encode(compressed=True)
    assert RegisterBrokerBody.decode(
        body, compressed=True
    ).topic_config_table.topic_configs.keys() == {*names}
