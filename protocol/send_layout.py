"""The positions of the fields in the binary header of a send: a struct as a rule, else a pattern.

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
from re import DOTALL
from re import compile as compile_pattern
from struct import Struct

from protocol.header_pattern import INT_DIGITS, LONG_DIGITS, PREFIX_BYTES, number_field

ENTRY_E = b"\x00\x01e\x00\x00\x00"
"""Before the queue id; its length, one byte, is behind it."""

NUMBERS = {b"%d" % number: number for number in range(1024)}
"""Queue ids as they are usually written."""

DIGITS = [b"%d" % number for number in range(10)]
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


MIDDLE = compile_pattern(
    number_field("e", 1, INT_DIGITS, may_be_negative=True)
    + number_field("f", 1, INT_DIGITS, may_be_negative=True)
    + number_field("g", _BORN_DIGITS, LONG_DIGITS, may_be_negative=True)
    + number_field("h", 1, INT_DIGITS, may_be_negative=True)
    + rb"\x00\x01i(....)",
    DOTALL,
)
