"""Starts of `run`, `namesrv` and `broker`: settings of the command line, and room on the disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from storage.files.disk import RealDisk
from tests.troupemq.cli.test_servers import FREE_PORTS, run
from troupemq.cli import cli
from troupemq.cli import servers as commands
from troupemq.daemon import Serving


@pytest.mark.parametrize(
    ("command", "written", "meant"),
    [("broker", "flushDiskTyp", "flushDiskType"), ("namesrv", "kvConfgPath", "kvConfigPath")],
)
def test_a_server_does_not_start_with_a_misspelled_setting(
    command: str, written: str, meant: str
) -> None:
    result = CliRunner().invoke(cli, [command, "-s", f"{written}=x"])
    assert result.exit_code == 10
    assert result.stderr == f"troupemq: unknown setting {written}: did you mean {meant}?\n"


def test_a_name_server_accepts_settings_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def look(start: Callable[[Callable[[str], None]], Serving], **_: object) -> int:
        serving = start(pytest.fail)
        found.append(serving.ports["namesrv"])
        return 0 if serving.stop(20.0) else 1

    monkeypatch.setattr(commands, "serve", look)
    path = f"kvConfigPath={tmp_path}/kvConfig.json"
    line = ["namesrv", "-s", "listenPort=0", "-s", "bindAddress=127.0.0.1", "-s", path]
    assert CliRunner().invoke(cli, line).exit_code == 0
    assert found[0] != 9876


def test_run_refuses_a_full_disk_before_creating_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log, schedule and the name server's tables used to exist by then."""
    monkeypatch.setattr(RealDisk, "capacity", lambda *_: (2 << 30, 1 << 20))
    code, out, err = run("--no-tour", "--data", str(tmp_path / "data"), *FREE_PORTS)
    assert (code, out) == (13, "") and err.count("\n") == 1
    assert f"A new store in {tmp_path}/data/store takes 32.2 MiB" in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_to_end_after_no_tour_served_for_ever(tmp_path: Path) -> None:
    code, out, err = run("--once", "--no-tour", "--data", str(tmp_path / "data"), *FREE_PORTS)
    assert (code, out) == (2, "") and "--once ends after the tour" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_the_space_of_a_new_store_is_checked_before_it_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`takes 51.1 MiB of the disk at once (44 MiB are free)`, said a start that fitted."""

    def free(_: RealDisk, __: str) -> tuple[int, int]:
        return 2 << 30, (20 if (tmp_path / "store").exists() else 40) << 20

    def serve_a_moment(start: Callable[[Callable[[str], None]], Serving], **_: object) -> int:
        return 0 if start(pytest.fail).stop(20.0) else 1

    monkeypatch.setattr(RealDisk, "capacity", free)
    monkeypatch.setattr(commands, "serve", serve_a_moment)
    code, out, _ = run("--no-tour", "--data", str(tmp_path), *FREE_PORTS)
    assert code == 0 and "which takes 32.2 MiB of the disk at once (40 MiB are free)" in out
