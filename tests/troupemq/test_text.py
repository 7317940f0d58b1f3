"""Text on a terminal: what is escaped, how wide it is."""

import json
import re
import sys
from contextlib import suppress
from io import FileIO, TextIOWrapper
from pathlib import Path

import pytest

from troupemq.text import (
    escaped,
    escaped_json,
    escaped_lines,
    one_line,
    padded,
    say,
    tell,
    width_of,
)


def test_control_and_direction_characters_are_escaped() -> None:
    assert escaped("a\x1b[2J\x85\u2028\u202eb\ud800") == r"a\x1b[2J\x85\u2028\u202eb\ud800"
    assert escaped("née 名\u200d") == "née 名\u200d"


ODD = "a\x1b[2J\x7f\x85\x9b\u2028\u202eb\ud800 née 名\u200d"


def test_json_keeps_its_meaning_without_control_characters() -> None:
    """DEL, C1 and what turns the direction of a line passed as they were."""
    for text in (json.dumps(ODD), json.dumps([ODD, 1], ensure_ascii=False, indent=1)):
        found = escaped_json(text)
        assert json.loads(found) == json.loads(text)
        assert all(escaped(line) == line for line in found.split("\n"))
    assert escaped_json('"née 名"') == '"née 名"'


def test_every_command_escapes_its_json() -> None:
    folder = Path(__file__).resolve().parents[2] / "troupemq"
    lines = [
        f"{path.name}: {line.strip()}"
        for path in folder.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"(echo|_print|print)\(.*dumps\(", line) and "escaped_json" not in line
    ]
    assert lines == []


def test_a_sentence_is_one_line_and_a_report_keeps_its_lines() -> None:
    assert one_line("no\r\n  more\x07") == r"no more\x07"
    assert escaped_lines("a\rb\n\x9bc\n") == "a\\rb\n\\x9bc\n"


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("名", 2), ("e\u0301", 1)])
def test_widths_are_counted_in_terminal_columns(text: str, width: int) -> None:
    assert width_of(text) == width
    assert padded(text, 4) == text + " " * (4 - width)
    assert padded(text, 4, right=True) == " " * (4 - width) + text


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_lines_of_a_server_are_lost_on_a_full_disk_and_do_not_end_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stdout in a file on a full disk no server started."""
    full = TextIOWrapper(FileIO("/dev/full", "w"))
    monkeypatch.setattr(sys, name, full)
    (tell if name == "stdout" else say)("Serving.")
    (tell if name == "stdout" else say)("Stopped.")
    with suppress(OSError):
        full.close()
