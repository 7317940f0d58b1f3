"""A job's report for people: tables of text, numbers and times as one reads them."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

Report: TypeAlias = dict[str, Any]
"""What a job returns: what JSON can hold; spark/jobs/__init__.py says what is in it."""

Row = Mapping[str, object]

_DURATIONS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def text_table(rows: Sequence[Row], headings: Mapping[str, str]) -> Iterator[str]:
    """A line of headings and one for each row; `headings`: keys of the rows, and what they are."""
    cells = [[cell(row.get(key)) for key in headings] for row in rows]
    columns = list(zip(headings.values(), *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [any(_is_number(row.get(key)) for row in rows) for key in headings]
    for line in ([*headings.values()], *cells):
        parts = zip(line, widths, right, strict=True)
        yield "  ".join(
            f"{text:>{width}}" if is_right else f"{text:{width}}" for text, width, is_right in parts
        ).rstrip()


def cell(value: object) -> str:
    """A value as a table shows it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def duration(ms: float) -> str:
    """Some time as one says it: 3.5 h, 20 ms."""
    for unit_ms, unit in _DURATIONS:
        if abs(ms) >= unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms:.0f} ms"


def moment(ms: int) -> str:
    """A UTC time to the second."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a head is under no checksum
        return str(ms)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
