"""Attempts to hold a server up, or to make it fail, by what it has to read: A9 to A16.

Every case is sent to a broker beside a neighbour, who is answered. How long each takes is measured
in processor time: far above the limit in `make test`, for machines are busy; in `make trials` the
best of five is within 50 ms.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from struct import pack
from time import thread_time
from zlib import compress

import pytest
from structlog.testing import capture_logs

from actors.naming.registration_reader import RegistrationReader
from protocol.bodies import CheckClientRequest, ConsumerData, HeartbeatData, SubscriptionData
from protocol.bodies_tables import RegisterBrokerBody
from protocol.codes import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    ResponseCode,
)
from protocol.codes import RequestCode as Code
from protocol.compression import DECOMPRESSED_BYTES_MAX, CompressionError, decompress
from protocol.errors import FrameError, RemoteError
from protocol.frame import RemotingCommand, encode
from protocol.message import decode_records, encode_record
from protocol.properties import format as format_properties
from protocol.properties import parse
from protocol.registration import read_registration
from protocol.send_wire import SendDecoder
from protocol.sql92 import EXPRESSION_CHARS_MAX, SqlError, compile_filter
from protocol.sql92.compile import _cache
from protocol.stream import Stream
from protocol.tags import TagFilter
from tests.support.brokers import BROKER, SimulatedBroker, pull_command, send_command
from tests.support.sockets import paired_lines
from tests.support.told import floods, times
from troupemq.client.message import MessageQueue, view_of

LOOP_S = 0.05
"""Time for which one input may block the loop."""
BUSY = 12
"""Factor for a busy machine in `make test`."""


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def binary(entries: bytes, code: int = 34, remark: bytes = b"", remark_bytes: int = -1) -> bytes:
    length = len(remark) if remark_bytes < 0 else remark_bytes
    head = pack(">hbhiii", code, 0, 407, 1, 0, length) + remark
    return head + pack(">i", len(entries)) + entries


def entry(name: bytes, value: bytes) -> bytes:
    return pack(">h", len(name)) + name + pack(">i", len(value)) + value


def heartbeat(body: bytes) -> bytes:
    return frame(b'{"code":34,"opaque":7}', body)


def fields_of(count: int) -> bytes:
    return json.dumps({"code": 34, "extFields": {f"k{n}": "v" for n in range(count)}}).encode()


def doubled(path: str, levels: int) -> str:
    """Members of an object: 2^levels values behind references to `path` with a number."""
    pairs = ['"r0":["x"]']
    for level in range(levels):
        each = f'{{"$ref":"{path}{level}"}}'
        pairs.append(f'"r{level + 1}":[{each},{each}]')
    return ",".join(pairs)


def nested_keys(levels: int) -> str:
    """An object whose key is an object, whose key is one, and so on."""
    return "{" * levels + "a:1" + "}:1" * (levels - 1) + "}"


REFERENCES = f'{{"code":34,"extFields":{{{doubled("$.extFields.r", 30)}}}}}'.encode()
KEYS = f"{{code:34,extFields:{{a:{nested_keys(25)}}}}}".encode()
DEEP = b"[" * 100_000
SHORT_FIELDS = ",".join(f'"{n:x}":1' for n in range(100_000)).encode()
CLOSED = {
    "a9 deep": frame(b'{"code":34,"extFields":{"a":' + DEEP + b"]" * 100_000 + b"}}"),
    "a9 deep and open": frame(b'{"code":34,"extFields":{"a":' + DEEP),
    "a9 deep in the dialect": frame(b"{'code':34,'extFields':{'a':" + b"[" * 10_000),
    "a10 many fields": frame(fields_of(50_000)),
    "a10 100,000 fields": frame(fields_of(100_000)),
    "a10 100,000 fields in 1 MiB": frame(b'{"code":34,"extFields":{' + SHORT_FIELDS + b"}}"),
    "a10 a value of 15 MiB": frame(b'{"code":34,"extFields":{"a":"' + b"x" * (15 << 20) + b'"}}'),
    "a10 a value of 16 MiB": frame(b'{"code":34,"extFields":{"a":"' + b"x" * (16 << 20) + b'"}}'),
    "a10 many short fields": frame(b"{'code':34,'extFields':{" + b"'a':1," * 100_000 + b"}}"),
    "a10 commas": frame(b"{" + b"," * 1_000_000 + b"'code':34}"),
    "a10 comments": frame(b"{" + b"/**/" * 250_000 + b"'code':34}"),
    "a10 references": frame(b"{'code':34,'extFields':{'a':[" + b"{'$ref':'$'}," * 50_000 + b"]}}"),
    "a10 references to references": frame(REFERENCES),
    "a10 a reference in standard JSON": frame(b'{"code":34,"extFields":{"a":[{"$ref":"$"}]}}'),
    "a10 an ext field that is a reference": frame(b'{"code":34,"extFields":{"$ref":"$"}}'),
    "a10 objects as keys": frame(KEYS),
    "a10 many lists": frame(b'{"code":34,"a":[' + b"[]," * 340_000 + b"[]]}"),
    "a10 many objects": frame(b'{"code":34,"extFields":{"a":[' + b'{"":0},' * 30_000 + b"0]}}"),
    "a10 many numbers": frame(b'{"code":34,"extFields":{"a":[' + b"1," * 500_000 + b"0]}}"),
    "a10 many names": frame(b'{"code":34,' + SHORT_FIELDS + b"}"),
    "a10 a long number": frame(b'{"code":' + b"9" * 1_000_000 + b"}"),
    "a10 binary, many fields": frame(binary(entry(b"k", b"v") * 100_000), kind=1),
    "a10 binary, many empty ones": frame(binary(entry(b"", b"") * 150_000), kind=1),
    "a11 a long remark": frame(binary(b"", remark_bytes=(1 << 31) - 1), kind=1),
    "a11 long fields": frame(pack(">hbhiiii", 34, 0, 407, 1, 0, 0, (1 << 31) - 1), kind=1),
    "a11 negative field": frame(binary(pack(">hi", -1, -1)), kind=1),
    "a11 unknown serialisation": frame(b"{}", kind=9),
}
"""Inputs that close the connection."""

HASHES = (1 << 61) - 1
"""Python's hash of a whole number is what is left when this divides it."""

