"""Usual requests and their answers, as their names, values and JSON texts stand on the wire."""

from dataclasses import dataclass
from struct import pack
from zlib import compress, crc32

from tests.support.by_hand.records import Message, Record, unique

Answer = tuple[int, dict[str, str] | None, bytes, str | None]
"""Code, fields, body, remark."""

OK: Answer = (0, None, b"", None)
OK_EMPTY: Answer = (0, {}, b"", None)


def found(body: str | bytes = b"", **fields: str) -> Answer:
    """A success; without fields its answer has no header."""
    return 0, fields or None, body.encode() if isinstance(body, str) else body, None


@dataclass(frozen=True)
class Exchange:
    """A request and its answer; one that gets none is one-way."""

    code: int
    fields: dict[str, str] | None = None
    body: bytes = b""
    answer: Answer | None = OK
    version: int = 407
    to: str = "broker"
    is_asked_by_server: bool = False


def to_namesrv(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    answer: Answer | None = OK,
    version: int = 407,
) -> Exchange:
    return Exchange(code, fields, body, answer, version, "namesrv")


def asked(
    code: int, fields: dict[str, str], body: bytes = b"", answer: Answer | None = None
) -> Exchange:
    """Request of the broker to a client."""
    return Exchange(code, fields, body, answer, is_asked_by_server=True)


RECORD = Record(Message("Plain", b"stored", {**unique(7), "TAGS": "A"}, 3), 4, 8190, 1795188825646)
RECORD_BYTES = RECORD.encoded()

SEND = {"a": "makers", "b": "Plain", "c": "TBW102", "d": "4", "e": "3", "f": "0",
        "g": "1795188749463", "h": "0", "i": "KEYS\x01k1 k2\x02WAIT\x01true\x02TAGS\x01A",
        "j": "0", "k": "false", "m": "false", "n": "broker-a"}  # fmt: skip
LONG_NAMES = dict(zip(SEND, ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums",
    "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode",
    "batch", "bname"), strict=True))  # fmt: skip
SEND_LONG = {LONG_NAMES[name]: value for name, value in SEND.items()}
REPLY = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker\x02TTL\x015000\x02CORRELATION_ID\x01c-1"
SENT = {"queueId": "3", "TRACE_ON": "true", "MSG_REGION": "DefaultRegion",
        "msgId": "7F000001000051AF0000000000001FFE", "queueOffset": "4"}  # fmt: skip
SENT_THREE = {**SENT, "msgId": ",".join([SENT["msgId"]] * 3)}
BATCH = b"".join(
    pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body)) + body
    + pack(">h", len(text)) + text
    for body, text in ((b"one", b""), (b"", b"TAGS\x01A"), (b"three", b"KEYS\x01k\x02"))
)  # fmt: skip
PULL = {"consumerGroup": "readers", "topic": "Plain", "queueId": "3", "queueOffset": "4",
        "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subVersion": "1795188797012", "expressionType": "TAG", "bname": "broker-a"}  # fmt: skip
PULLED = {"suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}
QUEUE = {"topic": "Plain", "queueId": "3"}
OF_GROUP = {"consumerGroup": "readers", **QUEUE}
BROKER = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911",
          "clusterName": "DefaultCluster", "brokerId": "0"}  # fmt: skip
MESSAGE_QUEUE = '{"brokerName":"broker-a","queueId":3,"topic":"Plain"}'
LOCKED = f'{{"clientId":"c@1","consumerGroup":"readers","mqSet":[{MESSAGE_QUEUE}]}}'.encode()
TAGGED = ('{"classFilterMode":false,"codeSet":[65,66],"expressionType":"TAG",'
    '"subString":"A || B","subVersion":1795188797012,"tagsSet":["A","B"],'
    '"topic":"Plain"}')  # fmt: skip
BY_SQL = ('{"classFilterMode":false,"codeSet":[],"expressionType":"SQL92","subString":'
    '"color = \'rot-grün\' OR n >= 2","subVersion":9,"tagsSet":[],"topic":"Kinds"}')  # fmt: skip
HEARTBEAT = ('{"clientID":"c@1","consumerDataSet":[{"consumeFromWhere":'
    '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"readers",'
    f'"messageModel":"CLUSTERING","subscriptionDataSet":[{TAGGED},{BY_SQL}],"unitMode":false}}],'
    '"producerDataSet":[{"groupName":"makers"}]}').encode()  # fmt: skip
TOPIC = ('{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    '"topicName":"Plain","topicSysFlag":0,"writeQueueNums":4}')  # fmt: skip
VERSION = '{"counter":2,"timestamp":1795188749534}'
TOPICS = f'{{"dataVersion":{VERSION},"topicConfigTable":{{"Plain":{TOPIC}}}}}'
GROUP = ('{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    '"consumeFromMinEnable":true,"groupName":"readers","notifyConsumerIdsChangedEnable":true,'
    '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}')  # fmt: skip
