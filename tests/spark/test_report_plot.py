"""Plots: a page of charts that opens without a network, with any names."""

from pathlib import Path
from xml.etree import ElementTree

from spark.report import HEIGHT, SERIES_MAX, WIDTH, Chart, write_page


def page(path: Path, *charts: Chart) -> str:
    write_page(path / "deep" / "plot.html", "rates of <b>", charts)
    return (path / "deep" / "plot.html").read_text()


def drawings(text: str) -> list[ElementTree.Element]:
    return [
        ElementTree.fromstring("<svg " + part.partition("</svg>")[0] + "</svg>")
        for part in text.split("<svg ")[1:]
    ]


def test_each_series_is_a_line_inside_the_chart(tmp_path: Path) -> None:
    lines = {"a": [(0.0, 1.0), (60_000.0, 4.0)], "b": [(0.0, 2.0), (60_000.0, 0.0)]}
    (drawing,) = drawings(page(tmp_path, Chart("messages", lines)))
    found = [each.attrib["points"] for each in drawing.iter("polyline")]
    assert len(found) == 2
    for points in found:
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    first, last = (float(point.split(",")[1]) for point in found[0].split())
    assert last < first, "the larger value stands higher"


def test_names_are_escaped_and_the_page_loads_nothing(tmp_path: Path) -> None:
    text = page(tmp_path, Chart("<script>", {"<img src=x>": [(0.0, 1.0)]}))
    assert "<script" not in text and "<img" not in text and "http" not in text
    assert "&lt;img src=x&gt;" in text


def test_a_single_moment_and_zeros_can_be_drawn(tmp_path: Path) -> None:
    (drawing,) = drawings(page(tmp_path, Chart("zeros", {"a": [(5.0, 0.0)]})))
    assert len([*drawing.iter("circle")]) == 1


def test_the_highest_series_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    many = {f"s{number}": [(0.0, float(number))] for number in range(SERIES_MAX + 3)}
    text = page(tmp_path, Chart("many", many))
    assert "and 3 more" in text
    assert f"s{SERIES_MAX + 2}<" in text and ">s0<" not in text


def test_a_chart_without_series_says_so(tmp_path: Path) -> None:
    assert "Nothing to show." in page(tmp_path, Chart("empty", {}))


def test_a_page_replaces_the_previous_one(tmp_path: Path) -> None:
    page(tmp_path, Chart("old", {}))
    assert "old" not in page(tmp_path, Chart("new", {}))
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["plot.html"]
