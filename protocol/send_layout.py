"""Where a binary send has its fields: as one structure where they are as usual, else as a pattern.

    offset in the header
    0    5   code, language, version
    5    4   opaque
    9    4   flag
    13   4   remark length
    17   4   length of the fields
    21   n   fields a b c d                 each: a length of 2 bytes, name, one of 4, value
         8   name and value length of e
         q   e, the queue id                so many digits as in the send before
         15  f, the flags of the system     one digit, with names and lengths around it
         13  g, the born timestamp          milliseconds, as they are until the year 2286
         11  h, the flag                    one digit, with names and lengths around it
         4   length of i, the properties    which follow

One structure takes all of it at once.  Where one of e to h has another length, or is no plain
number, a regular expression says what they are; it allows any length.
"""

from functools import lru_cache
from re import DOTALL, escape
from re import compile as compile_pattern
from struct import Struct

PREFIX_BYTES = 5
FIXED = Struct(
    ">i"  # opaque
    "i"  # flag
    "i"  # remark length
    "i"  # length of the fields
)
HEAD_AT = PREFIX_BYTES + FIXED.size
assert HEAD_AT == 21

INT_DIGITS = 9
_LONG_DIGITS = 18
"""So many characters are always a number that fits; longer ones are for the general decoder."""

ENTRY_E = b"\x00\x01e\x00\x00\x00"
"""Before the queue id; its length, one byte, is behind it."""

NUMBERS = {b"%d" % number: number for number in range(1024)}
"""Queue ids as they are usually written."""

_DIGITS = range(10)
F_TO_G = {b"\x00\x01f\x00\x00\x00\x01%d\x00\x01g\x00\x00\x00\x0d" % n: n for n in _DIGITS}
H_TO_I = {b"\x00\x01h\x00\x00\x00\x01%d\x00\x01i" % n: n for n in _DIGITS}
"""What lies around the values of f and h, these among it, and which number that is."""

_BORN_DIGITS = 13
_USUAL_MAX = 1024


@lru_cache(maxsize=_USUAL_MAX)
def usual_header(head_bytes: int, queue_digits: int) -> Struct:
    """A header up to the properties, whose fields a to d are so long, and e of so many digits."""
    head = f"{PREFIX_BYTES}s iiii {head_bytes + len(ENTRY_E) + 1}s"
    f_to_g, h_to_i = (len(next(iter(between))) for between in (F_TO_G, H_TO_I))
    return Struct(f">{head} {queue_digits}s {f_to_g}s {_BORN_DIGITS}s {h_to_i}s I")


def _entry(name: bytes, usual_digits: int, most_digits: int) -> bytes:
    """An entry whose value is a number, as a regular expression.

    The length must be that of the number: a zero byte, of the next entry, lies just behind it.
    """
    others = [digits for digits in range(1, most_digits + 1) if digits != usual_digits]
    lengths = b"|".join(
        escape(bytes((digits,))) + rb"(?=[^\x00]{%d}\x00)" % digits
        for digits in (usual_digits, *others)
    )
    return rb"\x00\x01%b\x00\x00\x00(?:%b)(-?[0-9]+)" % (name, lengths)


MIDDLE = compile_pattern(
    _entry(b"e", 1, INT_DIGITS)
    + _entry(b"f", 1, INT_DIGITS)
    + _entry(b"g", _BORN_DIGITS, _LONG_DIGITS)
    + _entry(b"h", 1, INT_DIGITS)
    + rb"\x00\x01i(....)",
    DOTALL,
)
