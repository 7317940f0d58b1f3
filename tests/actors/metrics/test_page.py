"""Tests of actors/metrics/page.py: the text as Prometheus parses it."""

import gc
from collections.abc import Iterator
from math import inf, nan

import pytest

from actors.engine.short_collections import short_collections, without_collections
from actors.metrics import page as page_module
from actors.metrics.page import (
    NAME_CHARS_MAX,
    PART_LINES,
    MetricsPage,
    Remembered,
    labels,
    let_go,
    number,
)
from tests.support.metrics import samples, text_of, value
from tests.support.runtimes import of_cpython


def test_any_label_value_is_read_back_unchanged() -> None:
    hostile = 'a"b\\c\nd, e="f" } 1 € \x07'
    page = MetricsPage({"node_id": hostile})
    page.gauge("x", "An x", [(labels({"topic": hostile}), 1)])
    ((own, _),) = samples(text_of(page.packed()))["x"]
    assert own == {"node_id": hostile, "topic": hostile}


def test_numbers_are_written_in_gos_format() -> None:
    assert [number(each) for each in (3, 0.5, inf, -inf, nan)] == [
        *("3", "0.5", "+Inf", "-Inf"),
        "NaN",
    ]


def test_histogram_buckets_are_cumulative() -> None:
    page = MetricsPage({})
    page.histogram("took_ms", "A time", (1, 2.5), [('code="a"', (3, 0, 2), 12.5)])
    found = samples(text_of(page.packed()))
    assert [number for _, number in found["took_ms_bucket"]] == [3, 3, 5]
    assert [own["le"] for own, _ in found["took_ms_bucket"]] == ["1", "2.5", "+Inf"]
    assert value(found, "took_ms_sum", code="a") == 12.5
    assert value(found, "took_ms_count") == 5
    assert page.series == {"took_ms": 5}


def test_a_family_without_samples_is_declared() -> None:
    page = MetricsPage({})
    page.counter("nothing_total", "None yet", [])
    assert text_of(page.packed()) == "# HELP nothing_total None yet\n# TYPE nothing_total counter\n"


class Pieces(MetricsPage):
    """Notes how many lines are written at a time."""

    def __init__(self) -> None:
        super().__init__({})
        self.lines: list[int] = []

    def _add(self, name: str, lines: list[str]) -> None:
        self.lines.append(len(lines))
        super()._add(name, lines)


def test_a_long_family_is_rendered_in_parts() -> None:
    page, count = Pieces(), PART_LINES * 2 + 1
    page.gauge("n", "Many", [(labels({"i": str(i)}), i) for i in range(count)])
    assert page.lines == [PART_LINES, PART_LINES, 1] and page.series == {"n": count}
    assert len(samples(text_of(page.packed()))["n"]) == count


@pytest.mark.parametrize("kind", ["gauge", "histogram"])
def test_at_most_one_parts_lines_are_in_memory(kind: str) -> None:
    page, ahead = Pieces(), []

    def noted(lines: int) -> Iterator[int]:
        for each in range(2 * PART_LINES):
            ahead.append(each * lines - sum(page.lines))
            yield each

    if kind == "gauge":
        page.gauge("n", "Many", (("", each) for each in noted(1)))
    else:
        page.histogram("n", "Many", (1,), (("", (1, 2), each) for each in noted(4)))
    assert len(ahead) == 2 * PART_LINES and max(ahead) <= PART_LINES


def test_the_cache_of_names_is_bounded_and_filled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_module, "NAMES_KNOWN", 3)
    made: list[str] = []

    def work(name: str) -> str:
        made.append(name)
        return name.upper()

    known = Remembered(work)
    assert [known[name] for name in "abcdab"] == [*"ABCDAB"]
    assert len(known) == 3 and made == [*"abcd"], "the newest goes"
    known["x" * (NAME_CHARS_MAX + 1)]
    assert len(known) == 3, "clients may invent long ones"


class Freed(list[int]):
    """Notes how many go at a time."""

    def __init__(self, items: range) -> None:
        super().__init__(items)
        self.at_a_time: list[int] = []

    def __delitem__(self, which: object) -> None:
        before = len(self)
        super().__delitem__(which)  # type: ignore[arg-type]
        self.at_a_time.append(before - len(self))


def test_the_objects_of_a_page_are_freed_in_pieces() -> None:
    items = Freed(range(2 * PART_LINES + 1))
    let_go(items)
    assert items == [] and items.at_a_time == [PART_LINES, PART_LINES, 1]


@of_cpython
def test_a_page_leaves_no_young_objects_beside_frozen_ones() -> None:
    with short_collections():
        with without_collections():
            left = [[number] for number in range(20_000)]
        assert gc.isenabled() and gc.get_count()[0] < len(left) / 2
