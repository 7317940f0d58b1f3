"""Frames in both serialisations: one table of cases, read and written; and all that is refused."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from struct import pack

import pytest

from protocol.codes import LanguageCode, SerializeType
from protocol.errors import FrameError
from protocol.frame import (
    FRAME_BYTES_MAX,
    RESPONSE_FLAG,
    RemotingCommand,
    decode_frame,
    encode,
    encode_head,
)
from protocol.stream import CommandStream
from tests.protocol.vectors import (
    BINARY_REQUEST,
    BINARY_RESPONSE,
    JSON_GO_REQUEST,
    JSON_REQUEST,
    JSON_RESPONSE,
)

SEND_FIELDS = {"a": "PG_raw", "b": "GT_Basic", "c": "TBW102", "d": "4", "e": "0", "f": "0"}
SEND_FIELDS |= {"g": "1795189028865", "h": "0", "i": "TAGS\x01TagRaw\x02KEYS\x01rawk\x02"}
SEND_FIELDS |= {"j": "0", "k": "false", "m": "false"}
REPLY_FIELDS = {"a": "PG_reply", "b": "GT_Req", "c": "TBW102", "d": "4", "e": "2", "f": "0"}
REPLY_FIELDS |= {"g": "1795189930071", "h": "0"}
REPLY_FIELDS["i"] = (
    "UNIQ_KEY\x01FD0000000000000000000000000000023B3830946E09654090570009\x02WAIT\x01true"
)
REPLY_FIELDS |= {"j": "0", "k": "false", "m": "false", "n": "broker-a"}
REGION = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
MSG_ID = {"msgId": "7F000001000051AF0000000000000000"}
JAVA = int(LanguageCode.JAVA)
BINARY = int(SerializeType.ROCKETMQ)

CASES = {
    "JSON request with a body": (
        RemotingCommand(310, SEND_FIELDS, b"raw v2 no trailing sep", 1443, language=JAVA),
        JSON_REQUEST,
    ),
    "JSON response": (
        RemotingCommand(
            0, {"queueId": "0", **REGION, **MSG_ID, "queueOffset": "0"}, None, 8, 1, language=JAVA
        ),
        JSON_RESPONSE,
    ),
    "JSON request of a Go client": (
        RemotingCommand(
            105, {"topic": "a<b", "x": ""}, None, 13, 0, "", LanguageCode.GO, version=317
        ),
        JSON_GO_REQUEST,
    ),
    "binary request with a body": (
        RemotingCommand(310, REPLY_FIELDS, b"warm", 619, language=JAVA, serialize_type=BINARY),
        BINARY_REQUEST,
    ),
    "binary response": (
        RemotingCommand(
            0,
            {**MSG_ID, "queueId": "3", "queueOffset": "0", **REGION},
            None,
            8,
            1,
            language=JAVA,
            serialize_type=BINARY,
        ),
        BINARY_RESPONSE,
    ),
    "JSON error with a remark, fields present and empty": (
        RemotingCommand(38, {}, None, -7, 1, 'no "group", ü\n', JAVA),
        b"\x00\x00\x00\x92\x00\x00\x00\x8e"
        b'{"code":38,"extFields":{},"flag":1,"language":"JAVA","opaque":-7,'
        b'"remark":"no \\"group\\", \xc3\xbc\\n","serializeTypeCurrentRPC":"JSON","version":407}',
    ),
    "binary one-way with a remark, without fields": (
        RemotingCommand(40, None, None, 5, 2, "ü", LanguageCode.CPP, 300, BINARY),
        bytes.fromhex("0000001b 01000017 0028 01 012c 00000005 00000002 00000002 c3bc 00000000"),
    ),
}


def whole(wire: bytes) -> list[bytes]:
    return [wire]


def single_bytes(wire: bytes) -> list[bytes]:
    return [wire[index : index + 1] for index in range(len(wire))]


def pieces_of_seven(wire: bytes) -> list[bytes]:
    return [wire[index : index + 7] for index in range(0, len(wire), 7)]


def with_trailing(wire: bytes) -> list[bytes]:
    return [wire + wire[:7]]


def received(slices: Iterable[bytes]) -> list[RemotingCommand]:
    buffer = CommandStream()
    return [command for data in slices for command in buffer.receive(data)]


@pytest.mark.parametrize("slices", [whole, single_bytes, with_trailing])
@pytest.mark.parametrize(("command", "wire"), CASES.values(), ids=CASES.keys())
def test_a_command_survives_the_wire_in_any_slices(
    command: RemotingCommand, wire: bytes, slices: Callable[[bytes], list[bytes]]
) -> None:
    assert encode(command) == wire
    assert received(slices(wire)) == [command]


def test_frames_that_arrive_together_are_decoded_in_order() -> None:
    wires = [wire for _, wire in CASES.values()]
    expected = [command for command, _ in CASES.values()]
    assert received([b"".join(wires)]) == expected
    joined = b"".join(wires)
    assert received([joined[:100], joined[100:101], joined[101:]]) == expected


def test_a_frame_can_be_sent_in_two_parts() -> None:
    command, wire = CASES["JSON request with a body"]
    body = command.body or b""
    assert encode_head(command, len(body)) + bytes(body) == wire


def test_a_body_of_length_zero_is_absent() -> None:
    command = received([encode(RemotingCommand(11, body=b""))])[0]
    assert command.body is None


def framed(kind: int, header: bytes, body: bytes = b"", header_bytes: int | None = None) -> bytes:
    claimed = len(header) if header_bytes is None else header_bytes
    mark = kind << 24 | claimed
    return pack(">iI", 4 + len(header) + len(body), mark) + header + body


BINARY_HEAD = bytes.fromhex("000a0001970000000100000000")  # code 10, JAVA, 407, opaque 1, flag 0
REFUSED = {
    "a frame longer than 16 MiB": pack(">iI", FRAME_BYTES_MAX - 3, 0),
    "a negative frame length": pack(">iI", -1, 0),
    "the smallest frame length": pack(">iI", -(1 << 31), 0),
    "a frame length without room for the mark": pack(">iI", 3, 0),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": bytes.fromhex("160301020001000001fc0303"),
    "a header longer than its frame": framed(0, b"{}", b"", 3),
    "an unknown serialise type": framed(2, b"{}"),
    "no JSON": framed(0, b"hello"),
    "half a JSON object": framed(0, b'{"code":10'),
    "something behind the JSON object": framed(0, b'{"code":10}}'),
    "an empty JSON header": framed(0, b""),
    "a JSON header that is null": framed(0, b"null"),
    "a JSON header that is a list": framed(0, b"[]"),
    "a JSON code that is no number": framed(0, b'{"code":"x"}'),
    "a JSON code beyond an int": framed(0, b'{"code":3000000000}'),
    "a JSON version with a blank": framed(0, b'{"version":"407 "}'),
    "a JSON language by a number that has none": framed(0, b'{"language":99}'),
    "a JSON code that is infinite": framed(0, b'{"code":1e999}'),
    "an ext field nested too deep": framed(
        0, b'{"extFields":{"a":' + b"[" * 900 + b"]" * 900 + b"}}"
    ),
    "a key with a control character behind it": framed(0, b'{"code"\x00:10}'),
    "ext fields that are a list": framed(0, b'{"extFields":[]}'),
    "ext fields with a bare key": framed(0, b'{"extFields":{1:2}}'),
    "JSON nested without end": framed(0, b'{"extFields":' + b"[" * 100_000),
    "a binary header that ends too early": framed(1, BINARY_HEAD[:8]),
    "a binary remark longer than the header": framed(1, BINARY_HEAD + pack(">i", 99) + b"abc"),
    "a negative binary remark": framed(1, BINARY_HEAD + pack(">i", -1) + pack(">i", 0)),
    "binary fields longer than the header": framed(1, BINARY_HEAD + pack(">ii", 0, 9999)),
    "a binary field longer than the fields": framed(
        1, BINARY_HEAD + pack(">ii", 0, 8) + b"\x00\x01a" + pack(">i", 400) + b"b"
    ),
    "binary fields that are cut off": framed(
        1, BINARY_HEAD + pack(">ii", 0, 20) + b"\x00\x01a" + pack(">i", 1) + b"b"
    ),
    "a negative binary name": framed(1, BINARY_HEAD + pack(">iih", 0, 2, -5)),
    "binary fields that run into the body": framed(
        1, BINARY_HEAD + pack(">ii", 0, 8) + b"\x00\x01a" + pack(">i", 1), b"bb"
    ),
}


@pytest.mark.parametrize("wire", REFUSED.values(), ids=REFUSED.keys())
def test_an_invalid_frame_closes_the_connection(wire: bytes) -> None:
    for slices in (whole(wire), pieces_of_seven(wire)):
        with pytest.raises(FrameError):
            received(slices)


def test_the_commands_before_a_bad_frame_are_still_delivered() -> None:
    received_first = CommandStream().receive(JSON_RESPONSE + pack(">iI", -1, 0))
    assert next(received_first).opaque == 8
    with pytest.raises(FrameError):
        next(received_first)


def test_the_longest_allowed_frame_is_waited_for() -> None:
    buffer = CommandStream()
    header = b'{"code":10}'
    body = bytes(FRAME_BYTES_MAX - 8 - len(header))
    wire = framed(0, header, body)
    assert len(wire) == FRAME_BYTES_MAX
    assert list(buffer.receive(wire[:-1])) == []
    assert [len(command.body or b"") for command in buffer.receive(wire[-1:])] == [len(body)]


LENIENT = {
    b'{"code":"310"}': RemotingCommand(310, language=JAVA, version=0),
    b'{"code":1.5,"flag":true}': RemotingCommand(1, flag=1, language=JAVA, version=0),
    b'{"code":null,"flag":""}': RemotingCommand(0, language=JAVA, version=0),
    b"{code:11,}": RemotingCommand(11, language=JAVA, version=0),
    b'{"Code":7,"ext_fields":{"a":"b"},"FLAG":1,"ver-sion":3}': RemotingCommand(
        7, {"a": "b"}, flag=1, language=JAVA, version=3
    ),
    b'{"language":"FOO"}': RemotingCommand(0, language=LanguageCode.OTHER, version=0),
    b'{"language":9}': RemotingCommand(0, language=LanguageCode.GO, version=0),
    b'{"remark":5,"x":{"y":[1]}}': RemotingCommand(0, remark="5", language=JAVA, version=0),
    b'{"extFields":{"a":1,"b":true,"c":null,"d":{"x":1},"e":[1]}}': RemotingCommand(
        0, {"a": "1", "b": "true", "d": '{"x":1}', "e": "[1]"}, language=JAVA, version=0
    ),
    b'{"remark":"\xff","extFields":null}': RemotingCommand(
        0, remark="\ufffd", language=JAVA, version=0
    ),
}


@pytest.mark.parametrize(("header", "command"), LENIENT.items())
def test_an_unusual_json_header_is_read_as_by_the_original(
    header: bytes, command: RemotingCommand
) -> None:
    assert decode_frame(framed(0, header)[4:]) == command


def test_a_binary_value_of_length_zero_is_absent() -> None:
    entries = b"\x00\x01a" + pack(">i", 0) + b"\x00\x01b" + pack(">i", 1) + b"c"
    wire = framed(1, BINARY_HEAD + pack(">ii", 0, len(entries)) + entries)
    assert received([wire])[0].fields == {"b": "c"}


def test_the_body_starts_at_the_end_of_the_binary_header() -> None:
    wire = framed(1, BINARY_HEAD + pack(">ii", 0, 0) + b"spare", b"body!")
    assert received([wire])[0].body == b"spare"


def test_an_answer_has_the_requests_opaque_and_serialization() -> None:
    request = RemotingCommand(11, opaque=77, flag=2, serialize_type=BINARY)
    answer = request.answer(17, {"a": "b"}, remark="no topic", body=b"x")
    assert (answer.opaque, answer.serialize_type) == (77, BINARY)
    assert answer.is_response and not answer.is_oneway
    assert request.is_oneway and not request.is_response
    assert (answer.code, answer.remark, answer.body) == (17, "no topic", b"x")


@pytest.mark.parametrize("opaque", [0, 1, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("fields", [None, {}])
@pytest.mark.parametrize("code", [0, 1, 37])
def test_the_short_encoding_equals_the_general_one(
    code: int, fields: dict[str, str] | None, opaque: int
) -> None:
    bare = RemotingCommand(
        code, fields, opaque=opaque, flag=RESPONSE_FLAG, serialize_type=SerializeType.ROCKETMQ
    )
    for _ in range(2):
        assert encode(bare) == encode_head(bare, 0)
    assert encode(replace(bare, remark="x")) == encode_head(replace(bare, remark="x"), 0)
