"""Items of a dump, each a few named values, printed as text or as JSON."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from storage.errors import reason_of
from storage.files.disk import Disk, DiskFile

BODY_CHARS_MAX = 400
"""Characters of a text that are shown, with the number of the rest."""
_HEX_BYTES_MAX = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX = 253_402_300_799_999
"""End of the year 9999."""


class Item(NamedTuple):
    kind: str
    """Kind of the item in a word, such as `record`, `unit` or `end`."""
    fields: dict[str, object]
    counted: bool = False
    """Whether a limit of items counts it; headers and sums are always shown."""


class DumpError(Exception):
    """A file that cannot be shown; the text gives the reason in one sentence."""


def utc(time_ms: int) -> str:
    """Return a time in ms since 1970 as text, or the number itself outside the range."""
    if not 0 < time_ms <= _TIME_MS_MAX:
        return str(time_ms)
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def plain(text: str) -> str:
    """Return `text` with terminal control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shortened(data: bytes) -> str:
    """Return bytes as text if they are text, else in hex, with a note about omitted ones."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and sum(char.isprintable() or char in "\r\n\t" for char in text) == len(text):
        more = len(text) - BODY_CHARS_MAX
        shown = plain(text[:BODY_CHARS_MAX])
        return f"{shown} … {more} characters more" if more > 0 else shown
    more = len(data) - _HEX_BYTES_MAX
    shown = "0x" + data[:_HEX_BYTES_MAX].hex() if data else ""
    return f"{shown} … {more} bytes more" if more > 0 else shown


def opened(disk: Disk, path: str) -> DiskFile:
    """Return the file, open for reading. Raise DumpError."""
    try:
        return disk.open(path, read_only=True)
    except OSError as error:
        raise DumpError(f"Cannot read {path}: {reason_of(error)}.") from error


def first_nonzero(file: DiskFile, position: int, end: int) -> int | None:
    """Return the position of the next nonzero byte before `end`, or None."""
    while position < end:
        found = file.data_after(position)
        if found is None or found >= end:
            return None
        position = max(position, found)
        data = file.pread(min(1 << 18, end - position), position)
        if not data:
            return None
        rest = data.lstrip(b"\0")
        if rest:
            return position + len(data) - len(rest)
        position += len(data)
    return None


_INDENT = "    "
_PLAIN_WORDS = {"record", "unit", "entry", "extension", "transaction", "queue", "file"}
"""Kinds with many items in a row: one line each, except for records."""


def lines_of(items: Iterable[Item]) -> Iterator[str]:
    """Yield the lines without line ends."""
    for item in items:
        if item.kind == "record":
            yield from _record(item.fields)
        elif item.kind == "content":
            for line in str(item.fields["text"]).split("\n"):
                yield plain(line.expandtabs(4))
        elif item.counted or item.kind in _PLAIN_WORDS:
            yield f"{item.kind} {_pairs(item.fields)}"
        else:
            yield from _block(item)


def _pairs(fields: dict[str, object]) -> str:
    return "  ".join(f"{_word(name)} {_value(value)}" for name, value in fields.items())


def _block(item: Item) -> Iterator[str]:
    """Yield a header or a sum: one value a line, or all in one line if short."""
    text = _pairs(item.fields)
    if len(text) < 80:
        yield f"{item.kind}: {text}"
        return
    yield f"{item.kind}:"
    for name, value in item.fields.items():
        yield f"{_INDENT}{_word(name)}: {_value(value)}"


def _record(fields: dict[str, object]) -> Iterator[str]:
    yield (
        f"record {fields['offset']}  {fields['bytes']} bytes  topic {fields['topic']}  "
        f"queue {fields['queue_id']}  queue offset {fields['queue_offset']}"
    )
    if "says_offset" in fields:
        yield f"{_INDENT}damaged: its own offset is {fields['says_offset']}"
    yield f"{_INDENT}stored {fields['stored']} by {fields['store_host']}"
    yield f"{_INDENT}born {fields['born']} by {fields['born_host']}"
    rest = []
    if flags := fields["flags"]:
        rest.append(_value(flags))
    for name in ("flag", "reconsume_times", "prepared_offset"):
        if fields[name]:
            rest.append(f"{_word(name)} {fields[name]}")
    if rest:
        yield f"{_INDENT}{'  '.join(rest)}"
    properties = fields["properties"]
    if isinstance(properties, dict) and properties:
        yield f"{_INDENT}properties " + "  ".join(f"{k}={v}" for k, v in properties.items())
    yield f"{_INDENT}body {fields['body_bytes']} bytes, CRC {fields['crc']}: {fields['body']}"


def _word(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return plain(str(value))
