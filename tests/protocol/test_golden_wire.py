"""Every recorded frame of the original and its clients decodes, and encodes to the same bytes."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protocol.bodies import (
    CheckClientRequest,
    ClusterInfo,
    ConsumerList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    TopicRouteData,
)
from protocol.bodies_admin import (
    BrokerStatsData,
    ConsumeQueueView,
    ConsumerConnection,
    ConsumeStatsBody,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    ProducerConnection,
    ProducerTable,
    TopicList,
    TopicStatsTable,
)
from protocol.bodies_client import (
    ConsumeMessageDirectlyResult,
    ConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetList,
)
from protocol.bodies_tables import (
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    KVTable,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from protocol.codes import VERSION_STANDARD_JSON_ROUTE, RequestCode
from protocol.compression import inflate
from protocol.errors import RemoteError
from protocol.fastjson import dumps, loads
from protocol.frame import RemotingCommand, encode
from protocol.headers.send import SendMessageHeader
from protocol.json_body import Body
from protocol.stream import CommandStream
from tests.support.by_hand import BY_HAND
from tests.support.golden import frames
from tests.support.headers_by_code import REQUEST_HEADERS, RESPONSE_HEADERS

FILES = ("java-4.9.7", "acl", "binary-header", "java-5.3.3", "negative", "go-v2", BY_HAND)
LONG_NAMES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

REQUEST_BODIES: dict[int, type[Body]] = {
    34: HeartbeatData,
    41: LockBatchRequest,
    42: LockBatchRequest,
    46: CheckClientRequest,
    103: RegisterBrokerBody,
    200: SubscriptionGroupConfig,
    220: ResetOffsetBody,
    322: DataVersion,
}
RESPONSE_BODIES: dict[int, type[Body]] = {
    21: TopicConfigTable,
    28: KVTable,
    38: ConsumerList,
    41: LockBatchResponse,
    43: ConsumerOffsetTable,
    45: DelayOffsetTable,
    103: KVTable,
    105: TopicRouteData,
    106: ClusterInfo,
    201: SubscriptionGroupTable,
    202: TopicStatsTable,
    203: ConsumerConnection,
    204: ProducerConnection,
    206: TopicList,
    208: ConsumeStatsBody,
    219: KVTable,
    221: ConsumerStatusBody,
    222: ResetOffsetBody,
    223: ConsumerStatusBody,
    224: TopicList,
    300: GroupList,
    303: ConsumeTimeSpans,
    304: TopicList,
    305: TopicList,
    308: CorrectionOffsets,
    309: ConsumeMessageDirectlyResult,
    311: TopicList,
    312: TopicList,
    313: TopicList,
    315: BrokerStatsData,
    317: ConsumeStatsList,
    321: ConsumeQueueView,
    322: DataVersion,
    328: ProducerTable,
}
NOT_4_9_7 = {"heartbeatFingerprint", "withoutSub", "onlyThisBroker"}
"""Fields of 5.x clients beyond those of 4.9.7: skipped when read, so not written again."""


def decoded(record: dict[str, Any]) -> RemotingCommand:
    (command,) = CommandStream().receive(record["frame"])
    return command


def is_response(record: dict[str, Any]) -> bool:
    return "response" in record["direction"]


def request_code(record: dict[str, Any]) -> int:
    return int(record["request_code"] if is_response(record) else record["code"])


def whole_frames(name: str) -> Iterator[tuple[dict[str, Any], RemotingCommand]]:
    for record in frames(name):
        if not record.get("truncated"):
            yield record, decoded(record)


@pytest.mark.parametrize("name", FILES)
def test_every_frame_encodes_back_to_its_bytes(name: str, tell: Callable[[str], None]) -> None:
    """Nothing is excluded: map order is kept from decoding, and Go's own order is known."""
    total = equal = 0
    for record, command in whole_frames(name):
        total += 1
        equal += encode(command) == record["frame"]
    tell(f"{equal} of {total} frames byte-equal")
    assert equal == total
    assert total == sum(1 for _ in frames(name)), "none of them is cut"


