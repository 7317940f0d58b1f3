"""Items of a dump, each a few named values, printed as text or as JSON."""

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
