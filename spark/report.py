"""Text tables of a job's report, with readable numbers and times."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

Report: TypeAlias = dict[str, Any]
"""Report of a job as JSON values; spark/jobs/__init__.py lists its keys."""

Row = Mapping[str, object]

_DURATIONS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def text_table(rows: Sequence[Row], headings: Mapping[str, str]) -> Iterator[str]:
    """Return a heading line and a line per row; `headings` maps keys of rows to headings."""
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
    """Return a value as text for a table."""
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
    """Return a duration with a fitting unit, such as 3.5 h or 20 ms."""
    for unit_ms, unit in _DURATIONS:
        if abs(ms) >= unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms:.0f} ms"


def moment(ms: int) -> str:
    """Return a UTC time to the second."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a head is under no checksum
        return str(ms)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
