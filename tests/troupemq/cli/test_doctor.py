"""Tests of troupemq/cli/doctor.py: lines, JSON and exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from troupemq import doctor
from troupemq.cli import cli


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for one starts it."""
    monkeypatch.setattr(doctor, "find_java", lambda environment: "/opt/java")


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], catch_exceptions=False)


def test_it_gives_a_line_for_each_thing_and_json_on_demand(tmp_path: Path) -> None:
    options = ("-s", f"storePathRootDir={tmp_path}/store", "-s", "listenPort=0")
    plain, machine = ask(*options), ask(*options, "--json")
    assert plain.exit_code == machine.exit_code
    found = [json.loads(line) for line in machine.output.splitlines()]
    assert {each["name"]: each for each in found}["python"]["verdict"] == "ok"
    assert plain.output.count("\n") == len(found) + sum(each["verdict"] != "ok" for each in found)


def test_settings_that_cannot_work_are_the_refusal_of_the_start(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerRole=KING\n")
    result = ask("-c", str(path))
    assert result.exit_code == 10 and "brokerRole is KING" in result.output


def test_a_settings_file_that_may_not_be_read_is_a_matter_of_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=x\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    for command in ("doctor", "broker"):
        result = CliRunner().invoke(cli, [command, "-c", str(path)])
        assert result.exit_code == 14, result.output
        assert f"{path} cannot be read: Permission denied; let the user" in result.output
