"""The fast decoder of sends says what the general one says, or leaves the frame to it."""

from collections.abc import Callable
from dataclasses import astuple, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.errors import RemoteError
from protocol.frame import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, decode_frame, encode
from protocol.headers.send import SendMessageHeader
from protocol.send_values import Send, send_of
from protocol.send_wire import SendDecoder
from tests.protocol.vectors import BINARY_REQUEST, JSON_REQUEST
from tests.support.by_hand import BY_HAND
from tests.support.golden import frames

profile = settings(derandomize=True, max_examples=60, deadline=None)

KINDS = [SerializeType.JSON, SerializeType.ROCKETMQ]
GOLDEN_FILES = ("java-4.9.7", "acl", "binary-header", "java-5.3.3", "negative", "go-v2", BY_HAND)
HEADER = SendMessageHeader(
    "group", "Topic", "TBW102", 4, 3, 0, 1_700_000_000_000, 0, "KEYS\x01k\x02WAIT\x01true", 0
)
INT_MAX = (1 << 31) - 1


def fast(frame: bytes, decoder: SendDecoder | None = None) -> Send | None:
    """Decode as a connection does, with the frame between others in one buffer."""
    decoder = decoder or SendDecoder()
    data = b"before" + frame + frame
    start, header_bytes = len(b"before") + 8, int.from_bytes(frame[5:8])
    decode = decoder.binary if frame[4] == SerializeType.ROCKETMQ else decoder.json
    return decode(data, start, start + header_bytes, start - 8 + len(frame))


def general(frame: bytes) -> Send:
    """Raises RemoteError for what is no send, or one that cannot be read."""
    command = decode_frame(frame[4:])
    assert not command.is_response
    return send_of(command)


def same(frame: bytes, decoder: SendDecoder | None = None) -> bool:
    """Whether the fast decoder took it; what it took is what the general one reads."""
    found = fast(frame, decoder)
    if found is not None:
        assert said(found) == said(general(frame)), frame
    return found is not None


def said(send: Send) -> object:
    """All that a send says; only what was learnt has the values of its shape at hand."""
    signature = send.signature
    if signature is not None and signature.timestamp:
        signature = replace(signature, header=signature.fields())
    return astuple(replace(send, shape=replace(send.shape, values=b""), signature=signature))


def frame_of(
    kind: SerializeType,
    fields: dict[str, str] | None = None,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    **options: Any,
) -> bytes:
    """A send with these short fields in place of the usual ones; "" leaves one out."""
    found = {**HEADER.encode_v2(), **(fields or {})}
    command = RemotingCommand(
        code,
        {name: value for name, value in found.items() if value or kind == SerializeType.JSON},
        b"body",
        opaque=7,
        language=LanguageCode.JAVA,
        serialize_type=kind,
    )
    return encode(replace(command, **options))


# --- what clients write


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_every_golden_send_is_decoded_as_by_the_general_decoder(
    name: str, tell: Callable[[str], None]
) -> None:
    decoder, taken, left = SendDecoder(), 0, 0
    for record in frames(name):
        if record["code"] not in (310, 320) or "response" in record["direction"]:
            continue
        if same(record["frame"], decoder):
            taken += 1
        else:
            left += 1
            signed = "Signature" in record["header"].get("extFields", record["header"])
            retry = "%RETRY%" in str(record["header"])
            escaped = record["language"] == "GO" or '\\"' in str(record["header_text"])
            assert signed or retry or escaped, record["header_text"]
    tell(f"{taken} sends decoded fast, {left} left")
    assert taken or name in ("acl", "go-v2")


