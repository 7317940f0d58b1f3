"""The text of one scrape, in the exposition format of Prometheus (text/plain; version=0.0.4)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf, isnan
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PART_LINES = 1000
"""Joined, sorted or freed at a time: nobody else runs meanwhile."""

Sample = tuple[str, float]
"""Labels as `labels` writes them, and a value."""


def labels(pairs: Mapping[str, str]) -> str:
    """`a="x",b="y"`; what a label may not hold as it is, is escaped."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value.encode("utf-8", "replace").decode() if not value.isascii() else value


def number(value: float) -> str:
    """As Go reads it."""
    if isinstance(value, int):
        return str(value)
    if value == inf:
        return "+Inf"
    if value == -inf:
        return "-Inf"
    return "NaN" if isnan(value) else repr(float(value))


class MetricsPage:
    """Families, one after the other, each with labels that all of them have."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = labels(base)
        self._parts: list[str] = []
        self.series: dict[str, int] = {}
        """How many there are of each name."""

    def gauge(self, name: str, meaning: str, samples: Iterable[Sample]) -> None:
        """Values that rise and fall."""
        self._family(name, "gauge", meaning, samples)

    def counter(self, name: str, meaning: str, samples: Iterable[Sample]) -> None:
        """Values that only rise while the server runs."""
        self._family(name, "counter", meaning, samples)

    def value(self, name: str, meaning: str, value: float) -> None:
        """A gauge with one value."""
        self.gauge(name, meaning, [("", value)])

    def histogram(
        self,
        name: str,
        meaning: str,
        bounds: Sequence[float],
        rows: Iterable[tuple[str, Sequence[int], float]],
    ) -> None:
        """Rows are labels, the count of each class (one more than bounds), and the sum."""
        ends = [*map(_bound, bounds), "+Inf"]

        def lines() -> Iterator[str]:
            for text, counts, total in rows:
                joined = self._joined(text)
                comma = "," if joined else ""
                whole = 0
                for end, count in zip(ends, counts, strict=True):
                    whole += count
                    yield f'{name}_bucket{{{joined}{comma}le="{end}"}} {whole}\n'
                yield f"{name}_sum{{{joined}}} {number(total)}\n"
                yield f"{name}_count{{{joined}}} {whole}\n"

        self._add(name, "histogram", meaning, lines())

    def _family(self, name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        joined = self._joined
        lines = (
            f"{name}{{{joined(text)}}} {value if type(value) is int else number(value)}\n"
            for text, value in samples
        )
        self._add(name, kind, meaning, lines)

    def _joined(self, text: str) -> str:
        base = self._base
        return f"{base},{text}" if base and text else base or text

    def _add(self, name: str, kind: str, meaning: str, lines: Iterator[str]) -> None:
        assert name not in self.series, f"{name} stands there twice"
        count = 0
        self._parts.append(f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n")
        while part := list(islice(lines, PART_LINES)):
            count += len(part)
            self._parts.append("".join(part))
        self.series[name] = count

    def add_text(self, text: str) -> None:
        """Families that somebody else has written."""
        self._parts.append(text)

    def parts(self) -> list[str]:
        """The text, in pieces."""
        return self._parts


def let_go(items: list[Any]) -> None:
    """Frees what a list holds, in pieces: nobody else runs for 2 ms where 30,000 go at once."""
    while items:
        del items[-PART_LINES:]


def _bound(value: float) -> str:
    return number(int(value)) if value == int(value) else number(value)
