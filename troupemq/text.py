"""Text on a terminal: how wide it is, and what must not reach it as it is."""

from unicodedata import category, combining, east_asian_width

_ESCAPED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, halves of surrogate pairs, and what breaks a line."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of all that follows, and marks that turn what is beside them."""


def escaped(text: str) -> str:
    """What others wrote, on one line: it moves no cursor and changes no colour."""
    if text.isprintable():
        return text
    return "".join(_escape(each) for each in text)


def _escape(each: str) -> str:
    if category(each) in _ESCAPED or each in _BIDI:
        return each.encode("unicode_escape").decode()
    return each


def escaped_json(text: str) -> str:
    """Return JSON with the same meaning that moves no cursor and changes no colour, either."""
    if text.isprintable():
        return text
    return "".join(
        f"\\u{ord(each):04x}" if each != "\n" and _escape(each) != each else each for each in text
    )


def one_line(text: str) -> str:
    """A remark of a server as a sentence: line breaks are blanks."""
    return escaped(" ".join(text.split()))


def escaped_lines(text: str) -> str:
    """A text of several lines, each of them escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def width_of(text: str) -> int:
    """Columns of a terminal: Chinese characters take two, accents none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(each: str) -> int:
    if combining(each) or category(each) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(each) in "WF" else 1


def padded(text: str, width: int, right: bool = False) -> str:
    """As wide as that, or wider: on the left side unless `right`."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks
