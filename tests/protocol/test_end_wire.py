"""The quick decoder of ends of transactions says what the general one says, or leaves it to it."""

from dataclasses import replace
from random import Random

import pytest

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.end_wire import DecodedEnd, EndDecoder
from protocol.errors import RemoteError
from protocol.frame import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, decode_frame, encode
from protocol.headers.transaction import EndTransactionHeader
from protocol.stream import Stream
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
ROCKETMQ = SerializeType.ROCKETMQ


def command_of(fields: dict[str, str | None]) -> RemotingCommand:
    """Return what a client sends; a field that is None is left out."""
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        {name: value for name, value in fields.items() if value is not None},
        opaque=77,
        flag=ONEWAY_FLAG,
        language=LanguageCode.JAVA,
        version=407,
        serialize_type=ROCKETMQ,
    )


def frame_of(header: EndTransactionHeader) -> bytes:
    return encode(command_of({**header.encode()}))


def quick(frame: bytes, decoder: EndDecoder) -> DecodedEnd | None:
    """Return what a stream with this decoder says, the frame between two others."""
    other = encode(RemotingCommand(RequestCode.HEART_BEAT, serialize_type=ROCKETMQ))
    try:
        events = Stream(ends=decoder).receive(other + frame + other)
    except RemoteError as error:
        raise AssertionError(frame) from error
    return events[1] if len(events) == 3 and isinstance(events[1], DecodedEnd) else None


def general(frame: bytes) -> DecodedEnd:
    """Return the same from the general decoder. Raises RemoteError."""
    command = decode_frame(frame[4:])
    assert command.code == RequestCode.END_TRANSACTION
    return DecodedEnd(replace(command, fields=None), EndTransactionHeader.decode(command.fields))


def learnt(frame: bytes) -> EndDecoder:
    decoder = EndDecoder()
    assert quick(frame, decoder) is None
    return decoder


@pytest.mark.parametrize("missing", ["", "msgId", "fromTransactionCheck", "bname"])
def test_a_layout_is_decoded_fast_from_its_second_request_on(missing: str) -> None:
    numbers = {"commitLogOffset": "7654321", "tranStateTableOffset": "18", missing: None}
    first, second = ({**HEADER.encode(), missing: None}, {**HEADER.encode(), **numbers})
    decoder = learnt(encode(command_of(first)))
    frame = encode(command_of(second))
    assert quick(frame, decoder) == general(frame)


def test_growing_offsets_and_other_outcomes_are_learnt() -> None:
    decoder, known = EndDecoder(), 0
    for number in range(2000):
        header = replace(HEADER, commit_log_offset=number * 100, commit_or_rollback=8 + number % 4)
        header.commit_or_rollback = 12 if number % 2 else 8
        frame = frame_of(header)
        found = quick(frame, decoder)
        assert found in (None, general(frame))
        known += found is not None
    assert known > 1700


@pytest.mark.parametrize("name", ["binary-header", "java-4.9.7", "java-5.3.3", "go-v2", BY_HAND])
def test_recorded_end_requests_are_decoded_as_by_the_general_decoder(name: str) -> None:
    for record in frames(name):
        frame = record["frame"]
        if record["code"] == RequestCode.END_TRANSACTION and "response" not in record["direction"]:
            found = quick(frame, learnt(frame))
            assert found == (general(frame) if frame[4] == ROCKETMQ else None)


@pytest.mark.trial(short=2, long=100)
def test_mutated_headers_are_decoded_as_by_the_general_decoder(seed: int) -> None:
    """Bytes of the header are replaced, doubled or dropped; the frame's lengths stay right."""
    random, decided = Random(seed), 0
    frame = frame_of(HEADER)
    digits = [at for at in range(8, len(frame)) if frame[at : at + 1].isdigit()]
    decoder = learnt(frame)
    for _ in range(3000):
        header = bytearray(frame[8:])
        for _ in range(random.choice((1, 1, 2))):
            at = random.randrange(len(header))
            value = random.choice((0, 1, 8, 0x22, 0x24, 0x2B, 0x2D, 0x5C, 0x7F, 0xC3, 0xFF, 0x20))
            kept = random.choice((1, 1, 1, 0, 2)) * bytes((random.choice((value, header[at])),))
            header[at : at + 1] = kept
        if random.random() < 0.3:
            at = random.choice(digits) - 8
            header[at : at + 1] = b"%d" % random.randrange(10)
        mark = (frame[4] << 24 | len(header)).to_bytes(4)
        changed = (4 + len(header)).to_bytes(4) + mark + header
        found = quick(changed, decoder)
        if found is not None:
            assert found == general(changed), changed
            decided += 1
    assert decided > 100


@pytest.mark.parametrize(
    "fields",
    [
        {"commitOrRollback": "1"},
        {"commitOrRollback": "08"},
        {"commitOrRollback": None},
        {"commitLogOffset": "-234567"},
        {"commitLogOffset": "+234567"},
        {"commitLogOffset": "9" * 19},
        {"commitLogOffset": "1" * 20},
        {"commitLogOffset": "\u0661234"},
        {"commitLogOffset": "x"},
        {"producerGroup": None},
        {"producerGroup": ""},
        {"producerGroup": "große"},
        {"producerGroup": "sell$.."},
        {"fromTransactionCheck": "TRUE"},
        {"fromTransactionCheck": "yes!"},
        {"another": "x"},
        {"$ref": "x"},
    ],
    ids=str,
)
def test_unusual_fields_are_decoded_as_by_the_general_decoder(
    fields: dict[str, str | None],
) -> None:
    decoder = learnt(frame_of(HEADER))
    frame = encode(command_of({**HEADER.encode(), **fields}))
    for _ in range(40):  # perhaps its form is learnt meanwhile
        found = quick(frame, decoder)
        try:
            assert found is None or found == general(frame)
        except RemoteError as error:
            raise AssertionError(found) from error


def test_answers_remarks_and_bodies_are_left_to_the_general_decoder() -> None:
    command = command_of({**HEADER.encode()})
    decoder = learnt(encode(command))
    for odd in ({"flag": RESPONSE_FLAG}, {"remark": "x"}, {"body": b"x"}):
        assert quick(encode(replace(command, **odd)), decoder) is None


def test_layouts_of_one_connection_are_limited() -> None:
    decoder = EndDecoder()
    for number in range(2000):
        quick(frame_of(replace(HEADER, producer_group="g" * (number % 200 + 1))), decoder)
    assert len(decoder._layouts) <= 16