REGISTRATION = f'{{"filterServerList":[],"topicConfigSerializeWrapper":{TOPICS}}}'.encode()
DEFLATED = compress(
    pack(">i", len(VERSION)) + VERSION.encode()
    + pack(">ii", 1, 22) + b"Plain 4 4 6 SINGLE_TAG"
    + pack(">i", 2) + b"[]",
    9,
)  # fmt: skip
ROUTE = ('{{"brokerDatas":[{{"brokerAddrs":{{{0}:"127.0.0.1:10911",{1}:"127.0.0.1:10921"}},'
    '"brokerName":"broker-a","cluster":"DefaultCluster"}}],"filterServerTable":{{}},'
    '"queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
    '"writeQueueNums":4}}]}}')  # fmt: skip
CLUSTER = ('{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},'
    '"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":'
    '{"DefaultCluster":["broker-a"]}}')  # fmt: skip
PRODUCER = ('{"clientId":"c@1","language":"JAVA","lastUpdateTimestamp":1795188993191,'
    '"remoteIP":"/127.0.0.1:43368","version":407}')  # fmt: skip
CONNECTIONS = ('"connectionSet":[{"clientAddr":"127.0.0.1:43352","clientId":"c@1",'
    '"language":"JAVA","version":407}]')  # fmt: skip
STATS = (f'{{"consumeTps":0.5,"offsetTable":{{{MESSAGE_QUEUE}:{{"brokerOffset":6,'
    '"consumerOffset":2,"lastTimestamp":1795188750158}}}')  # fmt: skip
RESET = {"topic": "Plain", "group": "readers", "timestamp": "1795188895542", "isForce": "true"}


def registration(body: bytes, compressed: str) -> dict[str, str]:
    crc = crc32(body) & 0x7FFFFFFF
    return {**BROKER, "haServerAddr": "127.0.0.1:10912", "compressed": compressed,
            "bodyCrc32": str(crc)}  # fmt: skip


