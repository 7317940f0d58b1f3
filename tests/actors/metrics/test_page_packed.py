"""Tests of actors/metrics/page.py: a long text is compressed as it is written."""

from actors.metrics.page import UNPACKED_BYTES, Packer


def test_a_text_is_compressed_and_read_back_in_pieces() -> None:
    packer, plain = Packer(), b""
    for number in range(200):
        piece = "".join(f'é{{i="{number}"}} {each}\n' for each in range(500))
        packer.add(piece)
        plain += piece.encode()
    made = packer.packed()
    pieces = [*made.unpacked()]
    assert b"".join(pieces) == plain and made.size == len(plain)
    assert max(map(len, pieces)) <= UNPACKED_BYTES < len(plain) / 2
    assert sum(map(len, made.parts)) < len(plain) / 4