SUBSCRIBED = json.dumps({"groupName": "g", "subscriptionDataSet": []})
REFUSED = {
    "a9 deep body": heartbeat(DEEP),
    "a9 deep body, closed": heartbeat(b'{"clientID":' + DEEP + b"]" * 100_000 + b"}"),
    "a9 deep objects": heartbeat(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a9 1,000 levels": heartbeat(b'{"clientID":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    "many groups": heartbeat(
        b'{"clientID":"c","consumerDataSet":[' + b",".join([SUBSCRIBED.encode()] * 5000) + b"]}"
    ),
    "references to references": heartbeat(f"{{{doubled('$.r', 30)}}}".encode()),
    "objects as keys": heartbeat(f"{{clientID:{nested_keys(25)}}}".encode()),
    "numbers as names with one hash": heartbeat(
        b"{clientID:'c',x:{" + b",".join(b"%d:1" % (n * HASHES) for n in range(40_000)) + b"}}"
    ),
    "many lists": heartbeat(b'{"clientID":"c","x":[' + b"[]," * 340_000 + b"[]]}"),
    "many empty subscriptions": heartbeat(
        b'{"consumerDataSet":[{"subscriptionDataSet":[' + b"{}," * 340_000 + b"{}]}]}"
    ),
    "many numbers": heartbeat(
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[' + b"1," * 500_000 + b"1]}]}]}"
    ),
    "a long body in the dialect": heartbeat(b"{'clientID':'c','x':[" + b"1," * 400_000 + b"]}"),
}
"""Inputs that are answered with code 1."""


def cpu_s(work: Callable[[], object]) -> float:
    began_s = thread_time()
    work()
    return thread_time() - began_s


def events_of(data: bytes) -> list[object]:
    return [*Stream(sends=SendDecoder()).receive(data)]


@pytest.mark.parametrize("data", CLOSED.values(), ids=CLOSED.keys())
def test_a9_to_a11_a_hostile_header_closes_its_connection(data: bytes) -> None:
    (event,) = events_of(data)
    assert isinstance(event, FrameError)
    assert cpu_s(lambda: events_of(data)) < LOOP_S * BUSY


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_a9_a_hostile_body_is_refused(data: bytes) -> None:
    (command,) = events_of(data)
    assert isinstance(command, RemotingCommand)
    made = SimulatedBroker(1)
    with capture_logs() as logs:
        answer: list[RemotingCommand] = []
        assert cpu_s(lambda: answer.append(made.ask(command))) < LOOP_S * BUSY
    assert answer[0].code == ResponseCode.SYSTEM_ERROR
    too_much = ["client group limit reached"] if data == REFUSED["many groups"] else []
    assert [e["event"] for e in logs if e["log_level"] in ("error", "warning")] == too_much


def test_a9_to_a11_other_clients_are_not_affected() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    with capture_logs() as logs, paired_lines(made, len(CLOSED) + 1) as (neighbour, *lines):
        for line, data in zip(lines, CLOSED.values(), strict=True):
            while data and not line.is_closed():
                line.send_bytes(data[:100_000])
                data = data[100_000:]
            assert line.is_closed()
            neighbour.send(pull_command())
            assert [answer.code for answer in neighbour.receive_now()] == [19]
    assert [
        each for each in logs if each["event"] in ("actor failed", "request handler failed")
    ] == []
    reasons = [each["reason"] for each in logs if each["event"] == "connection closed"]
    assert len([each for each in reasons if each.startswith("bad frame: ")]) == len(CLOSED)


def test_a10_duplicate_keys_count_once() -> None:
    (command,) = events_of(frame(b'{"code":34,"extFields":{"a":"1","a":"2"}}'))
    assert isinstance(command, RemotingCommand) and command.fields == {"a": "2"}
    (command,) = events_of(frame(binary(entry(b"a", b"1") + entry(b"a", b"2")), kind=1))
    assert isinstance(command, RemotingCommand) and command.fields == {"a": "2"}
    long = b'{"code":34,"extFields":{"a":"' + b"x" * 500_000 + b'"}}'
    (command,) = events_of(frame(long))
    assert isinstance(command, RemotingCommand)
    assert len((command.fields or {})["a"]) == 500_000


def test_escaped_properties_always_fit_into_a_header() -> None:
    properties = "k\x01" + "\x02" * 32_000
    (group,) = events_of(encode(send_command(properties=properties)))
    assert not isinstance(group, FrameError)
    broken = encode(send_command(properties="k\x01" + "x" * 30_000)).replace(b"xxxx", b"x\xff\xffx")
    (event,) = events_of(broken)
    assert not isinstance(event, FrameError), "no UTF-8 is no reason to close"


# --- A12: what unfolds


@cache
def bomb(unfolded_bytes: int) -> bytes:
    return compress(bytes(unfolded_bytes), 1)


def test_a12_the_decompressed_size_of_a_body_is_limited() -> None:
    data = bomb(DECOMPRESSED_BYTES_MAX + 1)
    assert len(data) < 1 << 20
    with pytest.raises(CompressionError, match="longer than 67108864 bytes"):
        decompress(data, COMPRESSED | COMPRESSION_ZLIB)
    for kind, name in ((COMPRESSION_LZ4, "LZ4"), (COMPRESSION_ZSTD, "ZSTD")):
        with pytest.raises(CompressionError, match=f"compressed with {name} cannot be read"):
            decompress(data, COMPRESSED | kind)


def test_a12_the_decompressed_size_of_a_registration_is_limited() -> None:
    with pytest.raises(RemoteError):
        read_registration(bomb(DECOMPRESSED_BYTES_MAX + 1), 407, compressed=True)
    assert RegistrationReader.where == "thread", "whatever it takes, clients do not wait for it"
    body = RegisterBrokerBody().encode(compressed=True)
    assert read_registration(body, 407, compressed=True).filter_servers == []


# --- A13 to A15: expressions

EXPRESSIONS = {
    "8,193 characters": "a" * 8193,
    "5,000 parentheses": "(" * 5000,
    "10 MB of IN": "a IN (" + "'x'," * 2_500_000 + "'y')",
    "8,000 minus signs": "a > " + "-" * 8000 + "1",
    "2,000 NOT": "NOT " * 2000 + "TRUE",
}


def checked(made: SimulatedBroker, expression: str, kind: str = "SQL92") -> RemotingCommand:
    data = SubscriptionData("Topic", expression, expression_type=kind)
    body = CheckClientRequest("client", "consumers", data).encode()
    return made.ask(RemotingCommand(Code.CHECK_CLIENT_CONFIG, body=body))


def filtering(seed: int = 1) -> SimulatedBroker:
    made = SimulatedBroker(seed, config=replace(BROKER, property_filter_enable=True))
    made.make_topic()
    return made


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_a13_a_hostile_expression_is_refused(expression: str) -> None:
    def attempt() -> None:
        with pytest.raises(SqlError):
            compile_filter(expression)

    assert cpu_s(attempt) < LOOP_S * BUSY
    made = filtering()
    # one of over 1 MiB does not fit into what is read while others wait
    expected = 1 if len(expression) > 1 << 20 else ResponseCode.SUBSCRIPTION_PARSE_FAILED
    with capture_logs() as logs:
        for _ in range(5):
            assert checked(made, expression).code == expected
    kind = "a body is too long" if expected == 1 else "an expression is too long"
    assert times(logs, kind) == ([1] if len(expression) > EXPRESSION_CHARS_MAX else [])
    assert floods(logs) == []


@pytest.mark.heavy
def test_a14_ever_new_expressions_are_limited_by_a_budget() -> None:
    made = filtering()
    with capture_logs() as logs:
        codes = [checked(made, f"a = {n} AND b = '{'x' * 500}'").code for n in range(1000)]
        assert times(logs, "too many new expressions") == [1]
        made.system.advance(60_000)
    told = times(logs, "too many new expressions")
    assert (len(told), sum(told)) == (2, codes.count(ResponseCode.SYSTEM_BUSY))
    assert 100 < codes.count(0) < 300
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 1000 - codes.count(0)
    pulled = [
        made.pull(expression=f"c = {n} AND b = '{'y' * 500}'", expression_type="SQL92").code
        for n in range(300)
    ]
    assert ResponseCode.SYSTEM_BUSY in pulled
    body = HeartbeatData(
        "client",
        consumer_data_set=[
            ConsumerData(
                "consumers",
                "CONSUME_PASSIVELY",
                "CLUSTERING",
                None,
                [
                    SubscriptionData(f"T{n}", f"d = {n} {' ' * 8000}", expression_type="SQL92")
                    for n in range(20)
                ],
            )
        ],
    ).encode()
    beat = made.ask(RemotingCommand(Code.HEART_BEAT, body=body))
    assert beat.code == ResponseCode.SYSTEM_BUSY
    other = made.new_client(2)
    asked = CheckClientRequest(
        "other", "consumers", SubscriptionData("Topic", "a = 1", expression_type="SQL92")
    )
    command = RemotingCommand(Code.CHECK_CLIENT_CONFIG, body=asked.encode())
    assert other.request(command).code == 0, "others are not held up"
    made.system.advance(60_000)
    assert checked(made, "a = 7").code == 0, "it fills again"


def test_a15_the_length_of_a_tag_expression_is_limited() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    tags = "||".join(f"tag-{n}" for n in range(100_000))
    assert len(tags) > 1 << 20
    with pytest.raises(RemoteError) as error:
        TagFilter.parse(tags)
    assert error.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    with capture_logs() as logs:
        for _ in range(10):
            assert made.pull(expression=tags).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    shorter = tags[:200_000]
    consumer = ConsumerData(
        "consumers", "CONSUME_PASSIVELY", "CLUSTERING", None, [SubscriptionData("Topic", shorter)]
    )
    body = HeartbeatData("client", consumer_data_set=[consumer]).encode()
    with capture_logs() as more:
        answer = made.ask(RemotingCommand(Code.HEART_BEAT, body=body))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        made.system.advance(60_000)
    assert times(logs, "a tag expression is too long") == [1]
    assert times(more, "a tag expression is too long") == [10], "of pulls and heartbeats together"
    assert len(TagFilter.parse(tags[:50_000]).tags) > 4000, "thousands of tags are fine"


# --- A16: properties

PROPERTIES = {
    "8,000 entries": "\x02".join(f"{n:x}\x01" for n in range(5400))[:32_000],
    "5,000 entries": "\x02".join(f"{n:x}\x011" for n in range(4800))[:32_000],
    "names of separators": "\x01\x02" * 10_000,
    "no separators": "x" * 32_000,
    "empty names": "\x01v\x02" * 8_000,
    "16,000 entries": "x\x01\x02" * 10_000 + "\x01\x02" * 1_360,
    "6,500 of two letters": "\x02".join(f"{n:>02x}\x01v" for n in range(256, 6_000))[:32_700],
}


@pytest.mark.parametrize("properties", PROPERTIES.values(), ids=PROPERTIES.keys())
def test_a16_unusual_properties_are_stored_as_read(properties: str) -> None:
    """Text that is not a property is omitted, as by 4.9.7; tools read what is stored."""
    made = SimulatedBroker(1)
    answer = made.send(b"body", properties=f"{properties}\x02KEYS\x01k")
    assert answer.code == 0
    (record,) = made.messages()
    found = parse(record.properties)
    sent = parse(f"{properties}\x02KEYS\x01k".encode())
    assert found == {**sent, "CLUSTER": "DefaultCluster"}
    assert parse(format_properties(found)) == found
    (read,) = decode_records(encode_record(record))
    assert view_of(read, MessageQueue("Topic", "broker-a", 0)).properties == found
    assert read.properties == record.properties
    too_long = made.send(b"body", properties="k\x01" + "y" * 32_768)
    assert too_long.code == ResponseCode.MESSAGE_ILLEGAL


def test_a16_properties_over_32_767_bytes_are_refused() -> None:
    """With the CLUSTER that the broker adds."""
    made = SimulatedBroker(1)
    added = len("\x02CLUSTER\x01DefaultCluster")
    texts = [f"k\x01{'y' * (32_767 - added - 2)}", "".join(many(32_767 - added))]
    for text in texts:
        assert len(text) == 32_767 - added
        assert made.send(b"body", properties=text).code == 0
        assert made.send(b"body", properties=text + "y").code == ResponseCode.MESSAGE_ILLEGAL
    for record, text in zip(made.messages(), texts, strict=True):
        assert len(record.properties) == 32_767
        sent = {**parse(text.encode()), "CLUSTER": "DefaultCluster"}
        assert view_of(record, MessageQueue("Topic", "broker-a", 0)).properties == sent


def many(total: int) -> Iterator[str]:
    """Return as many properties as fit, to the last byte."""
    names, rest = total // 7 - 1, total % 7
    for number in range(names):
        yield f"{number:04x}\x01v\x02"
    yield f"last\x01v{'v' * (rest + 1)}"


@pytest.mark.trial(short=0, long=1)
def test_a9_to_a13_the_loop_is_blocked_for_less_than_50_ms(
    seed: int, tell: Callable[[str], None]
) -> None:
    """The best of five, of processor time: nothing of others on this machine is in it."""
    longest = {}
    for name, data in (CLOSED | REFUSED).items():
        longest[name] = min(cpu_s(partial(_read, data)) for _ in range(5))
    for name, expression in EXPRESSIONS.items():
        longest[name] = min(cpu_s(partial(_compile, expression)) for _ in range(5))
    slowest = max(longest, key=lambda name: longest[name])
    tell(
        f"A9 to A13: {len(longest)} cases, the slowest {longest[slowest] * 1000:.0f} ms: {slowest}"
    )
    assert {name: spent for name, spent in longest.items() if spent > LOOP_S} == {}


def _read(data: bytes) -> None:
    for event in events_of(data):
        if isinstance(event, RemotingCommand):
            with pytest.raises(RemoteError):
                HeartbeatData.decode(event.body)
                raise RemoteError(1, "as the broker says: too many groups")


def _compile(expression: str) -> None:
    _cache.clear()
    with pytest.raises(SqlError):
        compile_filter(expression)
