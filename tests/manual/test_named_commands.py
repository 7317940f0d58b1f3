"""Every `troupemq` command that a document names exists, with the options that stand there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support.commands import commands_of
from tests.test_docs import DOCUMENTS, ROOT
from troupemq.cli import cli

NAMING = sorted({*DOCUMENTS, *(ROOT / "conf").rglob("*.md")} - {ROOT / "CHANGELOG.md"})
LINE = re.compile(r"(?<![\w./-])troupemq (?=[a-z-]+(?: |$))([^|&;#<>`$()…\n]*)", re.MULTILINE)
"""Up to what ends a shell's command, or holds another one."""


def named(text: str) -> Iterator[str]:
    """In blocks of commands and between backticks."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for part in (*blocks, *re.findall(r"`([^`]+)`", prose.replace("\n", " "))):
        yield from (found.strip() for found in LINE.findall(part))


def fault(line: str) -> str | None:
    """Return the first word that the command does not know, or None."""
    command: click.Command = cli
    words = shlex.split(line.replace("'", "").replace('"', ""))
    while words and isinstance(command, click.Group):
        if words[0].isupper() or words[0].startswith("-"):
            break  # `troupemq COMMAND --help`
        found = commands_of(command).get(words[0])
        if found is None:
            return f"no command {words[0]}"
        command = found
        words.pop(0)
    known = {"--help", "-h", "--version"}
    known |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return next((f"no option {each}" for each in options if each not in known), None)


@pytest.mark.parametrize("document", NAMING, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_document_exist(document: Path) -> None:
    lines = named(document.read_text(encoding="utf-8"))
    assert [f"{line}: {found}" for line in lines if (found := fault(line))] == []


def test_a_command_or_an_option_that_is_gone_is_found() -> None:
    assert fault("send -t Orders --key order-1") is None
    assert fault("redrive GROUP") == "no command redrive"
    assert fault("admin topicStatus --nothing") == "no option --nothing"
    assert list(named("x `troupemq send\n-t A` y\n```sh\ntroupemq run | cat  # well\n```\n")) == [
        "run",
        "send -t A",
    ]