@pytest.mark.parametrize("frame", [JSON_REQUEST, BINARY_REQUEST], ids=["json", "binary"])
def test_a_send_of_the_original_client_is_decoded_fast(frame: bytes) -> None:
    assert same(frame)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_send_is_decoded_into_its_clients_values(kind: SerializeType) -> None:
    fields = {"e": "-1", "f": "769", "h": "7", "j": "2", "k": "true", "l": "16", "m": "true"}
    frame = frame_of(kind, fields, code=320, opaque=-5, flag=ONEWAY_FLAG, version=401)
    send = fast(frame)
    assert send is not None
    shape, tail, *rest, signature = astuple(send)
    assert shape == (320, 401, kind, "group", "Topic", b"Topic", "TBW102", 4, b"groupTopicTBW1024")
    assert signature is None
    assert tail == (2, True, 16, True)
    assert rest == [-5, 2, -1, 769, 1_700_000_000_000, 7, b"KEYS\x01k\x02WAIT\x01true", b"body"]
    assert said(send) == said(general(frame))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_sends_of_one_producer_share_their_shape_and_their_tail(kind: SerializeType) -> None:
    decoder = SendDecoder()
    first = fast(frame_of(kind), decoder)
    second = fast(frame_of(kind, {"e": "1", "i": "TAGS\x01t"}, opaque=8), decoder)
    other = fast(frame_of(kind, {"b": "Other", "j": "1"}), decoder)
    again = fast(frame_of(kind), decoder)
    assert first and second and other and again
    assert first.shape is second.shape is again.shape is not other.shape
    assert first.tail is second.tail is again.tail is not other.tail


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_learnt_shapes_stay_bounded_and_correct_with_many_topics(kind: SerializeType) -> None:
    decoder, random = SendDecoder(), Random(1)
    for _ in range(500):
        number = random.randrange(200)
        tail = {"j": str(number), "l": str(number % 7)}
        frame = frame_of(kind, {"b": f"Topic{number}", **tail}, version=400 + number % 3)
        assert same(frame, decoder)


# --- what must be left to the general decoder

