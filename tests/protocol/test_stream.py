"""A stream says the same whatever pieces it comes in, and of each frame what the general decoder
says of it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field, fields, replace
from operator import attrgetter
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.errors import FrameError, FrameTooLong, RemoteError
from protocol.frame import (
    FRAME_BYTES_MAX,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    RemotingCommand,
    decode_frame,
    encode,
)
from protocol.headers.client import PullMessageHeader
from protocol.headers.send import SendMessageHeader
from protocol.send_values import Send, SendShape, SendTail, send_of
from protocol.send_wire import SEND_CODES, SendDecoder
from protocol.stream import (
    ENDS_OF_EVENT,
    HEAVY_EVENT,
    LIGHT_HEADER_BYTES_MAX,
    CommandStream,
    Event,
    SendGroup,
    Stream,
    UnreadableSend,
)
from tests.protocol.vectors import (
    BATCH_BODY,
    BINARY_REQUEST,
    BINARY_RESPONSE,
    JSON_GO_REQUEST,
    JSON_REQUEST,
    JSON_RESPONSE,
)
from tests.support.by_hand import BY_HAND
from tests.support.golden import frames

settings.register_profile("stream", derandomize=True, max_examples=40, deadline=None)
profile = settings.get_profile("stream")

GOLDEN_FILES = ("java-4.9.7", "acl", "binary-header", "java-5.3.3", "negative", "go-v2", BY_HAND)
BINARY, JSON = SerializeType.ROCKETMQ, SerializeType.JSON
SEND = SendMessageHeader(
    "group", "Topic", "TBW102", 4, 3, 0, 1_700_000_000_000, 0, "KEYS\x01k\x02WAIT\x01true", 0
)
PULL = PullMessageHeader(
    consumer_group="group",
    topic="Topic",
    queue_id=3,
    queue_offset=1234567,
    max_msg_nums=32,
    sys_flag=3,
    commit_offset=1234535,
    suspend_timeout_ms=15000,
    subscription="*",
    sub_version=1,
    expression_type="TAG",
    broker_name="broker-a",
)


# --- what a stream may hold


def send(kind: int, *, left_out: str = "", **options: Any) -> bytes:
    texts = {name: text for name, text in SEND.encode_v2().items() if name != left_out}
    options = {"code": RequestCode.SEND_MESSAGE_V2, "body": b"body", **options}
    return encode(RemotingCommand(fields=texts, serialize_type=kind, **options))


def long_named_send(kind: int) -> bytes:
    texts = SEND.encode()
    command = RemotingCommand(RequestCode.SEND_MESSAGE, texts, b"x", 12, serialize_type=kind)
    return encode(command)


def pull(kind: int, **options: Any) -> bytes:
    options = {"code": RequestCode.PULL_MESSAGE, "language": LanguageCode.JAVA, **options}
    return encode(RemotingCommand(fields=PULL.encode(), serialize_type=kind, **options))


def general(kind: int, **options: Any) -> bytes:
    options = {"code": 30, "fields": {"topic": "Topic", "queueId": "1"}, **options}
    return encode(RemotingCommand(serialize_type=kind, **options))


def of_kind(kind: int) -> list[bytes]:
    """One frame of every sort."""
    return [
        send(kind, opaque=1),
        pull(kind, opaque=2),
        send(kind, opaque=3, code=RequestCode.SEND_BATCH_MESSAGE, body=BATCH_BODY),
        general(kind, opaque=4),
        send(kind, opaque=5, flag=ONEWAY_FLAG),
        send(kind, opaque=6, left_out="b"),
        general(kind, opaque=7, flag=RESPONSE_FLAG, code=0, remark="done"),
        send(kind, opaque=8, flag=RESPONSE_FLAG),
        pull(kind, opaque=9, code=RequestCode.LITE_PULL_MESSAGE, flag=ONEWAY_FLAG),
        pull(kind, opaque=10, body=b"a pull has none"),
        general(kind, opaque=11, body=b"body", fields=None),
        long_named_send(kind),
    ]


MIXED = [
    frame for pair in zip(of_kind(BINARY), reversed(of_kind(JSON)), strict=True) for frame in pair
] + [BINARY_REQUEST, JSON_GO_REQUEST, JSON_REQUEST, BINARY_RESPONSE, JSON_RESPONSE]
"""The frames of clients of both kinds, in one stream."""

BROKEN = {
    "longer than is taken": (pack(">iI", FRAME_BYTES_MAX - 3, 10), 16777213, 10),
    "of a negative length": (pack(">iI", -5, 1), -5, 1),
    "of the most negative length": (pack(">iI", -(1 << 31), 10), -(1 << 31), 10),
    "too short for its mark": (pack(">iI", 3, 0), 3, 0),
    "with a header longer than itself": (pack(">iI", 20, 17), 20, 17),
    "of another protocol": (b"GET / HTTP/1.1\r\n\r\n", 0x47455420, 0x204854),
}
"""Heads that lie: each with its length, and that of its header."""


# --- what it says


@dataclass
class Said:
    """All that a stream said, however it was grouped."""

    sends: list[tuple[Any, ...]] = field(default_factory=list)
    send_bytes: int = 0
    others: list[object] = field(default_factory=list)
    error: tuple[type, str] | None = None


of_shape, of_tail, of_send = (
    attrgetter(*(each.name for each in fields(kind))) for kind in (SendShape, SendTail, Send)
)


def plain(sent: Send) -> tuple[Any, ...]:
    signature = sent.signature and replace(sent.signature, header=b"")
    shape, tail = of_shape(replace(sent.shape, values=b"")), of_tail(sent.tail)
    return shape, tail, *of_send(sent)[2:-1], signature and astuple(signature)


def said(answers: Iterable[list[Event]]) -> Said:
    """Return the events of all calls up to the first error."""
    found = Said()
    for events in answers:
        for number, event in enumerate(events):
            if isinstance(event, SendGroup):
                assert all(isinstance(each, FrameError) for each in events[number + 1 :])
                found.sends += map(plain, event.sends)
                found.send_bytes += event.frame_bytes
            elif isinstance(event, UnreadableSend):
                found.others.append((event.command, event.error.code, event.error.remark))
            elif isinstance(event, FrameError):
                found.error = (type(event), event.remark)
                assert event is events[-1]
                return found
            else:
                found.others.append(event)
    return found


def server_stream() -> Stream:
    return Stream(FRAME_BYTES_MAX, SendDecoder())


def said_of(pieces: Iterable[bytes]) -> Said:
    stream = server_stream()
    return said(stream.receive(piece) for piece in pieces)


def by_the_general_decoder(wires: Iterable[bytes]) -> Said:
    """Return what single frames say."""
    found = Said()
    for wire in wires:
        command = decode_frame(wire[4:])
        if command.is_response or command.code not in SEND_CODES:
            found.others.append(command)
            continue
        try:
            found.sends.append(plain(send_of(command)))
            found.send_bytes += len(wire)
        except RemoteError as error:
            found.others.append((command, error.code, error.remark))
    return found


def pieces_at(wire: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    at = 0
    for cut in [*sorted(cuts), len(wire)]:
        if cut > at:
            yield wire[at:cut]
            at = cut


# --- pieces


def test_a_mixed_stream_is_decoded_as_by_the_general_decoder() -> None:
    found = said_of([b"".join(MIXED)])
    assert found == by_the_general_decoder(MIXED)
    assert (len(found.sends), len(found.others), found.error) == (10, 19, None)


def test_single_bytes_give_the_same_events() -> None:
    wire = b"".join(MIXED)
    assert said_of(wire[at : at + 1] for at in range(len(wire))) == said_of([wire])


@pytest.mark.heavy
def test_a_split_anywhere_changes_no_event() -> None:
    wire = b"".join([send(JSON), *MIXED[:8], send(BINARY, left_out="b")])
    expected = said_of([wire])
    for cut in range(len(wire)):
        assert said_of(pieces_at(wire, [cut])) == expected, cut


@pytest.mark.heavy
@settings(profile)
@given(st.permutations(MIXED), st.data())
def test_splits_anywhere_change_no_event(order: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(order)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=30))
    found = said_of(pieces_at(wire, cuts))
    assert found == said_of([wire])
    assert found == by_the_general_decoder(order)


@pytest.mark.heavy
@settings(profile)
@given(st.permutations(MIXED), st.data())
def test_splits_change_no_event_of_a_damaged_stream(
    order: list[bytes], data: st.DataObject
) -> None:
    damaged = bytearray(b"".join(order[:8]))
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(damaged) - 1), st.integers(0, 255)), max_size=3)
    ):
        damaged[at] = byte
    wire = bytes(damaged)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=30))
    assert said_of(pieces_at(wire, cuts)) == said_of([wire])


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_every_recorded_frame_is_read_in_one_stream(name: str, tell: Callable[[str], None]) -> None:
    wires = [record["frame"] for record in frames(name) if not record.get("truncated")]
    wire = b"".join(wires)
    found = said_of([wire])
    assert found == by_the_general_decoder(wires)
    random = Random(name)
    cuts = (random.randrange(len(wire)) for _ in range(len(wires)))
    assert said_of(pieces_at(wire, cuts)) == found
    tell(f"{len(found.sends)} sends and {len(found.others)} others in {len(wire)} bytes")
    assert found.sends
    assert found.others


def test_a_frame_of_16_mib_is_assembled_from_pieces_of_any_size() -> None:
    wire = send(JSON, body=bytes(FRAME_BYTES_MAX - len(send(JSON)) + len(b"body")))
    assert len(wire) == FRAME_BYTES_MAX
    found = said_of(wire[at : at + 100_001] for at in range(0, len(wire), 100_001))
    assert found == by_the_general_decoder([wire])


# --- groups


def test_the_sends_of_one_read_are_one_event_after_the_others() -> None:
    sends = [send(BINARY, opaque=number) for number in range(3)]
    wire = sends[0] + pull(BINARY) + sends[1] + general(JSON) + sends[2] + send(JSON)[:-1]
    first, second, group = server_stream().receive(wire)
    assert [first, second] == [decode_frame(wire[4:]) for wire in (pull(BINARY), general(JSON))]
    assert isinstance(group, SendGroup)
    assert [each.opaque for each in group.sends] == [0, 1, 2]
    assert group.frame_bytes == sum(map(len, sends))


def test_a_read_that_completes_no_frame_gives_no_event() -> None:
    stream, wire = server_stream(), send(BINARY)
    assert [stream.receive(piece) for piece in (wire[:3], wire[3:9], wire[9:-1])] == [[]] * 3
    (group,) = stream.receive(wire[-1:])
    assert isinstance(group, SendGroup)


def test_codes_without_fast_decoding_stay_commands() -> None:
    """A name server takes no sends."""
    wires = [send(BINARY), send(JSON), pull(BINARY), pull(JSON), send(JSON, left_out="b")]
    commands = [decode_frame(wire[4:]) for wire in wires]
    assert Stream().receive(b"".join(wires)) == commands
    *others, group = Stream(sends=SendDecoder()).receive(b"".join(wires[:-1]))
    assert others == commands[2:4]
    assert isinstance(group, SendGroup)


def test_request_that_may_take_long_ends_a_call_that_returns_few_events() -> None:
    """16 lists of a queue's units, asked for in one read, held the loop up for 0.2 s."""
    light, heavy = RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUME_QUEUE
    codes = [light, heavy, heavy, light, light]
    commands = [RemotingCommand(code, {}, opaque=number) for number, code in enumerate(codes)]
    commands.insert(3, RemotingCommand(heavy, opaque=9, flag=RESPONSE_FLAG))
    data = b"".join(map(encode, commands))
    stream = Stream(events_max=16)
    found, work = [stream.receive(data)], [(stream.heavy_bytes, stream.weight)]
    while stream.has_more:
        found.append(stream.more(4))
        work.append((stream.heavy_bytes, stream.weight))
    assert [len(each) for each in found] == [2, 1, 3]
    heavy_bytes = len(encode(commands[1]))
    one, longest = ENDS_OF_EVENT, HEAVY_EVENT
    assert work == [(heavy_bytes, one + longest), (heavy_bytes, longest), (0, 3 * one)]
    assert len(Stream().receive(data)) == len(commands)


