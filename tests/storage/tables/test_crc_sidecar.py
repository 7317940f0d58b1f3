"""The checksums beside a config file: what they tell, and what they do not claim."""

from random import Random
from zlib import crc32

import pytest

from storage.tables.crc_sidecar import Digest, Sidecar, without_flipped_bit

DATA = Random(1).randbytes(300)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def test_any_flipped_bit_is_corrected() -> None:
    digest = Digest.of(DATA)
    for bit in range(len(DATA) * 8):
        assert without_flipped_bit(flipped(DATA, bit), digest) == DATA


def test_more_than_one_flipped_bit_is_not_corrected() -> None:
    digest, random = Digest.of(DATA), Random(2)
    for _ in range(300):
        one, other = random.sample(range(len(DATA) * 8), 2)
        assert without_flipped_bit(flipped(flipped(DATA, one), other), digest) is None
    assert without_flipped_bit(DATA[:-1], digest) is None
    assert without_flipped_bit(DATA, digest) is None


def test_a_sidecar_is_readable_text() -> None:
    sidecar = Sidecar(Digest.of(b"new"), Digest.of(b"older"))
    data = sidecar.encode("topics.json")
    lines = data.decode().splitlines()
    assert lines[0] == f"topics.json 3 {crc32(b'new'):08x}"
    assert lines[1] == f"topics.json.bak 5 {crc32(b'older'):08x}"
    assert Sidecar.decode(data) == sidecar
    alone = Sidecar(Digest.of(b"new"))
    assert Sidecar.decode(alone.encode("topics.json")) == alone


def test_a_damaged_sidecar_is_ignored() -> None:
    data = Sidecar(Digest.of(b"new"), Digest.of(b"older")).encode("topics.json")
    for bit in range(len(data) * 8):
        assert Sidecar.decode(flipped(data, bit)) is None, bit
    for cut in range(len(data)):
        assert Sidecar.decode(data[:cut]) is None, cut


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"\xff" * 9, b"check 00000000\n"])
def test_an_invalid_sidecar_is_ignored(data: bytes) -> None:
    assert Sidecar.decode(data) is None
