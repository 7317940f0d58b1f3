"""The text of one scrape, in the exposition format of Prometheus (text/plain; version=0.0.4)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf, isnan
from typing import Any, TypeVar

from actors.metrics.packed import Packed, Packer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PART_LINES = 250
"""Made, joined or freed at a time: nobody else runs meanwhile."""
NAMES_KNOWN = 1 << 15
"""Topics and groups of which it is remembered from one scrape to the next how they are written, and
whether they are shown; some 200 bytes each."""

Value = TypeVar("Value")
Sample = tuple[str, float]
"""Labels as `labels` writes them, and a value."""


def labels(pairs: Mapping[str, str]) -> str:
    """`a="x",b="y"`; what a label may not hold as it is, is escaped."""
    return ",".join([f'{name}="{escaped(value)}"' for name, value in pairs.items()])


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value.encode("utf-8", "replace").decode() if not value.isascii() else value


class Remembered(dict[str, Value]):
    """What `work` makes of a name, so that it is done once. Of too many names the newest goes: of
    those that are looked at in the same order again and again most stay. (lru_cache would push out
    all, and moves what it finds, which looks at four more objects each time.)
    """

    def __init__(self, work: Callable[[str], Value]) -> None:
        super().__init__()
        self._work = work

    def __missing__(self, name: str) -> Value:
        if len(self) >= NAMES_KNOWN:
            self.popitem()
        value = self[name] = self._work(name)
        return value


escaped: Callable[[str], str] = Remembered(_escaped).__getitem__
"""A value as it stands between the quotes of a label."""


def number(value: float) -> str:
    """As Go reads it."""
    if -inf < value < inf:
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


class MetricsPage:
    """Families, one after the other, each with labels that all of them have."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = labels(base)
        self._packer = Packer()
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
        base, ends = self._base, [*map(_bound, bounds), "+Inf"]

        def all_lines() -> Iterator[str]:
            for text, counts, total in rows:
                joined = f"{base},{text}" if base and text else base or text
                comma = "," if joined else ""
                whole = 0
                for end, count in zip(ends, counts, strict=True):
                    whole += count
                    yield f'{name}_bucket{{{joined}{comma}le="{end}"}} {whole}\n'
                yield f"{name}_sum{{{joined}}} {number(total)}\n"
                yield f"{name}_count{{{joined}}} {whole}\n"

        self._begin(name, "histogram", meaning)
        each_line = all_lines()
        while lines := [*islice(each_line, PART_LINES)]:
            self._add(name, lines)

    def _family(self, name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        bare = f"{name}{{{self._base}"
        before = f"{bare}," if self._base else bare
        pairs = iter(samples)
        self._begin(name, kind, meaning)
        while lines := [
            f"{before if text else bare}{text}}} {value if -inf < value < inf else number(value)}\n"
            for text, value in islice(pairs, PART_LINES)
        ]:
            self._add(name, lines)

    def _begin(self, name: str, kind: str, meaning: str) -> None:
        assert name not in self.series, f"{name} stands there twice"
        self.series[name] = 0
        self._packer.add(f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n")

    def _add(self, name: str, lines: list[str]) -> None:
        self.series[name] += len(lines)
        self._packer.add("".join(lines))

    def add_text(self, text: str) -> None:
        """Families that somebody else has written."""
        self._packer.add(text)

    def packed(self) -> Packed:
        """All of it; the page is at its end."""
        return self._packer.packed()


def let_go(items: list[Any]) -> None:
    """Frees what a list holds, in pieces: nobody else runs for 2 ms where 30,000 go at once."""
    while items:
        del items[-PART_LINES:]


def _bound(value: float) -> str:
    return number(int(value)) if value == int(value) else number(value)
