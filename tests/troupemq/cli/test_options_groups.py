"""Tests of troupemq/cli/options.py: suggestions for commands, and lists that are not cut off."""

import pytest
from click.testing import CliRunner

from tests.support.commands import commands_of
from troupemq.cli import cli
from troupemq.cli.options import CommandGroup


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("brokr", "broker"),
        ("topicList", "admin topicList"),
        ("topiclst", "admin topicList"),
        ("dump", "store dump"),
        ("admin topiclst", "topicList"),
        ("admin statsall2", "statsAll"),
        ("job rnu", "run"),
        ("store chek", "check"),
    ],
)
def test_a_misspelled_command_gets_a_suggestion(line: str, meant: str) -> None:
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(f" Did you mean {meant}?")


def test_a_misspelled_option_gets_a_suggestion() -> None:
    result = CliRunner().invoke(cli, ["send", "--topc", "T"])
    assert result.exit_code == 2 and "--topic" in result.stderr


def test_a_command_unlike_all_others_has_no_suggestion() -> None:
    result = CliRunner().invoke(cli, ["xyzzy"])
    assert (result.exit_code, result.stderr[-2:]) == (2, ".\n")


def test_a_misspelled_job_gets_a_suggestion() -> None:
    result = CliRunner().invoke(cli, ["job", "run", "arhive"])
    assert (result.exit_code, "did you mean archive?" in result.stderr) == (2, True)


@pytest.mark.parametrize("words", [[], ["admin"], ["job"], ["store"]], ids=" ".join)
def test_lists_of_commands_are_not_truncated(words: list[str]) -> None:
    """Ten of the twenty-five sentences ended in "..." on 80 columns."""
    group = commands_of(cli)[words[0]] if words else cli
    assert isinstance(group, CommandGroup)
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(cli, [*words, "--help"]).output
    assert max(map(len, shown.splitlines())) <= 80
    whole = " ".join(shown.split())
    for name, each in commands_of(group).items():
        first = " ".join((each.help or "").split("\n\n")[0].split()).rstrip(".")
        assert f"{name} {first}".split(". ")[0] in whole
    assert "..." not in shown.partition("\n")[2]
