"""Tests of troupemq/cli/top.py: the overview as it is printed."""

import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from actors.settings import extras
from actors.settings.extras import install_command
from protocol.bodies import KVTable
from protocol.bodies_own import ActorLine, ActorList
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from tests.troupemq.fake_server import FakeServer
from tests.troupemq.test_cluster_overview import FIGURES, answers, cluster, fill
from troupemq.cli import cli
from troupemq.cli.top import _size, _span


@pytest.fixture
def namesrv() -> Iterator[FakeServer]:
    with FakeServer() as namesrv, FakeServer() as broker:
        name = "evil\x1b[2J[red]"
        cluster(namesrv, **{name: broker.address})
        fill(broker, name)
        yield namesrv


def test_top_prints_one_table_for_scripts(namesrv: FakeServer) -> None:
    result = CliRunner().invoke(cli, ["top", "--once", "-n", namesrv.address])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "1 brokers, 1 of them masters" in lines[0] and "lag 3" in lines[0]
    (group,) = (line.split() for line in lines if "billing" in line)
    assert group[:3] == ["billing", "Orders", "3"]
    assert "2.0 KiB" in result.output and "87%" in result.output
    assert "ACTOR" not in result.output, "an official broker has none"


def test_names_of_servers_are_escaped(namesrv: FakeServer) -> None:
    result = CliRunner().invoke(cli, ["top", "--once", "-n", namesrv.address])
    assert "\x1b" not in result.output
    assert "[red]" in result.output


def test_top_refreshes_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rates, lag, actors and disk, in a terminal."""
    waits: list[float] = []

    class Patience:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                raise KeyboardInterrupt

    with FakeServer() as namesrv, FakeServer() as broker:
        cluster(namesrv, ours=broker.address)
        fill(broker, "ours")
        answers(broker, RequestCode.GET_ACTORS, ActorList([ActorLine("reput", True, 4, 9, 1)], 2))

        def figures(command: RemotingCommand) -> RemotingCommand:
            now = {"putTps": f"{len(waits) + 1}111 0 0", "commitLogDiskRatio": f"0.4{len(waits)}"}
            return command.answer(body=KVTable({**FIGURES, **now}).encode())

        broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, figures)
        monkeypatch.setattr(sys.modules[_size.__module__], "Event", Patience)
        terminal = {"FORCE_COLOR": "1", "COLUMNS": "120", "LINES": "60", "TERM": "xterm"}
        result = CliRunner(env=terminal).invoke(cli, ["top", "-n", namesrv.address])
    assert result.exit_code == 0, result.output
    assert waits == [1.0, 1.0, 1.0]
    pictures = [result.output.partition(f"in {n},111/s")[2] for n in (1, 2, 3)]
    assert all(pictures) and pictures[0].endswith(pictures[2])
    for number, picture in enumerate(pictures):
        for text in (f"4{number}%", "lag 3", "billing", "reput"):
            assert text in picture, text


def test_without_a_name_server_top_is_a_one_sentence_error() -> None:
    result = CliRunner().invoke(cli, ["top", "--once", "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output and "Traceback" not in result.output


def test_without_the_library_one_sentence_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(extras.LIBRARIES, "top", ("no_such_library",))
    result = CliRunner().invoke(cli, ["top", "--once"])
    assert result.exit_code == 1
    assert result.output == f"troupemq: top needs the library rich: {install_command('top')}\n"


def test_numbers_are_human_readable() -> None:
    assert [_size(each) for each in (0, 1023, 1536, 5 << 30)] == [
        *("0 B", "1023 B", "1.5 KiB"),
        "5.0 GiB",
    ]
    assert [_span(each) for each in (5, 300, 9000, 400_000)] == ["5 s", "5 min", "2 h", "5 d"]
