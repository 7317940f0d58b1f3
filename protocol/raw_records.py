"""Units of a queue and chunks of the log in one body: answers to READ_RECORDS and READ_UNITS.

All integers big-endian.

    bytes            what                                                counted by
    20 · unitCount   units, as they lie in the consume queue             unitCount
    12 · pieceCount  a table of pieces, in the order of the log          pieceCount
    the rest         the bytes of the pieces, one behind the other

    one piece of the table:
    offset  size  type  field
    0       8     i64   physical_offset   of its first byte
    8       4     i32   piece_bytes

A record that a unit points to is whole in one piece. The first unit whose record is in the log has
it here. A later unit without a record ends the usable part of the answer, and is requested again.
With permission for all topics, pieces may contain records of other queues. So a reader uses only
bytes that a unit points to, and compares each record with its unit.
"""

from collections.abc import Sequence
from itertools import chain
from operator import sub
from struct import Struct, pack

from protocol.frame import FRAME_BYTES_MAX

ANSWER_BYTES = 1 << 20
"""Default log bytes in one answer."""

ANSWER_BYTES_MAX = 4 << 20
"""Maximum log bytes in one answer; longer ones cost memory at both ends and save nothing."""

RECORD_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)
"""Maximum size of the first record, which may exceed the requested bytes; the rest is for units."""

UNITS_MAX = 8192
"""Maximum units of an answer with records, as many as the rows of a batch of the data source."""

UNITS_ALONE_MAX = 32_768
"""Maximum units of an answer without records: 640 KiB."""

PIECE = Struct(
    ">q"  # physical_offset
    "i"  # piece_bytes
)
assert PIECE.size == 12


def piece_table(lows: Sequence[int], highs: Sequence[int]) -> bytes:
    """Return the table of the pieces [low, high) of the log."""
    fields = chain.from_iterable(zip(lows, map(sub, highs, lows), strict=True))
    return pack(">" + "qi" * len(lows), *fields)
