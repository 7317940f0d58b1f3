"""Text of one scrape in Prometheus's exposition format (text/plain; version=0.0.4).

To allocate or free 50 MiB of text blocks the loop for 7 ms. Packed compresses each piece as soon as
it is written, so that only 2 MB are kept. Other threads run meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isnan
from typing import Any, TypeVar
from zlib import compressobj, decompressobj

GZIP_BITS = 31
"""zlib window bits for a gzip header and trailer."""
GZIP_LEVEL = 1
UNPACKED_BYTES = 256 << 10
"""Piece size for clients that do not accept gzip."""


@dataclass(frozen=True, slots=True)
class Packed:
    parts: Sequence[bytes]
    size: int
    """Uncompressed length in bytes."""

    def unpacked(self) -> Iterator[bytes]:
        """Yield the text in pieces of at most UNPACKED_BYTES."""
        unpacker = decompressobj(GZIP_BITS)
        for part in self.parts:
            while part:
                yield unpacker.decompress(part, UNPACKED_BYTES)
                part = unpacker.unconsumed_tail
        yield unpacker.flush()


class Packer:
    """Compressor of a text that arrives in pieces."""

    def __init__(self) -> None:
        self._zip = compressobj(GZIP_LEVEL, wbits=GZIP_BITS)
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, text: str) -> None:
        """Compress the next piece, while other threads run."""
        plain = text.encode()
        self._size += len(plain)
        if part := self._zip.compress(plain):
            self._parts.append(part)

    def packed(self) -> Packed:
        """Return the whole text; `add` must not be called afterwards."""
        self._parts.append(self._zip.flush())
        return Packed(self._parts, self._size)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PART_LINES = 250
"""Lines written, joined or freed at once; other threads wait meanwhile."""
NAMES_KNOWN = 1 << 15
"""Maximum names in a Remembered, some 200 bytes each."""
NAME_CHARS_MAX = 1024
"""Maximum characters of a remembered name: of a client id."""

Value = TypeVar("Value")
Sample = tuple[str, float]
"""Labels as `labels` writes them, and a value."""


def labels(pairs: Mapping[str, str]) -> str:
    """Return `a="x",b="y"` with escaped values."""
    return ",".join([f'{name}="{escaped(value)}"' for name, value in pairs.items()])


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value.encode("utf-8", "replace").decode() if not value.isascii() else value


class Remembered(dict[str, Value]):
    """Cache of `work` by name.

    If it is full, the newest name goes, so that most names stay when scrapes repeat their order. An
    lru_cache would lose all of them then, and each hit moves the entry: four more objects.
    """

    def __init__(self, work: Callable[[str], Value]) -> None:
        super().__init__()
        self._work = work

    def __missing__(self, name: str) -> Value:
        value = self._work(name)
        if len(name) <= NAME_CHARS_MAX:
            if len(self) >= NAMES_KNOWN:
                self.popitem()
            self[name] = value
        return value


escaped: Callable[[str], str] = Remembered(_escaped).__getitem__
"""Return a label value, escaped for its place between quotes."""


def number(value: float) -> str:
    """Return a number in Go's notation."""
    if -inf < value < inf:
        return repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


class MetricsPage:
    """Families of one page; all samples share the base labels."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = labels(base)
        self._packer = Packer()
        self.series: dict[str, int] = {}
        """Number of series by family."""

    def gauge(self, name: str, meaning: str, samples: Iterable[Sample]) -> None:
        self._family(name, "gauge", meaning, samples)

    def counter(self, name: str, meaning: str, samples: Iterable[Sample]) -> None:
        self._family(name, "counter", meaning, samples)

    def value(self, name: str, meaning: str, value: float) -> None:
        """Add a gauge with a single value."""
        self.gauge(name, meaning, [("", value)])

    def histogram(
        self,
        name: str,
        meaning: str,
        bounds: Sequence[float],
        rows: Iterable[tuple[str, Sequence[int], float]],
    ) -> None:
        """Add a histogram.

        Each row has labels, the count of each class (one more than `bounds`), and the sum.
        """
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
        assert name not in self.series, f"duplicate family {name}"
        self.series[name] = 0
        self._packer.add(f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n")

    def _add(self, name: str, lines: list[str]) -> None:
        self.series[name] += len(lines)
        self._packer.add("".join(lines))

    def add_text(self, text: str) -> None:
        """Add families that are already text."""
        self._packer.add(text)

    def packed(self) -> Packed:
        """Return the page; no family may be added afterwards."""
        return self._packer.packed()


def let_go(items: list[Any]) -> None:
    """Free a list in pieces: 30,000 items at once block other threads for 2 ms."""
    while items:
        del items[-PART_LINES:]


def _bound(value: float) -> str:
    return number(int(value)) if value == int(value) else number(value)
