"""Attempts on who looks at logs and tables, with what is shown there: A41."""

import re
from json import loads
from logging import getLogger

import pytest
from structlog import get_logger

from troupemq.logs import set_up_logs, shut_down_logs
from troupemq.text import escaped, escaped_lines, one_line, say

NASTY = (
    "\x1b[2J\x1b]0;owned\x07 \r\n[error] a line of its own \u202egnp.exe"
    "\u200f\u200e\u061c\x7f\x9b2J\x85\u2028\u2029"
)
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e\u200e\u200f\u061c]")


def test_a41_a_log_line_stays_one_line_for_any_client_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        for as_json in (False, True):
            set_up_logs(as_json=as_json)
            get_logger("test").warning("group changed", group=NASTY, client=NASTY, key=NASTY)
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert not RAW.search(said), repr(said)
            if as_json:
                assert loads(said)["group"] == NASTY, "nothing is lost"
    finally:
        shut_down_logs()


@pytest.mark.parametrize("as_json", [False, True])
def test_a41_tracebacks_and_library_lines_start_no_other_line(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    try:
        set_up_logs(as_json=as_json)
        getLogger("library").warning("odd answer: %s", NASTY)
        try:
            raise ValueError(NASTY)
        except ValueError:
            get_logger("test").exception("failed")
        said = capsys.readouterr().err
    finally:
        shut_down_logs()
    assert not RAW.search(said), repr(said)
    own = [line for line in said.split("\n") if line and not line.startswith("  ")]
    assert [("odd answer" in line, "failed" in line) for line in own] == [
        (True, False),
        (False, True),
    ]


def test_a41_error_sentences_of_commands_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"the broker refused it: {NASTY}")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not RAW.search(said)


def test_a41_tables_of_commands_escape_control_characters() -> None:
    for found in (escaped(NASTY), one_line(NASTY)):
        assert not RAW.search(found) and "\n" not in found
    assert escaped_lines(f"one\n{NASTY}").count("\n") == 2
