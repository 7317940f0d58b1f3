"""A page of the manual, followed: its commands as the command line takes them."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from tests.compat.patience import wait_until
from troupemq.cli import cli
from troupemq.servers import Servers

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def blocks(page: str) -> list[str]:
    """Return the code blocks of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """Return the commands of a block as words: continued lines joined, comments omitted."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run(*words: str, exit_code: int = 0) -> str:
    """Run a command and return its output."""
    program, *arguments = words
    assert program == "troupemq", words
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == exit_code, f"{' '.join(words)}:\n{result.output}"
    return result.output


def told(line: str) -> str:
    """Run a command line and return its output."""
    return run(*shlex.split(line))


def wait_for_registration(servers: Servers) -> None:
    """Until the name server knows its broker."""
    assert servers.broker is not None
    registered = servers.broker.broker.attachment.registered
    wait_until(lambda: registered.value == 1, "the broker is registered")
