"""The table of pieces in the answer to READ_RECORDS."""

from protocol.frame import FRAME_BYTES_MAX
from protocol.raw_records import (
    ANSWER_BYTES_MAX,
    PIECE,
    RECORD_BYTES_MAX,
    UNITS_ALONE_MAX,
    UNITS_MAX,
    piece_table,
)

UNIT_BYTES = 20


def test_a_table_has_offset_and_length_of_each_piece() -> None:
    assert piece_table([7, 1 << 40], [17, (1 << 40) + 5]) == (
        bytes.fromhex("0000000000000007 0000000a 0000010000000000 00000005")
    )
    assert piece_table([], []) == b""


def test_the_longest_answer_fits_into_a_frame() -> None:
    units_and_table = UNITS_MAX * (UNIT_BYTES + PIECE.size)
    assert max(ANSWER_BYTES_MAX, RECORD_BYTES_MAX) + units_and_table < FRAME_BYTES_MAX
    assert UNITS_ALONE_MAX * UNIT_BYTES < ANSWER_BYTES_MAX
