"""Tests of actors/metrics/page.py: the text, as Prometheus reads it."""

import gc
from collections.abc import Iterator
from math import inf, nan

import pytest

from actors.engine.short_collections import short_collections
from actors.metrics.exposition import answer_of, without_collections
from actors.metrics.page import PART_LINES, MetricsPage, labels, let_go, number
from actors.metrics.page_server import Packed
from tests.support.metrics import samples, value


def test_whatever_a_label_holds_is_read_back_as_it_was() -> None:
    hostile = 'a"b\\c\nd, e="f" } 1 € \x07'
    page = MetricsPage({"node_id": hostile})
    page.gauge("x", "An x", [(labels({"topic": hostile}), 1)])
    ((own, _),) = samples("".join(page.parts()))["x"]
    assert own == {"node_id": hostile, "topic": hostile}


def test_numbers_are_written_as_go_reads_them() -> None:
    assert [number(each) for each in (3, 0.5, inf, -inf, nan)] == [
        *("3", "0.5", "+Inf", "-Inf"),
        "NaN",
    ]


def test_a_histogram_adds_up_its_classes() -> None:
    page = MetricsPage({})
    page.histogram("took_ms", "A time", (1, 2.5), [('code="a"', (3, 0, 2), 12.5)])
    found = samples("".join(page.parts()))
    assert [number for _, number in found["took_ms_bucket"]] == [3, 3, 5]
    assert [own["le"] for own, _ in found["took_ms_bucket"]] == ["1", "2.5", "+Inf"]
    assert value(found, "took_ms_sum", code="a") == 12.5
    assert value(found, "took_ms_count") == 5
    assert page.series == {"took_ms": 5}


def test_a_family_without_samples_is_declared() -> None:
    page = MetricsPage({})
    page.counter("nothing_total", "None yet", [])
    assert "".join(page.parts()) == "# HELP nothing_total None yet\n# TYPE nothing_total counter\n"


def test_a_long_family_comes_in_parts() -> None:
    page = MetricsPage({})
    count = PART_LINES * 2 + 1
    page.gauge("n", "Many", [(labels({"i": str(i)}), i) for i in range(count)])
    assert len(page.parts()) == 1 + 3
    assert len(samples("".join(page.parts()))["n"]) == count


@pytest.mark.parametrize("kind", ["gauge", "histogram"])
def test_no_more_lines_are_there_at_a_time_than_a_part_has(kind: str) -> None:
    page, ahead = MetricsPage({}), []

    def noted(lines: int) -> Iterator[int]:
        for each in range(PART_LINES):
            written = (len(page.parts()) - 1) * PART_LINES
            ahead.append(each * lines - written)
            yield each

    if kind == "gauge":
        page.gauge("n", "Many", (("", each) for each in noted(1)))
    else:
        page.histogram("n", "Many", (1,), (("", (1, 2), each) for each in noted(4)))
    assert len(ahead) == PART_LINES and max(ahead) <= PART_LINES


class Freed(list[int]):
    """Notes how many go at a time."""

    def __init__(self, items: range) -> None:
        super().__init__(items)
        self.at_a_time: list[int] = []

    def __delitem__(self, which: object) -> None:
        before = len(self)
        super().__delitem__(which)  # type: ignore[arg-type]
        self.at_a_time.append(before - len(self))


def test_what_a_page_was_made_of_is_freed_in_pieces() -> None:
    items = Freed(range(2 * PART_LINES + 1))
    let_go(items)
    assert items == [] and items.at_a_time == [PART_LINES, PART_LINES, 1]


def test_the_text_is_gone_once_it_is_compressed_and_comes_back_a_piece_at_a_time() -> None:
    text = "".join(f'n{{i="{number}"}} {number}\n' for number in range(50_000))
    parts = [text[:1000], "", text[1000:]]
    body = answer_of(parts).body
    assert parts == [] and isinstance(body, Packed)
    pieces = [*body.unpacked()]
    assert b"".join(pieces) == text.encode() and body.size == len(text)
    assert max(map(len, pieces)) < len(text) / 2


def test_what_a_page_leaves_is_new_to_no_collection_where_old_objects_are_set_aside() -> None:
    with short_collections():
        with without_collections():
            left = [[number] for number in range(20_000)]
        assert gc.isenabled() and gc.get_count()[0] < len(left) / 2
