"""Tests of actors/metrics/page.py: the text, as Prometheus reads it."""

from math import inf, nan

from actors.metrics.page import PART_LINES, MetricsPage, labels, number
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
