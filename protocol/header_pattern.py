"""Parts that the fast decoders share: the head of a binary header, numbers among its fields.

    0    5   code, language, version
    5    4   opaque
    9    4   flag
    13   4   remark length
    17   4   length of the fields
    21   n   fields                         each: a length of 2 bytes, name, one of 4, value

The values are text, numbers too.
"""

from re import escape
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
LONG_DIGITS = 18
"""So many characters are always a number that fits; longer ones are for the general decoder."""


def number_field(
    name: str, usual_digits: int, most_digits: int, *, may_be_negative: bool = False
) -> bytes:
    """A field whose value is a number, as a regular expression with the number as its group.

    The length must be that of the number: a zero byte, of the next field, lies just behind it.
    """
    others = [digits for digits in range(1, most_digits + 1) if digits != usual_digits]
    lengths = b"|".join(
        escape(bytes((digits,))) + rb"(?=[^\x00]{%d}\x00)" % digits
        for digits in (usual_digits, *others)
    )
    start = escape(len(name).to_bytes(2) + name.encode() + bytes(3))
    return rb"%b(?:%b)(%b[0-9]+)" % (start, lengths, b"-?" if may_be_negative else b"")
