"""The fast decoder of ends of transactions says what the general one says, or leaves it to it."""

from dataclasses import replace

import pytest

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from protocol.end_wire import End, EndDecoder
from protocol.errors import FrameError, RemoteError
from protocol.frame import decode_frame, encode
from protocol.headers.transaction import EndTransactionHeader
from tests.support.by_hand import BY_HAND
from tests.support.golden import frames

HEADER = EndTransactionHeader(
    producer_group="sellers",
    tran_state_table_offset=17,
    commit_log_offset=1_234_567,
    commit_or_rollback=12,
    msg_id="C0A80102279300000000946E0001ABCD",
    from_transaction_check=True,
    transaction_id="C0A80102279300000000946E0001ABCD",
    broker_name="broker-a",
)


ROCKETMQ, JSON = SerializeType.ROCKETMQ, SerializeType.JSON
both_kinds = pytest.mark.parametrize("kind", [ROCKETMQ, JSON], ids=str)


def frame_of(
    header: EndTransactionHeader = HEADER,
    fields: dict[str, str | None] | None = None,
    kind: SerializeType = ROCKETMQ,
) -> bytes:
    """As a client writes it; a field that is None here is left out."""
    found = {**header.encode(), **(fields or {})}
    given = {name: value for name, value in found.items() if value is not None}
    return encode(command_of(given, kind))


def command_of(fields: dict[str, str], kind: SerializeType = ROCKETMQ) -> RemotingCommand:
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        fields,
        opaque=-7,
        flag=ONEWAY_FLAG,
        language=LanguageCode.JAVA,
        version=407,
        serialize_type=kind,
    )


def fast(frame: bytes, decoder: EndDecoder) -> End | None:
    """As a connection uses it: the frame between others in one buffer."""
    data = b"before" + frame + frame
    start = len(b"before") + 8
    if frame[4] == JSON:
        is_end = data.startswith(decoder.JSON_HEADS, start)
        return decoder.json(data, start, start - 8 + len(frame)) if is_end else None
    if not data.startswith(decoder.BINARY_HEADS, start):
        return None
    return decoder.binary(data, start, start - 8 + len(frame))


def general(frame: bytes) -> End:
    """Raises RemoteError for what is no end of a transaction."""
    command = decode_frame(frame[4:])
    header = EndTransactionHeader.decode(command.fields)
    return replace(command, fields=None), header


def learnt(frame: bytes) -> EndDecoder:
    decoder = EndDecoder()
    fast(frame, decoder)
    return decoder


@both_kinds
def test_the_second_of_a_form_is_decoded_into_what_its_client_wrote(kind: SerializeType) -> None:
    decoder = learnt(frame_of(kind=kind))
    other = replace(HEADER, commit_or_rollback=8, commit_log_offset=9, from_transaction_check=False)
    found = fast(frame_of(other, kind=kind), decoder)
    assert found == general(frame_of(other, kind=kind))
    assert found is not None
    assert found[1] == other


@pytest.mark.parametrize("name", ["binary-header", "java-4.9.7", "java-5.3.3", "go-v2", BY_HAND])
def test_golden_ends_are_decoded_as_the_general_decoder_does(name: str) -> None:
    taken = 0
    for record in frames(name):
        frame = record["frame"]
        if record["code"] == 37 and "response" not in record["direction"]:
            found = fast(frame, learnt(frame))
            assert found == (None if b'"language":"GO"' in frame else general(frame))
            taken += found is not None
    assert taken or name == "go-v2"


@both_kinds
def test_no_changed_byte_is_understood_differently(kind: SerializeType) -> None:
    frame = frame_of(kind=kind)
    decoder = learnt(frame)
    for at in range(8, len(frame)):
        for value in (0, 1, 0x22, 0x24, 0x30 + at % 10, 0x5C, 0x7F, 0xFF):
            changed = frame[:at] + bytes((value,)) + frame[at + 1 :]
            found = fast(changed, decoder)
            if found is not None:
                assert found == general(changed), changed


@both_kinds
@pytest.mark.parametrize(
    "fields",
    [
        {"commitOrRollback": "1"},
        {"commitOrRollback": "08"},
        {"commitOrRollback": None},
        {"commitLogOffset": "-1"},
        {"commitLogOffset": "+5"},
        {"commitLogOffset": "9" * 19},
        {"commitLogOffset": "x"},
        {"producerGroup": None},
        {"producerGroup": "größe"},
        {"fromTransactionCheck": "True"},
        {"another": "x"},
    ],
    ids=str,
)
def test_what_is_unusual_is_left_to_the_general_decoder(
    fields: dict[str, str | None], kind: SerializeType
) -> None:
    decoder = learnt(frame_of(kind=kind))
    frame = frame_of(HEADER, fields, kind)
    assert fast(frame, decoder) is None
    found = fast(frame, decoder)  # perhaps of a form that has been learnt meanwhile
    assert found is None or found == general(frame)


@both_kinds
def test_an_answer_and_a_header_with_a_remark_are_left_to_the_general_decoder(
    kind: SerializeType,
) -> None:
    decoder = learnt(frame_of(kind=kind))
    fields = HEADER.encode()
    for odd in ({"flag": RESPONSE_FLAG}, {"remark": "x"}):
        assert fast(encode(replace(command_of(fields, kind), **odd)), decoder) is None


def test_a_client_of_many_forms_is_still_read_right_and_costs_no_more_than_a_few() -> None:
    decoder, taken = EndDecoder(), 0
    for number in [*range(40), *range(40)]:
        frame = frame_of(replace(HEADER, producer_group="g" * (1 + number), broker_name=None))
        found = fast(frame, decoder)
        assert found is None or found == general(frame)
        taken += found is not None
    assert taken == 4


@both_kinds
def test_what_the_general_decoder_refuses_is_not_learnt(kind: SerializeType) -> None:
    decoder = EndDecoder()
    broken = frame_of(HEADER, {"commitOrRollback": "7"}, kind)
    for _ in range(2):
        assert fast(broken, decoder) is None
    with pytest.raises((FrameError, RemoteError)):
        general(broken)
