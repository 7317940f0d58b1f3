"""The units in conf/deploy/systemd: how much they leave open, and that they fit the processes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import commands_of
from troupemq.cli import cli
from troupemq.daemon import DEADLINE_S
from troupemq.exit_codes import REFUSALS
from troupemq.masters import supervisor

UNITS = sorted((Path(__file__).resolve().parents[2] / "conf/deploy/systemd").glob("*.service"))
EXPOSURE_MAX = 2.5


def settings(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text("utf-8").splitlines() if re.match(r"\w+=", line)]
    return dict(line.split("=", 1) for line in lines)


def test_each_server_has_a_unit() -> None:
    assert [unit.name for unit in UNITS] == ["troupemq-broker.service", "troupemq-namesrv.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_fits_the_process(unit: Path) -> None:
    found = settings(unit)
    command = found["ExecStart"].split()
    assert command[1] in commands_of(cli)
    assert found["Type"] == "notify" and int(found["WatchdogSec"]) >= 10
    assert int(found["TimeoutStopSec"]) > max(DEADLINE_S, supervisor.DEADLINE_S)
    refused = set(map(int, found["RestartPreventExitStatus"].split()))
    assert refused == {2, *(each.code for each in REFUSALS)}


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_leaves_little_open(unit: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here: apt install systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    level = re.search(r"Overall exposure level for [\w.-]+: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= EXPOSURE_MAX
    verified = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    unknown = [line for line in verified.stderr.splitlines() if "is not executable" not in line]
    assert unknown == []
