"""Readers of fuzz inputs: how each decoder is called, and how its value is used."""

from collections.abc import Callable, Mapping
from sys import maxsize

from actors.naming.table_limits import check_topics
from actors.sending.property_rewriter import PropertyShapes
from protocol.bloom import BloomFilter, murmur3_first_64
from protocol.codes import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from protocol.compression import decompress
from protocol.end_wire import EndDecoder
from protocol.errors import FrameError
from protocol.fastjson import dumps, loads
from protocol.fastjson_limits import SHORT_NODES_MAX
from protocol.frame import decode_frame, encode
from protocol.headers.fields import Header
from protocol.host import network_of
from protocol.json_body import Body
from protocol.message import (
    decode_record,
    encode_record,
    scan_head,
)
from protocol.message_id import is_offset_message_id
from protocol.properties import pairs_of, parse
from protocol.registration import read_registration
from protocol.send_wire import SendDecoder
from protocol.signature import SecretKey, signed_values
from protocol.sink import (
    is_query_name,
    may_be_of_sink,
    parse_mark,
)
from protocol.sql92 import compile_filter
from protocol.stream import CommandStream, Stream
from protocol.table_rules import key_fault
from protocol.tags import java_hash_code, tags_code
from protocol.topic_names import group_name_fault, is_legal_name, is_system_topic, topic_name_fault

FRAME_BYTES_MAX = 1 << 20
SHORT_BYTES = 4 << 10
UNFOLDED_BYTES_MAX = 4 << 20
"""Limit of decompressed bytes: callers set it, so the decoder promises none."""


# --- frames


def read_frame(data: bytes) -> object:
    command = decode_frame(data)
    return encode(command)


def read_stream(data: bytes) -> object:
    stream = Stream(FRAME_BYTES_MAX, SendDecoder(), maxsize, EndDecoder())
    step = 1 + len(data) // 3
    events = []
    for at in range(0, len(data), step):
        events += stream.receive(data[at : at + step])
        while stream.has_more:
            events += stream.more()
        if events and isinstance(events[-1], FrameError):
            break
    return events


def read_answers(data: bytes) -> object:
    """Read what a client does in turns, here of three answers."""
    stream = CommandStream(3)
    commands = [*stream.receive(data)]
    while stream.has_more:
        commands += stream.more()
    return commands


def read_send(data: bytes) -> object:
    return SendDecoder().general(decode_frame(data))


def read_end(data: bytes) -> object:
    """Learn the header, then decode it by what was learnt."""
    decoder = EndDecoder()
    return [decoder.decode(data, 0, len(data)) for _ in range(2)]


def read_signed(data: bytes) -> object:
    found = parse(data)
    key = SecretKey("12345678")
    values = signed_values(found)
    return key.has_signed(data[:28], values, data), key.has_sealed(10, found, data)


# --- texts and bodies


def read_json(data: bytes, nodes_max: int | None) -> object:
    """Read it, and write it: in all forms if it is short."""
    value = loads(data, nodes_max)
    text = dumps(value)
    if len(data) < SHORT_BYTES:
        loads(text)
        loads(dumps(value, pretty=True))
        dumps(value, browser_compatible=True, sort_keys=True)
    return text


def read_of_json(convert: Callable[[object], object], data: bytes) -> object:
    return convert(loads(data, SHORT_NODES_MAX))


def read_body(kind: type[Body], data: bytes) -> object:
    return kind.decode(data).encode()


def read_header(decode: Callable[[Mapping[str, str]], Header], data: bytes) -> object:
    return decode(parse(data)).encode()


def read_registered(version: int, data: bytes, *, compressed: bool = False) -> object:
    found = read_registration(data, version, compressed=compressed, check_topics=check_topics)
    return [len(each) for each in found.slices]


def read_expression(data: bytes) -> object:
    text, _, properties = data.partition(b"\0")
    matches = compile_filter(text.decode("utf-8", "replace"))
    return matches(parse(properties))


def read_names(text: str) -> object:
    legal = is_legal_name(text), topic_name_fault(text), group_name_fault(text), key_fault(text)
    return legal, is_system_topic(text), network_of(text), is_offset_message_id(text)


def read_hashes(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    positions = BloomFilter.of().positions(text, text)
    return murmur3_first_64(data), positions, java_hash_code(text), tags_code(text)


# --- what lies in bodies


def read_record(data: bytes) -> object:
    head = scan_head(data, 0)
    return head, encode_record(decode_record(data, check_crc=False))


def read_shapes(data: bytes) -> object:
    shapes = PropertyShapes()
    pairs = pairs_of(data)
    shapes.learn(data, pairs)
    return shapes.cut(data)


def read_marks(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    return parse_mark(data), may_be_of_sink(data), is_query_name(text)


def of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def read_compressed(data: bytes) -> object:
    kinds = (COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0)
    sys_flag = COMPRESSED | kinds[data[0] & 3] if data else COMPRESSED
    return decompress(data[1:], sys_flag, UNFOLDED_BYTES_MAX)
