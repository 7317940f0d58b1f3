"""Report of a job: text tables with readable numbers and times, line charts as one HTML page.

The page is self-contained, with inline SVG.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
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


WIDTH, HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 12, 12, 28
SERIES_MAX = 10
"""Maximum lines of a chart that stay distinguishable."""

_COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
    "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22",
)  # fmt: skip

_STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:960px}h1{font-size:1.4em}"
    "h2{font-size:1.1em;margin-bottom:.3em}svg text{font:11px sans-serif;fill:#555}"
    ".key{margin:0 1em .4em 0;display:inline-block}.key i{display:inline-block;width:1em;"
    "height:.6em;margin-right:.4em}"
)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over UTC time: points (ms, value) in order of time, with values from 0 up."""

    title: str
    series: Mapping[str, Sequence[Point]]


def write_page(path: Path, title: str, charts: Sequence[Chart]) -> None:
    """Write a page, replacing the previous one atomically."""
    body = "".join(_section(chart) for chart in charts)
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _section(chart: Chart) -> str:
    lines = sorted(chart.series.items(), key=lambda each: -max(y for _, y in each[1]))
    shown = lines[:SERIES_MAX]
    more = f"<p>and {len(lines) - SERIES_MAX} more</p>" if len(lines) > SERIES_MAX else ""
    if not shown:
        return f"<h2>{escape(chart.title)}</h2><p>Nothing to show.</p>"
    keys = "".join(
        f"<span class=key><i style='background:{colour}'></i>{escape(name)}</span>"
        for (name, _), colour in zip(shown, _COLOURS, strict=False)
    )
    return f"<h2>{escape(chart.title)}</h2><div>{keys}</div>{more}{_svg(shown)}"


def _svg(lines: Sequence[tuple[str, Sequence[Point]]]) -> str:
    points = [point for _, line in lines for point in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    top = max(max(y for _, y in points), 1)
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def place(point: Point) -> tuple[float, float]:
        x = _LEFT + wide * ((point[0] - first) / (last - first) if last > first else 0.5)
        return x, _TOP + high * (1 - point[1] / top)

    drawn = [
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img'>",
        f"<rect x='{_LEFT}' y='{_TOP}' width='{wide}' height='{high}' fill='none' stroke='#ccc'/>",
    ]
    for part in range(5):
        y = _TOP + high * (1 - part / 4)
        drawn.append(
            f"<text x='{_LEFT - 6}' y='{y + 4:.0f}' text-anchor='end'>{cell(round(top * part / 4))}"
            "</text>"
        )
    for x, anchor in ((first, "start"), (last, "end")):
        drawn.append(
            f"<text x='{place((x, 0))[0]:.0f}' y='{HEIGHT - 8}' text-anchor='{anchor}'>"
            f"{moment(int(x))}</text>"
        )
    for (_, line), colour in zip(lines, _COLOURS, strict=False):
        places = [place(point) for point in line]
        if len(places) == 1:
            drawn.append(
                f"<circle cx='{places[0][0]:.1f}' cy='{places[0][1]:.1f}' r='3' fill='{colour}'/>"
            )
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(
            f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
        )
    return "".join([*drawn, "</svg>"])
