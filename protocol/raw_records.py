"""Units of a queue and pieces of the log in one body: the answers to READ_RECORDS and READ_UNITS.

All integers big-endian.

    bytes            what                                                counted by
    20 · unitCount   units, as they lie in the consume queue             unitCount
    12 · pieceCount  a table of pieces, in the order of the log          pieceCount
    the rest         the bytes of the pieces, one behind the other

    one piece of the table:
    offset  size  type  field
    0       8     i64   physical_offset   of its first byte
    8       4     i32   piece_bytes

A record that a unit points to is in the piece that covers it whole. The first unit whose record
lies in the log has it here; a later one that has not ends what may be used of the answer, and is
asked for again. Pieces may have bytes between records that belong to other queues (for who may see
everything): a reader trusts nothing but what a unit points to, and compares each record with its
unit.
"""

from collections.abc import Sequence
from itertools import chain
from operator import sub
from struct import Struct, pack

from protocol.frame import FRAME_BYTES_MAX

ANSWER_BYTES = 1 << 20
"""Of the log in one answer, where a reader does not say how many."""

ANSWER_BYTES_MAX = 4 << 20
"""The same at the most: a longer answer costs more memory at both ends and saves nothing."""

RECORD_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)
"""Of the first record of an answer, which may be longer than asked: the rest is for units."""

UNITS_MAX = 8192
"""Of one answer with records: as many rows as a batch of the data source has."""

UNITS_ALONE_MAX = 32_768
"""Of one answer without: 640 KiB."""

PIECE = Struct(
    ">q"  # physical_offset
    "i"  # piece_bytes
)
assert PIECE.size == 12


def piece_table(lows: Sequence[int], highs: Sequence[int]) -> bytes:
    """The table of the pieces [low, high) of the log."""
    fields = chain.from_iterable(zip(lows, map(sub, highs, lows), strict=True))
    return pack(">" + "qi" * len(lows), *fields)
