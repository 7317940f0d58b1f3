"""Batch bodies, compressed bodies and checksums."""

from random import Random
from struct import pack
from zlib import compress as zlib_compress

import pytest

from protocol.batch import (
    DECODED_MAX,
    BatchMessage,
    decode_batch,
    encode_batch,
)
from protocol.codes import ResponseCode
from protocol.compression import CompressionError, compress, decompress, inflate
from protocol.errors import RemoteError
from protocol.message import body_crc, crc32c
from tests.protocol.vectors import BATCH_BODY

CASES = {
    "two of the original": ([BatchMessage(b"b1"), BatchMessage(b"b2")], BATCH_BODY),
    "nothing": ([], b""),
    "one with everything": (
        [BatchMessage(b"x", b"TAGS\x01d", 7)],
        pack(">iiiii", 29, 0, 0, 7, 1) + b"x" + pack(">h", 6) + b"TAGS\x01d",
    ),
    "one with nothing": ([BatchMessage(b"")], pack(">iiiiih", 22, 0, 0, 0, 0, 0)),
}


@pytest.mark.parametrize(("messages", "body"), CASES.values(), ids=CASES.keys())
def test_a_batch_is_messages_in_a_row(messages: list[BatchMessage], body: bytes) -> None:
    assert encode_batch(messages) == body
    assert decode_batch(body) == messages
    assert decode_batch(memoryview(body)) == messages


@pytest.mark.parametrize("odd", [None, 0, 5, 31])
def test_messages_of_one_length_are_read_as_others_are(odd: int | None) -> None:
    messages = [BatchMessage(b"body %2d" % each, b"TAGS\x01%2d" % each, each) for each in range(32)]
    if odd is not None:  # its message is as long as the others, its body and properties are not
        messages[odd] = BatchMessage(b"shorter", b"TAGS\x01more", odd)
    assert decode_batch(encode_batch(messages)) == messages


BROKEN = {
    "every cut": [BATCH_BODY[:end] for end in range(1, len(BATCH_BODY)) if end != 24],
    "a negative body": [pack(">iiiiih", 22, 0, 0, 0, -1, 0)],
    "negative properties": [pack(">iiiiih", 22, 0, 0, 0, 0, -1)],
    "a body beyond the end": [pack(">iiiiih", 22, 0, 0, 0, 500, 0)],
    "text": [b"this is no batch at all"],
}


@pytest.mark.parametrize("bodies", BROKEN.values(), ids=BROKEN.keys())
def test_an_invalid_batch_is_the_peers_error(bodies: list[bytes]) -> None:
    for body in bodies:
        with pytest.raises(RemoteError) as caught:
            decode_batch(body)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        assert "BufferUnderflow" in caught.value.remark


def test_batch_of_a_megabyte_of_small_messages_is_read() -> None:
    """RocketMQ's example SplitBatchProducer sends such a batch; a limit of 8,192 refused it."""
    messages = [
        BatchMessage(
            b"Hello world %d" % each, b"KEYS\x01OrderID%d\x02UNIQ_KEY\x01%032x" % (each, each)
        )
        for each in range(11_700)
    ]
    assert decode_batch(encode_batch(messages)) == messages


@pytest.mark.heavy
def test_batch_of_more_messages_than_a_client_can_send_is_refused() -> None:
    with pytest.raises(RemoteError, match="at the most") as caught:
        decode_batch(encode_batch([BatchMessage(b"")] * (DECODED_MAX + 1)))
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_properties_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="32767"):
        encode_batch([BatchMessage(b"", b"x" * 32_768)])


def test_a_body_is_compressed_as_by_a_client() -> None:
    body = b"abc" * 3000
    packed, sys_flag = compress(body, 0x4)
    assert sys_flag == 769 | 0x4
    assert len(packed) < 100
    assert decompress(packed, sys_flag) == body
    assert decompress(packed, 1) == body, "no type bits mean ZLIB: old clients"
    assert decompress(packed, 0) is packed


def test_bodies_of_other_codecs_and_invalid_ones_are_errors() -> None:
    with pytest.raises(CompressionError, match="LZ4"):
        decompress(b"x", 0x101)
    with pytest.raises(CompressionError, match="ZSTD"):
        decompress(b"x", 0x201)
    with pytest.raises(CompressionError, match="unknown"):
        decompress(b"x", 0x701)
    with pytest.raises(CompressionError, match="broken"):
        decompress(b"not zlib", 0x301)
    with pytest.raises(CompressionError, match="cut off"):
        inflate(zlib_compress(b"x" * 1000)[:-5])


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 300_000, 5 << 20])
def test_a_body_longer_than_a_piece_is_decompressed_completely(size: int) -> None:
    for body in (Random(1).randbytes(size), bytes(size), b"ab" * (size // 2)):
        packed = zlib_compress(body)
        assert inflate(packed) == body and inflate(packed + b"behind it") == body
        for cut in (1, len(packed) // 2, len(packed) - 1):
            with pytest.raises(CompressionError, match="cut off"):
                inflate(packed[:cut])


def test_decompression_is_bounded() -> None:
    bomb = zlib_compress(bytes(1 << 20))
    assert len(inflate(bomb, 1 << 20)) == 1 << 20
    with pytest.raises(CompressionError, match="longer"):
        inflate(bomb, (1 << 20) - 1)


def test_a_body_crc_has_31_bits_and_a_manifest_crc_32() -> None:
    assert body_crc(b"t1 body 0") == 1341883712
    assert body_crc(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(memoryview(b"12345"))) == 0xE3069283