@pytest.mark.parametrize("kind", ["long", "dialect"])
def test_header_that_takes_long_to_read_waits_for_a_call_of_its_own(kind: str) -> None:
    """16 pulls with 64 KiB of tags took 0.2 s, 16 headers of 8 KiB in the dialect 0.1 s."""
    short = encode(RemotingCommand(RequestCode.PULL_MESSAGE, {}))
    tags = {"subscription": "x" * LIGHT_HEADER_BYTES_MAX}
    slow = encode(RemotingCommand(RequestCode.PULL_MESSAGE, tags))
    if kind == "dialect":
        slow = short.replace(b'"code"', b"'code'")
    data = short + slow * 2 + short
    stream = Stream(events_max=16)
    found = [stream.receive(data)]
    while stream.has_more:
        found.append(stream.more(4))
    assert [len(each) for each in found] == ([1, 1, 1, 1] if kind == "long" else [1, 1, 2])
    assert len(Stream().receive(data)) == 4


# --- what cannot be trusted


@pytest.mark.parametrize(("head", "length", "header"), BROKEN.values(), ids=BROKEN.keys())
def test_an_invalid_head_ends_the_stream_after_the_valid_frames(
    head: bytes, length: int, header: int
) -> None:
    good = [send(BINARY), general(JSON), send(JSON)]
    expected = by_the_general_decoder(good)
    kind = FrameTooLong if length > FRAME_BYTES_MAX - 4 else FrameError
    expected.error = (kind, f"a frame of {length} bytes with a header of {header}")
    wire = b"".join(good) + head
    assert said_of([wire]) == expected
    assert said_of([wire + b"x" * 100 + send(BINARY)]) == expected
    for cut in range(len(wire) - len(head), len(wire)):
        assert said_of(pieces_at(wire[: len(wire) - len(head) + 8], [cut])) == expected


