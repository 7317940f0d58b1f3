"""HTML of pages: hostile text stays text, units are said, files are those of the manifest."""

import json
from datetime import UTC
from hashlib import sha384
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from troupemq.client.admin import Time
from troupemq.console.accounts import Viewer
from troupemq.console.parts import (
    Facts,
    Form,
    Input,
    Link,
    Links,
    LongText,
    Note,
    Notes,
    Page,
    Pager,
    RowTable,
    Share,
    Size,
    Span,
    as_json,
)
from troupemq.console.rendering import MENU, STATIC, Renderer, static_files
from troupemq.text import size_text

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}${7*7}#{7*7}",
    "' onmouseover='alert(1)",
    "</pre></title><svg onload=alert(1)>",
]
ADMIN = Viewer("ada", "admin")


def html(page: Page, viewer: Viewer | None = ADMIN) -> str:
    return Renderer("").page(page, "/topics", viewer, "token", UTC)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_everywhere(text: str) -> None:
    page = Page(
        text,
        [
            RowTable("t", text, [{text: text, "l": Link(text, "/x", {text: text})}], text, text),
            RowTable("u", "", [], nothing=text),
            Facts("f", text, {text: {text: [text]}}, as_is=True),
            Notes("n", text, [Note("trouble", text, Link(text, "/x"))]),
            LongText("p", text, text, True),
            Form(text, "/x", [Input("a", text, "text", text, (), text)], text, True),
            Form("", "/x", [Input("b", text, "choice", text, [text])], text),
            Form("", "/x", [Input("c", text, "long", text), Input("d", "", "hidden", text)], "x"),
            Links([Link(text, "/x")]),
        ],
        [text],
    )
    found = html(page, Viewer(text, "viewer"))
    assert found.count("<script") == 3
    found = "\n".join(line for line in found.split("\n") if "integrity=" not in line)
    for part in ("<script>alert", "<img", "<svg", "onmouseover='", "49"):
        assert part not in found
    assert "<script" not in found and "{{7*7}}" in html(Page("{{7*7}}"))


def test_control_and_direction_characters_are_shown_visibly() -> None:
    found = html(Page("a\x1b[2Jb\u202ec", [LongText("p", "", "one\x00\n\u2066two\tthree")]))
    assert "\x1b" not in found and "\u202e" not in found and "\u2066" not in found
    assert "a\\x1b[2Jb\\u202ec" in found and "one\\x00\n\\u2066two    three" in found


def test_a_long_text_in_a_cell_is_truncated() -> None:
    assert len(html(Page("x", [Facts("f", "", {"a": "y" * 1_000_000})]))) < 20_000


def test_cells_show_their_units() -> None:
    page = Page(
        "x",
        [
            RowTable(
                "t",
                "",
                [
                    {
                        "time_ms": Time(1_700_000_000_123),
                        "late_ms": Span(61_000),
                        "short_ms": Span(267),
                        "size": Size(1536),
                        "disk": Share(0.256),
                        "count": 1234567,
                        "rate_tps": 0.25,
                        "is": False,
                        "none": None,
                    }
                ],
            )
        ],
    )
    found = Renderer("").page(page, "", ADMIN, "", ZoneInfo("Asia/Tokyo"))
    assert "<span>2023-11-15</span> <span>07:13:20</span></time>" in found
    assert 'title="2023-11-14 22:13:20.123 UTC"' in found
    for text in (
        ">1 min 1 s<",
        ">267 ms<",
        ">1.5 KiB<",
        "26 %",
        "1,234,567",
        ">0.2<",
        ">no<",
        ">-<",
    ):
        assert text in found, text
    assert as_json(page)["t"] == [
        {
            "time_ms": 1_700_000_000_123,
            "late_ms": 61_000,
            "short_ms": 267,
            "size": 1536,
            "disk": 0.256,
            "count": 1234567,
            "rate_tps": 0.25,
            "is": False,
            "none": None,
        }
    ]


@pytest.mark.parametrize("value", [0, -1, 1 << 62])
def test_times_beyond_the_calendar_break_no_page(value: int) -> None:
    assert "<main" in html(Page("x", [Facts("f", "", {"a": Time(value)})]))


def test_levels_are_shown_in_words_besides_colours() -> None:
    notes = [Note("trouble", "a"), Note("watch", "b"), Note("fine", "c")]
    found = html(Page("x", [Notes("n", "", notes)]))
    assert "<strong>Problem:</strong> a" in found and "<strong>Warning:</strong> b" in found


def test_the_menu_has_the_pages_of_a_role_and_unique_keys() -> None:
    viewers = html(Page("x"), Viewer("v", "viewer"))
    assert ">Audit</a>" not in viewers and ">Topics</a>" in viewers
    assert ">Audit</a>" in html(Page("x")) and 'aria-current="page">Topics' in html(Page("x"))
    entries = [each for some in MENU.values() for each in some]
    assert len({each.key for each in entries}) == len(entries)


def test_a_long_table_has_a_fold_for_narrow_screens() -> None:
    rows = [{"a": number, "b": number} for number in range(41)]
    found = html(Page("x", [RowTable("t", "", rows)]))
    assert "Show all 41 rows" in found and found.count('class=" later"') == 1
    assert "Show all" not in html(Page("x", [RowTable("t", "", rows[:40])]))


def test_a_pager_shows_range_and_total() -> None:
    pager = Pager(50, 50, 20_000, Link("Before", "/topics", {"first": 0}), Link("After", "/topics"))
    found = html(Page("x", [RowTable("t", "", [{"a": 1}], pager=pager)]))
    assert "51 to 100 of 20,000" in found and 'href="/topics?first=0"' in found


def test_sizes_have_binary_units() -> None:
    assert [size_text(count) for count in (0, 1023, 1 << 20, 1 << 60)] == [
        "0 B",
        "1,023 B",
        "1.0 MiB",
        "1,048,576.0 TiB",
    ]


def test_vendored_files_are_those_of_the_manifest_and_have_their_licences() -> None:
    manifest = json.loads((STATIC / "manifest.json").read_text())
    assert {each["file"] for each in manifest} == {
        "htmx.min.js",
        "uPlot.iife.min.js",
        "uPlot.min.css",
    }
    for each in manifest:
        assert sha384((STATIC / each["file"]).read_bytes()).hexdigest() == each["sha384"]
        assert (STATIC / each["licence_file"]).read_text().strip()
    own = {"style.css", "console.js", "mark.svg"}
    assert set(static_files()) == own | {each["file"] for each in manifest}
    assert not [path for path in Path(STATIC).iterdir() if path.suffix == ".map"]