@pytest.mark.parametrize("name", FILES)
def test_every_frame_is_decoded_as_by_the_recorder(name: str) -> None:
    for record, command in whole_frames(name):
        header = record["header"]
        assert command.code == record["code"]
        assert (command.opaque, command.flag) == (record["opaque"], record["flag"])
        assert command.version == record["version"]
        assert (command.body or b"") == record["body"]
        assert command.is_response == is_response(record)
        assert command.is_oneway == record["direction"].endswith("oneway")
        if record["serialize"] == "JSON":
            assert command.fields == header.get("extFields")
            assert command.remark == header.get("remark")


@pytest.mark.parametrize("name", FILES)
def test_every_header_encodes_back_to_its_fields(name: str) -> None:
    """Excluded are requests made by hand: those without mandatory fields or with broken numbers
    (they must raise), and those that leave out what the original's clients always write.
    """
    count: Counter[str] = Counter()
    for record, command in whole_frames(name):
        code = request_code(record)
        response = is_response(record)
        known = (RESPONSE_HEADERS if response else REQUEST_HEADERS).get(code)
        if known is None or (response and command.code != 0):
            continue
        fields = command.fields or {}
        try:
            if known is SendMessageHeader:
                header = SendMessageHeader.of_command(command)
                again = header.encode() if code in LONG_NAMES else header.encode_v2()
            else:
                again = known.decode(fields).encode()
        except RemoteError:
            count["refused"] += 1
            continue
        count["decoded"] += 1
        same = {key: value for key, value in fields.items() if key in again}
        left_out = {key: value for key, value in again.items() if key not in fields}
        assert same | left_out == again
        assert set(left_out.values()) <= {"false"}
        count["left out"] += bool(left_out)
    assert count["decoded"] > 40
    if name not in ("java-4.9.7", "negative"):
        assert not count["refused"] and not count["left out"]


def typed_body(record: dict[str, Any], command: RemotingCommand) -> type[Body] | None:
    if not record["body"]:
        return None
    code = request_code(record)
    if is_response(record):
        return RESPONSE_BODIES.get(code) if command.code == 0 else None
    if code == 220 and record["body"].startswith(b'{"offsetTable":['):
        return ResetOffsetList
    return REQUEST_BODIES.get(code)


@pytest.mark.parametrize("name", FILES)
def test_every_typed_body_encodes_back_to_its_bytes(name: str, tell: Callable[[str], None]) -> None:
    """Excluded: bodies of Go clients (struct order), bodies made by hand, and those with fields
    that 4.9.7 does not have; all of these still decode, and re-encoded decode to the same value.
    """
    count: Counter[str] = Counter()
    version = 0
    for record, command in whole_frames(name):
        if not is_response(record):
            version = command.version
        known = typed_body(record, command)
        if known is None:
            continue
        body = record["body"]
        if body == b"not json":
            with pytest.raises(RemoteError):
                known.decode(body)
            continue
        if record["header"].get("extFields", {}).get("compressed") == "true":
            registration = RegisterBrokerBody.decode(body, compressed=True)
            again = registration.encode(compressed=True)
            assert inflate(again) == inflate(body)  # the deflated bytes are the library's affair
            count["compressed"] += 1
            continue
        value = known.decode(body)
        again = value.encode()
        if isinstance(value, TopicRouteData):
            again = value.encode(standard_json=version >= VERSION_STANDARD_JSON_ROUTE)
        ours = record["language"] == "GO" or record["client"] == "raw-calls"
        newer = any(extra.encode() in body for extra in NOT_4_9_7)
        if (ours and not is_response(record)) or newer:
            assert known.decode(again) == value
            count["excluded"] += 1
            continue
        assert again == body, (record["id"], known)
        count["equal"] += 1
    tell(f"typed bodies {dict(count)}")
    assert count["equal"] > 10


@pytest.mark.parametrize("name", FILES)
def test_every_json_body_of_java_equals_the_writers_output(name: str) -> None:
    count = 0
    for record in frames(name):
        body = record["body"]
        if body[:2] not in (b'{"', b"{}") or body[-1:] != b"}" or record["language"] == "GO":
            continue
        if record["client"] == "raw-calls" and not is_response(record):
            continue
        standard = is_response(record) and request_code(record) == 105 and b'"0":' in body
        assert dumps(loads(body), browser_compatible=standard) == body
        count += 1
    assert count > 10
