"""Java's properties format, used by broker.conf and namesrv.conf.

    a line               key, then `=`, `:` or blanks, then the value
    # or !               first on a line: a comment
    \\ at a line's end    the value continues on the next line, without its leading blanks
    \\t \\n \\r \\f \\uXXXX  characters; before any other character \\ stands for that one

Source: java.util.Properties.load. Trailing blanks of values are dropped here; Java keeps them.
"""

from collections.abc import Iterator, Mapping
from string import hexdigits

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\"} | {value: f"\\{name}" for name, value in _ESCAPES.items()}
_ENDS_A_KEY = "=: #!"
"""Characters that end a key or begin a comment."""
_UNICODE_DIGITS = 4
_HIGH_SURROGATE, _SURROGATES_END = "\ud800", "\udfff"


def parse_properties(text: str) -> dict[str, str]:
    """Return every key with its value, in the order of the file; the last of equal keys counts.

    Raises ValueError for a broken \\uXXXX, as Java does, and for half a surrogate pair.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        end = _key_end(line)
        rest = line[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        found[_unescape(line[:end])] = _unescape(rest).rstrip(_BLANKS)
    return found


def format_properties(values: Mapping[str, str]) -> str:
    """Return one `key=value` line per setting: the answer to a request for a server's settings."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in values.items())


def format_property(key: str, value: str) -> str:
    """Return one line that parses to this key and value, whatever characters they have."""
    name = "".join(f"\\{each}" if each in _ENDS_A_KEY else _escape(each) for each in key)
    return f"{name}={_escape(value)}\n"


def updated_properties(text: str, changes: Mapping[str, str]) -> str:
    """Return `text` with these settings; comments, order and all other lines stay.

    The last line of a key gets the new value, as it is the one that counts. A new key is
    appended. Raises ValueError if any other setting would change.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    spans: dict[str, tuple[int, int]] = {}
    start = last = end = 0
    while start < len(lines):
        end = _last_line(lines, start)
        for key in parse_properties("\n".join(lines[start : end + 1])):
            spans[key] = (start, end)
        last, start = start, end + 1
    if _ends_open(lines[end]) and _last_line([*lines, ""], last) > end:
        lines.append("")  # else an added line would continue it
    elif last == end and not lines[-1].strip():
        lines.pop()
    added = [_line(key, value) for key, value in changes.items() if key not in spans]
    for key in changes.keys() & spans.keys():
        first, last = spans[key]
        spaced = " = " if " = " in lines[first] else "="
        lines[first : last + 1] = [_line(key, changes[key], spaced)] + [""] * (last - first)
    updated = "\n".join([*lines, *added, ""])
    wanted = {key: value.rstrip(_BLANKS) for key, value in changes.items()}
    if parse_properties(updated) != {**parse_properties(text), **wanted}:
        raise ValueError("cannot add a setting to the settings file: its last lines are malformed")
    return updated


def _last_line(lines: list[str], start: int) -> int:
    """Return the last line of the logical line that begins here."""
    natural = lines[start].lstrip(_BLANKS)
    if not natural or natural[0] in "#!":
        return start
    while _ends_open(lines[start]) and start + 1 < len(lines):
        start += 1
    return start


def _line(key: str, value: str, equals: str = "=") -> str:
    return f"{key}{equals}{_escape(value)}"


def _escape(value: str) -> str:
    """Return the value escaped; Java, which reads Latin-1, parses it back, too."""
    text = "".join(
        _ESCAPED.get(each) or (each if each.isascii() else _unicode(each)) for each in value
    )
    return f"\\{text}" if text[:1] == " " else text


def _unicode(character: str) -> str:
    """Return one escape, or two for a surrogate pair."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _logical_lines(text: str) -> Iterator[str]:
    pending: list[str] = []
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = natural.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        if _ends_open(line):
            pending.append(line[:-1])
            continue
        yield "".join([*pending, line])
        pending.clear()
    if pending:
        yield "".join(pending)


def _ends_open(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _key_end(line: str) -> int:
    escaped = False
    for position, character in enumerate(line):
        if not escaped and (character in _BLANKS or character in "=:"):
            return position
        escaped = not escaped and character == "\\"
    return len(line)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            out.append(character)
            continue
        escaped = next(characters, "")
        if escaped == "u":
            digits = "".join(next(characters, "") for _ in range(_UNICODE_DIGITS))
            if len(digits) < _UNICODE_DIGITS or not set(digits) <= set(hexdigits):
                raise ValueError(f"broken \\u{digits}")
            out.append(chr(int(digits, 16)))
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return _joined("".join(out))


def _joined(text: str) -> str:
    """Join surrogate pairs: Java writes characters beyond U+FFFF as such pairs."""
    if all(not _HIGH_SURROGATE <= each <= _SURROGATES_END for each in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16")