ODD_FIELDS = {
    "a retry topic": {"b": "%RETRY%group"},
    "a queue id that is no int": {"e": str(INT_MAX + 1)},
    "a sysFlag that is no int": {"f": str(1 << 40)},
    "a born time that is no long": {"g": str(1 << 63)},
    "a flag that is no int": {"h": str(-INT_MAX - 2)},
    "a number of queues that is no int": {"d": "99999999999"},
    "a number of queues with a sign": {"d": "-4"},
    "a reconsume count that is no int": {"j": "99999999999"},
    "a reconsume count in the Python way": {"j": "1_0"},
    "a reconsume count with blanks": {"j": " 1"},
    "a limit of retries that is no int": {"l": str(1 << 31)},
    "a number with a plus": {"e": "+3"},
    "an empty number": {"e": ""},
    "a name of an unknown field": {"Signature": "abc"},
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("fields", ODD_FIELDS.values(), ids=ODD_FIELDS.keys())
def test_unusual_fields_are_left_to_the_general_decoder(
    kind: SerializeType, fields: dict[str, str]
) -> None:
    assert fast(frame_of(kind, fields)) is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_unusual_commands_are_left_to_the_general_decoder(kind: SerializeType) -> None:
    assert fast(frame_of(kind, code=RequestCode.SEND_MESSAGE)) is None
    assert fast(frame_of(kind, remark="why")) is None
    assert fast(frame_of(kind, flag=RESPONSE_FLAG)) is None
    assert fast(frame_of(kind, flag=RESPONSE_FLAG | ONEWAY_FLAG)) is None


@pytest.mark.parametrize("name", "abcdefgh")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_send_without_a_mandatory_field_is_refused_by_the_general_decoder(
    kind: SerializeType, name: str
) -> None:
    fields = HEADER.encode_v2()
    del fields[name]
    frame = encode(RemotingCommand(310, fields, serialize_type=kind))
    assert fast(frame) is None
    with pytest.raises(RemoteError, match=f"<{name}> is null"):
        general(frame)


@pytest.mark.parametrize("name", "abc")
def test_an_empty_string_in_the_binary_header_is_absent(name: str) -> None:
    wire = bytes((0, 1, ord(name))) + len(HEADER.encode_v2()[name]).to_bytes(4)
    frame = frame_of(SerializeType.ROCKETMQ)
    at = frame.index(wire)
    value_bytes = len(HEADER.encode_v2()[name])
    emptied = frame[: at + 3] + bytes(4) + frame[at + 7 + value_bytes :]
    fixed = with_lengths(emptied, header_change=-value_bytes)
    assert fast(fixed) is None
    with pytest.raises(RemoteError, match="is null"):
        general(fixed)


def with_lengths(frame: bytes, header_change: int) -> bytes:
    """The frame with its three lengths made to fit a header that was changed by hand."""
    total, header = int.from_bytes(frame[:4]), int.from_bytes(frame[5:8])
    fields = int.from_bytes(frame[25:29])
    return b"".join(
        (
            (total + header_change).to_bytes(4),
            frame[4:5],
            (header + header_change).to_bytes(3),
            frame[8:25],
            (fields + header_change).to_bytes(4),
            frame[29:],
        )
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"a":"group"', b'"a":null'),
        (b'"b":"Topic"', b'"b":null'),
        (b'"b":"Topic"', b'"b":12345'),
        (b'"c":"TBW102"', b'"c":null'),
        (b'"d":"4"', b'"d":4'),
        (b'"e":"3"', b'"e":3'),
        (b'"j":"0"', b'"j":null'),
        (b'"j":"0"', b'"j":0'),
        (b'"k":"false"', b'"k":true'),
        (b'"m":"false"', b'"m":true'),
        (b'"i":"KEYS', b'"i":"K\\u0045YS'),
        (b'"i":"KEYS', b'"i":"\xff\xfeKEYS'),
        (b'"i":"KEYS', b'"i":"\xed\xa0\x80KEYS'),
        (b'"version":407', b'"version":99999999999'),
        (b'"opaque":7', b'"opaque":99999999999'),
        (b'"opaque":7', b'"opaque":2147483648'),
        (b'"flag":0', b'"flag":99999999999'),
        (b'"flag":0', b'"flag":"0"'),
        (b'"d":"4"', b'"d":"4"},"other":{"x":"4"'),
    ],
)
def test_json_in_another_form_is_left_to_the_general_decoder(old: bytes, new: bytes) -> None:
    frame = frame_of(SerializeType.JSON)
    header = frame[8 : 8 + int.from_bytes(frame[5:8])]
    assert header.count(old) == 1
    header = header.replace(old, new)
    changed = (8 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header + b"body"
    assert fast(changed) is None


def test_a_true_in_capitals_is_true() -> None:
    for kind in KINDS:
        assert same(frame_of(kind, {"k": "TRUE", "m": "True"}))


# --- lengths that lie, byte by byte


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_changed_byte_is_decoded_as_by_the_general_decoder(kind: SerializeType) -> None:
    """Every byte of a header set to each of some values: same, or left to the general decoder."""
    frame = frame_of(kind, {"l": "16"})
    values = (0, 1, 2, 3, 14, 0x30, 0x31, 0x39, 0x22, 0x2D, 0x5C, 0x7B, 0x80, 0xFF)
    for at in range(8, len(frame) - len(b"body")):
        for value in values:
            check_changed(frame[:at] + bytes((value,)) + frame[at + 1 :])


def test_properties_that_overlap_the_body_are_left_to_the_general_decoder() -> None:
    frame = frame_of(SerializeType.ROCKETMQ)
    at = frame.index(b"\x00\x01i") + 3
    to_the_end = len(frame) - at - 4
    for length in range(to_the_end - len(b"body"), to_the_end + 3):
        changed = frame[:at] + length.to_bytes(4) + frame[at + 4 :]
        for decoder in (SendDecoder(), None):
            if length > to_the_end - len(b"body"):
                assert fast(changed, decoder) is None
            else:
                assert same(changed, decoder)


def check_changed(frame: bytes) -> None:
    """With and without something learnt."""
    decoder = SendDecoder()
    fast(frame_of(SerializeType(frame[4])), decoder)
    for each in (decoder, SendDecoder()):
        same(frame, each)


text = st.text(max_size=12)
word = st.text("abcXYZ012%_-", min_size=1, max_size=12)
number = st.integers(-(1 << 33), 1 << 33) | st.integers(0, 9)


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """Any send that a client may write, and some that it should not."""
    fields = {
        "a": draw(word | text),
        "b": draw(word | text),
        "c": draw(word),
        "d": str(draw(number)),
        "e": str(draw(number)),
        "f": str(draw(number)),
        "g": str(draw(number | st.just(1_795_189_028_865))),
        "h": str(draw(number)),
        "i": draw(text | st.lists(word, max_size=6).map("\x01".join)),
        "j": str(draw(number)),
        "k": draw(st.sampled_from(["true", "false", "TRUE", ""])),
        "l": draw(st.none() | number.map(str)),
        "m": draw(st.none() | st.sampled_from(["true", "false"])),
        "n": draw(st.none() | text),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    extra = draw(st.just({}) | st.just({}) | st.dictionaries(word, text, max_size=1))
    kind = draw(st.sampled_from(KINDS))
    command = RemotingCommand(
        draw(st.sampled_from([310, 320, 310, 10])),
        {**known, **extra},
        draw(st.none() | st.binary(max_size=40)),
        draw(st.integers(-INT_MAX - 1, INT_MAX)),
        draw(st.sampled_from([0, 0, 2, 1])),
        draw(st.none() | st.none() | word),
        draw(st.sampled_from([int(each) for each in LanguageCode if each != LanguageCode.GO])),
        draw(st.integers(0, 500)),
        kind,
    )
    return encode(command)


@pytest.mark.heavy
@settings(profile)
@given(st.lists(sends(), min_size=1, max_size=3))
def test_any_sends_are_decoded_as_by_the_general_decoder(made: list[bytes]) -> None:
    decoder = SendDecoder()
    for frame in made:
        same(frame, decoder)


@pytest.mark.heavy
@settings(profile)
@given(sends(), st.data())
def test_sends_with_changed_bytes_are_decoded_as_by_the_general_decoder(
    frame: bytes, data: st.DataObject
) -> None:
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check_changed(bytes(changed))


# --- the general way


def test_the_go_clients_long_names_are_read_from_the_command() -> None:
    command = RemotingCommand(10, HEADER.encode(), b"body", opaque=3, language=LanguageCode.GO)
    send = send_of(command)
    assert (send.shape.code, send.shape.topic, send.opaque) == (10, "Topic", 3)
    assert (send.queue_id, send.body) == (3, b"body")


def test_a_send_without_body_and_properties_has_empty_ones() -> None:
    header = replace(HEADER, properties=None)
    send = send_of(RemotingCommand(310, header.encode_v2()))
    assert (send.properties, send.body) == (b"", b"")
    for kind in KINDS:
        assert same(encode(RemotingCommand(310, HEADER.encode_v2(), serialize_type=kind)))


# --- headers laid out as the one before


def test_numbers_of_any_length_are_decoded_fast() -> None:
    decoder = SendDecoder()
    others = [{}, {"e": "12"}, {"e": "1023"}, {"f": "769"}, {"g": "7"}, {"h": "77"}, {"e": "-1"}]
    for fields in (*others, *reversed(others)):
        for _ in range(2):
            assert same(frame_of(SerializeType.ROCKETMQ, fields), decoder), fields


@pytest.mark.parametrize("field", "efgh")
def test_a_non_number_of_a_numbers_length_is_left_to_the_general_decoder(field: str) -> None:
    decoder, digits = SendDecoder(), 13 if field == "g" else 1
    assert same(frame_of(SerializeType.ROCKETMQ), decoder)
    for text in ("x", " ", "_"):
        frame = frame_of(SerializeType.ROCKETMQ, {field: text * digits})
        assert fast(frame, decoder) is None
    assert same(frame_of(SerializeType.ROCKETMQ), decoder)


def test_a_shape_with_an_unusual_first_send_is_not_confused_with_the_previous() -> None:
    decoder = SendDecoder()
    assert same(frame_of(SerializeType.ROCKETMQ), decoder)
    assert fast(frame_of(SerializeType.ROCKETMQ, {"b": "Other", "g": "x" * 13}), decoder) is None
    assert same(frame_of(SerializeType.ROCKETMQ), decoder)
