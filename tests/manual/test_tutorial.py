"""docs/tutorial.md, followed: its commands and programs, in their order, in an empty folder."""

import re
from pathlib import Path

import pytest

from tests.manual.following import DOCS, told
from troupemq.servers import Servers

TEXT = (DOCS / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = [
    (kind, block)
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)
    if part[0] in "345"
    for kind, block in re.findall(r"```(sh|python)\n(.*?)```", part, re.DOTALL)
]
"""Blocks to run while the servers serve, and after they have stopped."""

RUN_FIRST = "troupemq run --no-tour\n"
PATH_LINE = 'export PATH="$PWD/mq/bin:$PATH"\n'
"""In each terminal: without it the second one had no command."""


@pytest.mark.heavy
def test_the_tutorial_works_as_described(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"```sh\n{RUN_FIRST}```" in TEXT
    assert TEXT.count(PATH_LINE) == 2 and BLOCKS[0][1].startswith(PATH_LINE)
    printed = []
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "tutorial", "exec"), {"__name__": "tutorial"})
            printed.append(capsys.readouterr().out)
            continue
        if "store check" in block:
            servers.stop(20)
        printed += [told(line) for line in block.removeprefix(PATH_LINE).splitlines()]
    everything = "\n".join(printed)
    assert "a book" in everything
    assert "\nOK " in everything and "\nTrue\n" in everything
    assert "no faults found" in everything
    assert len(printed) == 10, printed