EXCHANGES = (
    Exchange(310, SEND, b"a body", found(**SENT)),
    Exchange(310, SEND, b"a body", None),
    Exchange(310, {**SEND, "i": "WAIT\x01false"}, b"", (17, {"TRACE_ON": "true"}, b"", "no topic")),
    Exchange(320, {**SEND, "m": "true", "i": "WAIT\x01true"}, BATCH, found(**SENT_THREE)),
    Exchange(10, SEND_LONG, b"a body", found(**SENT)),
    Exchange(325, {**SEND, "i": REPLY}, b"a reply", found(**SENT)),
    Exchange(324, {**SEND_LONG, "properties": REPLY}, b"a reply", found(**SENT)),
    Exchange(11, PULL, b"", found(RECORD_BYTES, **PULLED)),
    Exchange(11, {**PULL, "subscription": "A || B", "sysFlag": "6"}, b"", (19, PULLED, b"", None)),
    Exchange(12, {"topic": "Plain", "key": "k1", "maxNum": "32", "beginTimestamp": "0",
        "endTimestamp": "1795188836032", "_UNIQUE_KEY_QUERY": "false"}, b"",
        found(RECORD_BYTES, indexLastUpdateTimestamp="1795188825646",
              indexLastUpdatePhyoffset="8190")),
    Exchange(33, {"offset": "8190"}, b"", found(RECORD_BYTES)),
    Exchange(33, {"offset": "1"}, b"", (1, None, b"", "can not find the message")),
    Exchange(14, {**OF_GROUP, "bname": "broker-a"}, b"", found(offset="4")),
    Exchange(15, {**OF_GROUP, "commitOffset": "5", "bname": "broker-a"}, b"", OK_EMPTY),
    Exchange(15, {**OF_GROUP, "commitOffset": "5", "bname": "broker-a"}, b"", None),
    Exchange(29, {**QUEUE, "timestamp": "1795185223994", "bname": "broker-a"}, b"",
             found(offset="0")),
    Exchange(30, {**QUEUE, "bname": "broker-a"}, b"", found(offset="5")),
    Exchange(31, {**QUEUE, "bname": "broker-a"}, b"", found(offset="0")),
    Exchange(32, {**QUEUE, "bname": "broker-a"}, b"", found(timestamp="1795188749561")),
    Exchange(34, None, HEARTBEAT),
    Exchange(35, {"clientID": "c@1", "producerGroup": "makers"}, b"", OK_EMPTY),
    Exchange(36, {"offset": "8190", "group": "readers", "delayLevel": "1", "originMsgId": "F" * 32,
        "originTopic": "Plain", "unitMode": "false", "maxReconsumeTimes": "16",
        "bname": "broker-a"}, b"", OK),
    Exchange(37, {"producerGroup": "sellers", "tranStateTableOffset": "0",
        "commitLogOffset": "6997", "commitOrRollback": "8", "fromTransactionCheck": "false",
        "msgId": "F" * 32, "bname": "broker-a"}, b"", None),
    Exchange(38, {"consumerGroup": "readers"}, b"", (0, {}, b'{"consumerIdList":["c@1"]}', None)),
    Exchange(41, None, LOCKED, found(f'{{"lockOKMQSet":[{MESSAGE_QUEUE}]}}')),
    Exchange(42, None, LOCKED),
    Exchange(46, None,
        f'{{"clientId":"c@1","group":"choosers","subscriptionData":{BY_SQL}}}'.encode()),
    Exchange(17, {"topic": "Plain", "defaultTopic": "TBW102", "readQueueNums": "4",
        "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false"}, b"", OK),
    Exchange(215, {"topic": "Plain"}),
    Exchange(200, None, GROUP.encode()),
    Exchange(207, {"groupName": "readers", "removeOffset": "true"}),
    Exchange(21, None, b"", (0, {}, TOPICS.encode(), None)),
    Exchange(43, None, b"", found('{"offsetTable":{"Plain@readers":{0:383,1:42}}}')),
    Exchange(45, None, b"", found('{"offsetTable":{1:4,2:1}}')),
    Exchange(201, None, b"",
        found(f'{{"dataVersion":{VERSION},"subscriptionGroupTable":{{"readers":{GROUP}}}}}')),
    Exchange(28, None, b"", found('{"table":{"bootTimestamp":"1795188987308"}}')),
    Exchange(202, {"topic": "Plain"}, b"", found(f'{{"offsetTable":{{{MESSAGE_QUEUE}:'
        '{"lastUpdateTimestamp":1795188992714,"maxOffset":6,"minOffset":0}}}')),
    Exchange(203, {"consumerGroup": "readers"}, b"", found(f'{{{CONNECTIONS},"consumeFromWhere":'
        '"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":'
        f'"CLUSTERING","subscriptionTable":{{"Plain":{TAGGED}}}}}')),
    Exchange(204, {"producerGroup": "makers"}, b"", found(f"{{{CONNECTIONS}}}")),
    Exchange(208, {"consumerGroup": "readers", "topic": "Plain"}, b"", found(STATS)),
    Exchange(222, RESET, b"", found(f'{{"offsetTable":{{{MESSAGE_QUEUE}:4}}}}')),
    Exchange(300, {"topic": "Plain"}, b"", found('{"groupList":["readers","choosers"]}')),
    Exchange(308, {"topic": "Plain", "compareGroup": "readers", "filterGroups": "choosers"}, b"",
        found('{"correctionOffsets":{0:0,1:7}}')),
    Exchange(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Plain"}, b"",
        found('{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,'
              '"tps":0.0},"statsMinute":{"avgpt":1.0,"sum":5,"tps":0.125}}')),
    Exchange(317, {"isOrder": "false"}, b"", found('{"brokerAddr":"127.0.0.1:10911",'
        f'"consumeStatsList":[{{"readers":[{STATS}]}}],"totalDiff":4}}')),
    Exchange(328, None, b"", found(f'{{"data":{{"makers":[{PRODUCER}]}}}}')),
    asked(39, {"commitLogOffset": "9388", "tranStateTableOffset": "5", "msgId": "F" * 32,
        "transactionId": "F" * 32, "offsetMsgId": SENT["msgId"]}, RECORD_BYTES),
    asked(40, {"consumerGroup": "readers"}),
    asked(220, RESET, f'{{"offsetTable":{{{MESSAGE_QUEUE}:4}}}}'.encode()),
    asked(221, {"topic": "Plain", "group": "readers"}, b"",
        found(f'{{"consumerTable":{{}},"messageQueueTable":{{{MESSAGE_QUEUE}:6}}}}')),
    asked(309, {"consumerGroup": "readers", "clientId": "c@1", "msgId": SENT["msgId"],
        "brokerName": "broker-a"}, RECORD_BYTES,
        found('{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}')),
    to_namesrv(103, registration(REGISTRATION, "false"), REGISTRATION, OK_EMPTY),
    to_namesrv(103, registration(DEFLATED, "true"), DEFLATED, None),
    to_namesrv(104, BROKER),
    to_namesrv(105, {"topic": "Plain"}, b"", found(ROUTE.format('"0"', '"1"'))),
    to_namesrv(105, {"topic": "Plain"}, b"", found(ROUTE.format(0, 1)), 317),
    to_namesrv(105, {"topic": "Nothing"}, b"", (17, None, b"", "No topic route info")),
    to_namesrv(106, None, b"", found(CLUSTER)),
    to_namesrv(100, {"namespace": "N", "key": "k", "value": "v"}),
    to_namesrv(101, {"namespace": "N", "key": "k"}, b"", found(value="v")),
    to_namesrv(206, None, b"", found('{"topicList":["Plain","%RETRY%readers"]}')),
    to_namesrv(219, {"namespace": "N"}, b"", found('{"table":{"k":"v"}}')),
    to_namesrv(322, BROKER, VERSION.encode(), found(VERSION, changed="false")),
)  # fmt: skip
