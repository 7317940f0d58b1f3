"""Whatever is written is read back: frames, records, properties, batches, bodies of any shape."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.batch import BatchMessage, decode_batch, encode_batch
from protocol.codes import LanguageCode, SerializeType
from protocol.errors import FrameError
from protocol.fastjson import dumps, loads
from protocol.fastjson_limits import FastjsonError
from protocol.frame import RemotingCommand, encode
from protocol.message import MessageRecord, RecordError, decode_record, encode_record, scan_head
from protocol.properties import format, parse
from protocol.stream import CommandStream
from protocol.tags import java_hash_code

settings.register_profile("here", derandomize=True, max_examples=60, deadline=None)
here = settings.get_profile("here")

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(max_size=30)
WORD = st.text(min_size=1, max_size=20)


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    kind = draw(st.sampled_from(list(map(int, SerializeType))))
    binary = kind == SerializeType.ROCKETMQ
    short = st.integers(-(1 << 15), (1 << 15) - 1) if binary else INT
    fields = st.dictionaries(WORD if binary else TEXT, WORD if binary else TEXT, max_size=5)
    languages = [int(code) for code in LanguageCode if code != LanguageCode.GO]
    return RemotingCommand(
        draw(short),
        draw(st.none() | (fields.filter(bool) if binary else fields)),
        draw(st.none() | st.binary(min_size=1, max_size=50)),
        draw(INT),
        draw(INT),
        draw(st.none() | (WORD if binary else TEXT)),
        draw(st.sampled_from(languages)),
        draw(short),
        kind,
    )


@pytest.mark.heavy
@settings(here)
@given(st.lists(commands(), max_size=4), st.integers(1, 40))
def test_commands_survive_any_stream(sent: list[RemotingCommand], piece_bytes: int) -> None:
    stream = b"".join(map(encode, sent))
    buffer = CommandStream()
    received: list[RemotingCommand] = []
    for start in range(0, len(stream), piece_bytes):
        received += buffer.receive(stream[start : start + piece_bytes])
    assert received == sent


@pytest.mark.heavy
@settings(here)
@given(commands(), st.data())
def test_a_frame_with_a_changed_byte_is_decoded_or_refused(
    command: RemotingCommand, data: st.DataObject
) -> None:
    wire = bytearray(encode(command))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(CommandStream().receive(bytes(wire)))
    except FrameError as error:
        assert error.remark


@st.composite
def records(draw: st.DrawFn) -> MessageRecord:
    sys_flag = draw(st.integers(0, 0x7FF))
    born_bytes, store_bytes = (20 if sys_flag & bit else 8 for bit in (0x10, 0x20))
    return MessageRecord(
        topic=draw(st.text(max_size=30)),
        body=draw(st.binary(max_size=100)),
        properties=draw(st.binary(max_size=100)),
        queue_id=draw(INT),
        queue_offset=draw(LONG),
        physical_offset=draw(LONG),
        flag=draw(INT),
        sys_flag=sys_flag,
        born_timestamp=draw(LONG),
        born_host=draw(st.binary(min_size=born_bytes, max_size=born_bytes)),
        store_timestamp=draw(LONG),
        store_host=draw(st.binary(min_size=store_bytes, max_size=store_bytes)),
        reconsume_times=draw(INT),
        prepared_transaction_offset=draw(LONG),
    )


@settings(here)
@given(records())
def test_a_record_is_read_back(record: MessageRecord) -> None:
    data = encode_record(record)
    back = decode_record(data)
    assert back.record_bytes == len(data)
    record.record_bytes, record.body_crc = back.record_bytes, back.body_crc
    assert back == record
    assert scan_head(data, 0).topic == record.topic.encode()


@settings(here)
@given(records(), st.data())
def test_a_damaged_record_is_decoded_or_refused(record: MessageRecord, data: st.DataObject) -> None:
    damaged = bytearray(encode_record(record))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = damaged[: data.draw(st.integers(0, len(damaged)))]
    for buffer in (damaged, cut):
        try:
            assert decode_record(buffer).record_bytes <= len(buffer)
            assert scan_head(buffer, 0).record_bytes <= len(buffer)
        except RecordError:
            pass


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1)


@settings(here)
@given(st.dictionaries(PLAIN, PLAIN, max_size=6))
def test_properties_are_read_back(properties: dict[str, str]) -> None:
    assert parse(format(properties)) == properties
    assert parse(format(properties) + b"\x02") == properties


@settings(here)
@given(st.lists(st.builds(BatchMessage, st.binary(max_size=40), st.binary(max_size=40), INT)))
def test_a_batch_is_read_back(messages: list[BatchMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


SCALARS = st.booleans() | LONG | TEXT | st.floats(allow_nan=False, allow_infinity=False)
OBJECT_KEYS = st.dictionaries(WORD, INT | TEXT, min_size=1, max_size=3).map(
    lambda pairs: tuple(sorted(pairs.items()))
)
KEYS = st.text(max_size=10).filter(lambda key: key != "$ref") | LONG | OBJECT_KEYS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.heavy
@settings(here)
@given(VALUES)
def test_the_reader_reads_the_writers_output(value: object) -> None:
    assert loads(dumps(value)) == value
    assert loads(dumps(value, pretty=True)) == value
    assert loads(dumps(value, browser_compatible=False, sort_keys=False).decode()) == value


@settings(here)
@given(st.text(st.sampled_from(list("{}[]\":,'\\u01aet$.-+ \n/*")), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        loads(text)
    except FastjsonError as error:
        assert str(error)


@settings(here)
@given(st.text(max_size=40))
def test_a_hash_equals_the_reference_algorithm(text: str) -> None:
    data = text.encode("utf-16-be")
    units = [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]
    total = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    assert java_hash_code(text) == (total + (1 << 31)) % (1 << 32) - (1 << 31)