def test_an_unreadable_header_ends_the_stream_after_the_valid_frames() -> None:
    wire = send(BINARY) + pack(">iI", 9, 5) + b'{"cod' + send(BINARY)
    found = said_of([wire])
    assert (len(found.sends), found.others) == (1, [])
    assert found.error is not None
    assert found.error[1].startswith("broken JSON header")


def test_a_broken_stream_stays_broken() -> None:
    stream = server_stream()
    for data in (pack(">iI", -1, 0), send(BINARY), b"x"):
        (error,) = stream.receive(data)
        assert isinstance(error, FrameError)


def test_a_too_long_frame_is_refused_by_its_head_with_its_length() -> None:
    stream = Stream(100)
    assert stream.receive(pack(">i", 97)) == []
    (error,) = stream.receive(pack(">I", 10))
    assert isinstance(error, FrameTooLong)
    assert error.frame_bytes == 101
    assert Stream(100).receive(pack(">iI", 96, 10)) == []


def test_the_longest_frame_may_be_raised_while_a_stream_is_read() -> None:
    wire = general(JSON)
    stream = Stream(len(wire))
    assert len(stream.receive(wire)) == 1
    longer = general(JSON, body=b"x")
    stream.frame_bytes_max = len(longer)
    (command,) = stream.receive(longer)
    assert command == decode_frame(longer[4:])


def test_a_partly_read_frame_can_be_dropped() -> None:
    stream, wire = Stream(), general(BINARY)
    assert stream.receive(wire[:-1]) == []
    stream.clear()
    assert stream.receive(wire) == [decode_frame(wire[4:])]


# --- commands alone


def test_a_command_stream_accepts_answers_without_a_request() -> None:
    stream, wire = CommandStream(), general(JSON, flag=RESPONSE_FLAG)
    first = stream.receive(wire + wire[:5])
    second = stream.receive(wire[5:])
    assert [*second] == [*first] == [decode_frame(wire[4:])]


def test_a_command_stream_returns_the_commands_before_an_invalid_frame() -> None:
    wires = [send(BINARY), pull(JSON), general(JSON)]
    commands = CommandStream().receive(b"".join(wires) + pack(">iI", -1, 0))
    assert [next(commands) for _ in wires] == [decode_frame(wire[4:]) for wire in wires]
    with pytest.raises(FrameError):
        next(commands)
