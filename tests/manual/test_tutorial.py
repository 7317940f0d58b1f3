"""docs/tutorial.md, followed: its commands and programs, in their order, in an empty folder."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.config import parse_broker_config, parse_namesrv_config
from tests.compat.patience import wait_until
from troupemq.cli import cli
from troupemq.cli.servers import SMALL_FILES
from troupemq.servers import Servers

HOST = "127.0.0.1"
TEXT = (Path(__file__).resolve().parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = [
    (kind, block)
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)
    if part[0] in "345"
    for kind, block in re.findall(r"```(sh|python)\n(.*?)```", part, re.DOTALL)
]
"""What comes once the servers run, and after they have stopped."""

RUN_FIRST = "troupemq run --no-tour\n"


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """What `troupemq run` starts, on free ports."""
    monkeypatch.chdir(tmp_path)
    servers = Servers(lambda reason: None)
    config, _ = parse_namesrv_config("", {"listenPort": "0", "bindAddress": HOST})
    servers.start_namesrv(config)
    namesrv = f"{HOST}:{servers.ports['namesrv']}"
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    own = {"listenPort": "0", "bindAddress": HOST, "brokerIP1": HOST, "namesrvAddr": namesrv}
    broker, store, _ = parse_broker_config(
        "", {**own, "brokerName": "broker-a", "storePathRootDir": "data/store", **SMALL_FILES}
    )
    servers.start_broker(broker, store)
    yield servers
    servers.stop(20)


def told(line: str) -> str:
    """What a command of the tutorial prints."""
    program, *arguments = shlex.split(line)
    assert program == "troupemq", line
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, f"{line}:\n{result.output}"
    return result.output


@pytest.mark.heavy
def test_it_works_as_it_says(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"```sh\n{RUN_FIRST}```" in TEXT
    assert servers.broker is not None
    registered = servers.broker.broker.attachment.registered
    wait_until(lambda: registered.value == 1, "the broker is registered")
    printed = []
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "tutorial", "exec"), {"__name__": "tutorial"})
            printed.append(capsys.readouterr().out)
            continue
        if "store check" in block:
            servers.stop(20)
        printed += [told(line) for line in block.splitlines()]
    everything = "\n".join(printed)
    assert "a book" in everything
    assert "\nOK " in everything and "\nTrue\n" in everything
    assert "nothing is wrong" in everything
    assert len(printed) == 10, printed
