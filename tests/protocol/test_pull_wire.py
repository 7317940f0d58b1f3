"""The fast decoder of pulls says what the general one says, or leaves the frame to it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from protocol.errors import RemoteError
from protocol.frame import decode_frame, encode
from protocol.headers.pull import PullMessageHeader
from protocol.pull_wire import Pull, PullDecoder
from tests.support.by_hand import BY_HAND
from tests.support.golden import frames
from tests.support.reachable import reachable_bytes

settings.register_profile("pulls", derandomize=True, max_examples=60, deadline=None)
profile = settings.get_profile("pulls")

KINDS = [SerializeType.JSON, SerializeType.ROCKETMQ]
GOLDEN_FILES = ("java-4.9.7", "acl", "binary-header", "java-5.3.3", "negative", "go-v2", BY_HAND)
HEADER = PullMessageHeader(
    consumer_group="group",
    topic="Topic",
    queue_id=3,
    queue_offset=1234567,
    max_msg_nums=32,
    sys_flag=3,
    commit_offset=1234535,
    suspend_timeout_ms=15000,
    subscription="a || b",
    sub_version=1_795_189_904_394,
    expression_type="TAG",
    broker_name="broker-a",
)
INT_MAX = (1 << 31) - 1


def fast(frame: bytes, decoder: PullDecoder | None = None) -> Pull | None:
    """As a connection uses it: the frame between others in one buffer."""
    decoder = decoder or PullDecoder()
    data = b"before" + frame + frame
    start = len(b"before") + 8
    end = start - 8 + len(frame)
    if frame[4] == SerializeType.ROCKETMQ:
        is_pull = data.startswith(decoder.BINARY_HEADS, start)
        return decoder.binary(data, start, end) if is_pull else None
    return decoder.json(data, start, end) if data.startswith(decoder.JSON_HEADS, start) else None


def general(frame: bytes) -> Pull:
    """Raises RemoteError for what is no pull, or one that cannot be read."""
    command = decode_frame(frame[4:])
    header = PullMessageHeader.decode(command.fields)
    return replace(command, fields=None), header


def same(frame: bytes, decoder: PullDecoder | None = None) -> bool:
    """Whether the fast decoder took it; what it took is what the general one reads."""
    found = fast(frame, decoder)
    if found is not None:
        assert found == general(frame), frame
    return found is not None


def frame_of(
    kind: SerializeType, fields: dict[str, str | None] | None = None, **options: Any
) -> bytes:
    """A pull with these fields in place of the usual ones; None leaves one out."""
    found = {**HEADER.encode(), **(fields or {})}
    command = RemotingCommand(
        RequestCode.PULL_MESSAGE,
        {name: value for name, value in found.items() if value is not None},
        opaque=7,
        language=LanguageCode.JAVA,
        serialize_type=kind,
    )
    return encode(replace(command, **options))


# --- what clients write


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_every_golden_pull_is_decoded_as_the_general_decoder_does(name: str) -> None:
    decoder, taken = PullDecoder(), 0
    for record in frames(name):
        if record["code"] not in (11, 361) or "response" in record["direction"]:
            continue
        frame = record["frame"]
        if same(frame, decoder):
            taken += 1
        else:
            assert name == "negative", record["header_text"]
    assert taken


@pytest.mark.heavy
@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_no_changed_byte_of_a_golden_pull_is_understood_differently(name: str) -> None:
    pulls = [
        record["frame"]
        for record in frames(name)
        if record["code"] in (11, 361) and "response" not in record["direction"]
    ]
    forms = {len(frame): frame for frame in pulls}
    for number, frame in enumerate([*forms.values()][:4]):
        for at in range(8, len(frame)):
            for value in (0, 1, 0x22, 0x30 + (at + number) % 10, 0x7B, 0xFF):
                check_changed(frame[:at] + bytes((value,)) + frame[at + 1 :], frame)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_pull_is_decoded_into_what_its_client_wrote(kind: SerializeType) -> None:
    frame = frame_of(kind, opaque=-5, flag=ONEWAY_FLAG, version=401, code=361)
    found = fast(frame)
    assert found is not None
    command, header = found
    assert header == HEADER
    assert command == RemotingCommand(
        361, opaque=-5, flag=2, language=LanguageCode.JAVA, version=401, serialize_type=kind
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_pulls_of_many_consumers_on_one_connection_stay_apart(kind: SerializeType) -> None:
    decoder = PullDecoder()
    for number in range(300):
        fields: dict[str, str | None] = {
            "topic": f"Topic{number % 97}",
            "consumerGroup": f"g{number % 5}",
            "subVersion": str(number % 89),
            "subscription": None if number % 3 else "*",
        }
        assert same(frame_of(kind, fields, version=400 + number % 3), decoder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_long_is_read_and_not_kept(kind: SerializeType) -> None:
    decoder, long = PullDecoder(), "x" * (100 << 10)
    for number in range(20):
        assert same(frame_of(kind, {"subscription": f"{number}{long}"}), decoder)
    assert reachable_bytes(decoder) < 5 * len(long)


# --- what must be left to the general decoder

ODD_FIELDS: dict[str, dict[str, str | None]] = {
    "a queue id that is no int": {"queueId": str(INT_MAX + 1)},
    "a queue id below 0": {"queueId": "-1"},
    "an offset that is no long": {"queueOffset": str(1 << 63)},
    "an offset below 0": {"queueOffset": "-1"},
    "a number with a plus": {"maxMsgNums": "+32"},
    "a number in the Python way": {"sysFlag": "1_0"},
    "a number with blanks": {"commitOffset": " 1"},
    "a number that is none": {"queueId": "x"},
    "an empty number": {"commitOffset": ""},
    "a version that is no long": {"subVersion": "9" * 19},
    "a version that is none": {"subVersion": "x"},
    "a very long number": {"suspendTimeoutMillis": "0" * 70 + "1"},
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("fields", ODD_FIELDS.values(), ids=ODD_FIELDS.keys())
def test_odd_fields_are_left_to_the_general_decoder(
    kind: SerializeType, fields: dict[str, str | None]
) -> None:
    assert fast(frame_of(kind, fields)) is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_odd_commands_are_left_to_the_general_decoder(kind: SerializeType) -> None:
    assert fast(frame_of(kind, flag=RESPONSE_FLAG)) is None
    assert fast(frame_of(kind, flag=-1)) is None
    assert fast(frame_of(kind, code=RequestCode.SEND_MESSAGE)) is None
    for flag in (RESPONSE_FLAG, ONEWAY_FLAG, 4):
        same(frame_of(kind, remark="why", flag=flag))
    assert fast(frame_of(SerializeType.ROCKETMQ, remark="why")) is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_pull_without_a_mandatory_field_is_left_and_then_refused(kind: SerializeType) -> None:
    for name in HEADER.encode().keys() - {"subscription", "expressionType", "bname"}:
        frame = frame_of(kind, {name: None})
        assert fast(frame) is None
        with pytest.raises(RemoteError, match=f"<{name}> is null"):
            general(frame)


def test_a_signed_binary_pull_is_left_and_nothing_is_learnt_of_it() -> None:
    decoder = PullDecoder()
    for number in range(3):
        signed: dict[str, str | None] = {"Signature": f"s{number}"}
        assert fast(frame_of(SerializeType.ROCKETMQ, signed), decoder) is None
    assert not decoder._heads and not decoder._tails


@pytest.mark.parametrize("name", ["queueId", "topic", "consumerGroup", "queueOffset", "subVersion"])
def test_a_binary_field_that_comes_twice_is_left_to_the_general_decoder(name: str) -> None:
    frame = frame_of(SerializeType.ROCKETMQ)
    entry = len(name).to_bytes(2) + name.encode() + b"\0\0\0\x011"
    assert fast(frame) is not None
    for at in (29, len(frame)):  # in front of all fields, and behind them
        changed = with_lengths(frame[:at] + entry + frame[at:], len(entry))
        for decoder in (PullDecoder(), learnt(frame)):
            assert fast(changed, decoder) is None


def with_lengths(frame: bytes, more: int) -> bytes:
    """The frame with its three lengths made to fit a binary header that was changed by hand."""
    total, header, fields = (
        int.from_bytes(frame[start:end]) + more for start, end in ((0, 4), (5, 8), (25, 29))
    )
    return b"".join(
        (
            total.to_bytes(4),
            frame[4:5],
            header.to_bytes(3),
            frame[8:25],
            fields.to_bytes(4),
            frame[29:],
        )
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"topic":"Topic"', b'"topic":null'),
        (b'"topic":"Topic"', b'"topic":12345'),
        (b'"queueId":"3"', b'"queueId":3'),
        (b'"subVersion":"', b'"subVersion":["'),
        (b'"TAG"', b'"$ref"'),
        (b'"bname":"broker-a"', b'"bname":{"$ref":"$"}'),
        (b'"bname":"broker-a"', b'"bname":true'),
        (b'"language":"JAVA"', b'"language":0'),
        (b'"language":"JAVA"', b'"language":"java"'),
        (b'"language":"JAVA"', b'"lang_uage":"JAVA"'),
        (b'"version":407', b'"version":99999999999'),
        (b'"version":407', b'"version":true'),
        (b'"version":407', b'"version":407,"remark":5'),
        (b'"version":407', b'"Version":407'),
        (b'"opaque":7', b'"opaque":99999999999'),
        (b'"opaque":7', b'"opaque":7.0'),
        (b'"opaque":7', b'"opaque":"7"'),
        (b'"flag":0', b'"flag":"0"'),
        (b'"flag":0', b'"flag":-2'),
        (b'"code":11,', b'"code":11,"code":12,'),
        (b'"code":11,', b'"code":11,"unknown":12,'),
    ],
)
def test_json_in_another_form_is_left_to_the_general_decoder(old: bytes, new: bytes) -> None:
    frame = frame_of(SerializeType.JSON)
    assert frame[8:].count(old) == 1
    header = frame[8:].replace(old, new)
    changed = (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header
    assert fast(changed) is None


# --- lengths that lie, byte by byte


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_changed_byte_is_understood_differently(kind: SerializeType) -> None:
    """Every byte of a header set to each of some values: same, or left to the general decoder."""
    frame = frame_of(kind)
    values = (0, 1, 2, 3, 14, 0x30, 0x31, 0x39, 0x22, 0x2D, 0x5C, 0x7B, 0x80, 0xFF)
    for at in range(8, len(frame)):
        for value in values:
            check_changed(frame[:at] + bytes((value,)) + frame[at + 1 :], frame)


def check_changed(changed: bytes, frame: bytes) -> None:
    """With and without something learnt."""
    for decoder in (learnt(frame), PullDecoder()):
        same(changed, decoder)


def learnt(frame: bytes) -> PullDecoder:
    decoder = PullDecoder()
    fast(frame, decoder)
    return decoder


word = st.text("abcXYZ012%_-", min_size=1, max_size=12)
text = word | st.text(max_size=12)
number = st.integers(-(1 << 33), 1 << 33) | st.integers(0, 9)
long_number = number | st.integers(-(1 << 64), 1 << 64)


@st.composite
def pulls(draw: st.DrawFn) -> bytes:
    """Any pull that a client may write, and some that it should not."""
    fields = {
        "consumerGroup": draw(text),
        "topic": draw(text),
        "queueId": str(draw(number)),
        "queueOffset": str(draw(long_number)),
        "maxMsgNums": str(draw(number)),
        "sysFlag": str(draw(number)),
        "commitOffset": str(draw(long_number)),
        "suspendTimeoutMillis": str(draw(long_number)),
        "subscription": draw(st.none() | text),
        "subVersion": str(draw(long_number | st.just(1_795_189_028_865))),
        "expressionType": draw(st.none() | st.sampled_from(["TAG", "SQL92", ""])),
        "bname": draw(st.none() | text),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    extra = draw(st.just({}) | st.just({}) | st.dictionaries(text, text, max_size=1))
    pairs = [*known.items(), *extra.items()]
    if draw(st.booleans()):
        pairs = draw(st.permutations(pairs))
    command = RemotingCommand(
        draw(st.sampled_from([11, 361, 11, 10])),
        dict(pairs),
        None,
        draw(st.integers(-INT_MAX - 1, INT_MAX)),
        draw(st.sampled_from([0, 0, 2, 1])),
        draw(st.none() | st.none() | text),
        draw(st.sampled_from([int(each) for each in LanguageCode])),
        draw(st.integers(0, 500)),
        draw(st.sampled_from(KINDS)),
    )
    return encode(command)


@pytest.mark.heavy
@settings(profile)
@given(st.lists(pulls(), min_size=1, max_size=3))
def test_any_pulls_are_decoded_as_the_general_decoder_does(made: list[bytes]) -> None:
    decoder = PullDecoder()
    for frame in made:
        same(frame, decoder)


@pytest.mark.heavy
@settings(profile)
@given(pulls(), st.data())
def test_pulls_with_changed_bytes_are_never_understood_differently(
    frame: bytes, data: st.DataObject
) -> None:
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(8, len(frame) - 1))] = data.draw(st.integers(0, 255))
    check_changed(bytes(changed), frame)
