"""Attempts with bodies that unfold without end: A12, by every reader of ours and every codec.

The memory is what Python allocates: zlib's and Arrow's readers hand over what they have unfolded.
"""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from struct import pack
from zlib import compress

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from protocol.codes import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from protocol.compression import DECOMPRESSED_BYTES_MAX, CompressionError, decompress, inflate
from protocol.message import MessageRecord, decode_records, encode_record
from spark.decoding.decode import plain_body
from storage.dump.log import record_fields
from tests.security.inventors import unfolds
from tests.support.brokers import STORE, SimulatedBroker
from troupemq.client.message import MessageQueue, view_of

UNFOLDED_BYTES = 10 << 30
MADE_BYTES_MAX = DECOMPRESSED_BYTES_MAX + (8 << 20)
"""With the packed body, and the piece that is being made."""


def zstd(window_log: int, unfolded_bytes: int) -> bytes:
    """A frame of blocks that repeat one byte: four bytes for 128 KiB."""
    block_bytes = 128 << 10
    head = pack("<IBB", 0xFD2FB528, 0, (window_log - 10) << 3)
    block = pack("<I", block_bytes << 3 | 1 << 1)[:3] + b"\0"
    last = pack("<I", block_bytes << 3 | 1 << 1 | 1)[:3] + b"\0"
    return head + block * (unfolded_bytes // block_bytes - 1) + last


@cache
def lz4() -> bytes:
    """Return LZ4 data that decompresses to 1 MB: this codec reaches at most a factor of 255."""
    packed: bytes = pa.compress(bytes(250_000_000), codec="lz4", asbytes=True)
    return packed


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "zlib": (COMPRESSION_ZLIB, cache(lambda: unfolds(1 << 10))),
    "lz4": (COMPRESSION_LZ4, lz4),
    "zstd": (COMPRESSION_ZSTD, lambda: zstd(20, UNFOLDED_BYTES)),
    "zstd with a window of 2 GiB": (COMPRESSION_ZSTD, lambda: zstd(31, UNFOLDED_BYTES)),
}
"""The kind and the body: zlib makes 1 GiB of 1 MB, zstd 10 GiB of 320 kB."""


@pytest.fixture(params=BOMBS.values(), ids=[*BOMBS])
def record(request: pytest.FixtureRequest) -> MessageRecord:
    kind, make = request.param
    body = make()
    assert len(body) < 2 << 20
    return MessageRecord("Topic", body, sys_flag=COMPRESSED | kind)


def made_bytes(read: Callable[[], object]) -> int:
    """The most that there was at once."""
    tracemalloc.start()
    try:
        read()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most


@pytest.mark.heavy
def test_a12_a_client_decompresses_up_to_a_limit_with_an_error(record: MessageRecord) -> None:
    """The console and the commands read bodies as clients do."""
    view = view_of(record, MessageQueue("Topic", "broker-a", 0))

    def read() -> None:
        with pytest.raises(CompressionError, match=r"longer than 67108864 bytes|cannot be read"):
            view.body  # noqa: B018

    assert made_bytes(read) < MADE_BYTES_MAX


@pytest.mark.heavy
def test_a12_a_dump_shows_the_stored_body(record: MessageRecord) -> None:
    (stored,) = decode_records(encode_record(record))
    assert made_bytes(lambda: record_fields(stored, 0)) < 16 << 20


@pytest.mark.heavy
def test_a12_spark_omits_the_body(record: MessageRecord) -> None:
    def read() -> None:
        assert plain_body(record.body, record.sys_flag) is None

    assert made_bytes(read) < MADE_BYTES_MAX


def test_a12_a_broker_delivers_a_body_as_received(record: MessageRecord) -> None:
    store = replace(STORE, commit_log_file_bytes=4 << 20)
    made = SimulatedBroker(1, store_config=store)
    made.make_topic()

    def attempt() -> None:
        assert made.send(record.body, sys_flag=record.sys_flag).code == 0
        made.system.advance(1000)
        (answer,) = decode_records(bytes(made.pull().body or b""))
        assert answer.body == record.body

    assert made_bytes(attempt) < 32 << 20


def test_a12_bodies_within_the_limit_are_decompressed_by_every_codec() -> None:
    """So that the attempts above are refused for their length."""
    body = bytes(1 << 20)
    assert plain_body(zstd(20, len(body)), COMPRESSED | COMPRESSION_ZSTD) == body
    packed: bytes = pa.compress(body, codec="lz4", asbytes=True)
    assert plain_body(packed, COMPRESSED | COMPRESSION_LZ4) == body
    assert decompress(compress(body), COMPRESSED | COMPRESSION_ZLIB) == body


@pytest.mark.parametrize("size", [0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9 << 20])
def test_a12_a_body_at_the_limit_is_read_and_one_byte_more_is_refused(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    packed = compress(body, 1)
    assert inflate(packed, size) == body
    for cut in (packed[:-1], packed[:-4], packed[:2]):
        with pytest.raises(CompressionError, match="cut off"):
            inflate(cut, size + 1)
    if size:
        with pytest.raises(CompressionError, match=f"longer than {size - 1} bytes"):
            inflate(packed, size - 1)
