"""Tests of troupemq/cli/doctor.py: lines, JSON and exit codes."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from storage.files.disk import RealDisk
from troupemq import doctor
from troupemq.cli import cli
from troupemq.doctor import OK, Diagnosis
from troupemq.jobs_python import JobsPython
from troupemq.runtime import this_runtime


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for one starts it, or another Python."""
    monkeypatch.setattr(doctor, "find_java", lambda *_, **__: "/opt/java")
    python = JobsPython("/opt/python", "CPython 3.11.2")
    monkeypatch.setattr(doctor, "find_jobs_python", lambda _: python)


def no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the ports of `run`, which may be in use."""
    doctors = sys.modules["troupemq.cli.doctor"]
    monkeypatch.setattr(doctors, "BROKER_PORT", 0)
    monkeypatch.setattr(doctors, "examine_namesrv", lambda *_: Diagnosis("port", OK, "free"))


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], catch_exceptions=False)


def test_doctor_prints_a_line_for_each_check_and_json_on_request(tmp_path: Path) -> None:
    options = ("-s", f"storePathRootDir={tmp_path}/store", "-s", "listenPort=0")
    plain, machine = ask(*options), ask(*options, "--json")
    assert plain.exit_code == machine.exit_code
    found = [json.loads(line) for line in machine.output.splitlines()]
    named = {each["name"]: each["found"] for each in found}
    assert named["python"].startswith(str(this_runtime()))
    assert named["jobs"] == "CPython 3.11.2, /opt/python" and named["java"] == "/opt/java"
    lines = plain.output.splitlines()
    assert found[-1]["name"] == "verdict" and lines[-1] == found[-1]["found"]
    assert lines[-1].startswith("ready: a start would succeed")
    assert len(lines) == len(found) + sum(each["verdict"] != "ok" for each in found)


def test_doctor_checks_the_data_folder_of_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_ports(monkeypatch)
    monkeypatch.setattr(RealDisk, "capacity", lambda *_: (2 << 30, 1 << 30))
    result = ask("--data", str(tmp_path / "data"))
    assert result.exit_code == 0, result.output
    assert f"ok       permissions: {tmp_path} is writable" in result.output
    monkeypatch.setattr(RealDisk, "capacity", lambda *_: (2 << 30, 1 << 20))
    result = ask("--data", str(tmp_path / "data"))
    assert result.exit_code == 13
    assert f"A new store in {tmp_path}/data/store takes 32.2 MiB" in result.output
    assert result.output.splitlines()[-1] == "1 problem, a start would fail: disk"
    assert list(tmp_path.iterdir()) == []


def test_without_options_doctor_checks_a_broker_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    no_ports(monkeypatch)
    found = [json.loads(line) for line in ask("--json").output.splitlines()]
    told = [each["found"] for each in found if each["name"] == "settings"]
    assert len(told) == 2 and told[1] == f"broker-a, store in {tmp_path}/data/store"


def test_impossible_settings_give_the_starts_refusal(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerRole=KING\n")
    result = ask("-c", str(path))
    assert result.exit_code == 10 and "brokerRole is KING" in result.output


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("metricsExporterType=PROMETHEUS", "metricsExporterType is PROMETHEUS"),
        ("metricsTopicPattern=(", "metricsTopicPattern"),
        ("otelTraces=perhaps", "otelTraces"),
        ("tls.server.mode=enforce", "tls.server.mode is enforce"),
        ("tls.server.mode=enforcing", "there is no certificate"),
        ("tls.config.file=/none/of/it", "cannot be read"),
        ("adminAllowedAddresses=10", "10"),
        ("aclEnable=true", "aclEnable is true, but the account file is unknown"),
        ("storePathRootDir=", "storePathRootDir is empty"),
    ],
)
def test_every_kind_of_invalid_setting_is_a_refusal_with_code_10(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, words: str
) -> None:
    """Settings of TLS and metrics were tracebacks, and a start without accounts was `ready`."""
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    folder = f"storePathRootDir={tmp_path}/store"
    result = ask("-s", folder, "-s", "listenPort=0", "-s", setting)
    assert result.exit_code == 10 and words in result.output, result.output
    assert result.output.splitlines()[-1].endswith("a start would fail: settings")


def test_unreadable_certificates_accounts_and_schedules_are_found_before_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of them refused a start that `doctor` had called ready."""
    monkeypatch.chdir(tmp_path)
    settings = {
        "storePathRootDir": f"{tmp_path}/store",
        "listenPort": "0",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": f"{tmp_path}/none.pem",
        "tls.server.keyPath": f"{tmp_path}/none.key",
        "aclEnable": "true",
        "rocketmq.acl.plain.file": f"{tmp_path}/acl.yml",
    }
    (tmp_path / "acl.yml").write_text("accounts: 5\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "jobs.conf").write_text("[nightly]\njob = archve\n")
    options = [word for each in settings.items() for word in ("-s", "=".join(each))]
    result = ask(*options)
    assert result.exit_code == 10, result.output
    for words in ("none.key cannot be read", "acl.yml", "there is no job archve"):
        assert words in result.output
    assert result.output.splitlines()[-1].startswith("3 problems, ")


def test_a_misspelled_setting_is_refused_and_in_a_file_a_warning(tmp_path: Path) -> None:
    """`-s flushDiskTyp=SYNC_FLUSH` was `ok settings`, and the broker flushed asynchronously."""
    here = ("-s", f"storePathRootDir={tmp_path}/store", "-s", "listenPort=0")
    result = ask(*here, "-s", "flushDiskTyp=SYNC_FLUSH")
    assert result.exit_code == 10
    assert "unknown setting flushDiskTyp: did you mean flushDiskType?" in result.output
    path = tmp_path / "broker.conf"
    path.write_text("flushDiskTyp=SYNC_FLUSH\nsendMessageThreadPoolNums=4\n")
    result = ask("-c", str(path), *here)
    assert result.exit_code == 0
    (line,) = [each for each in result.output.splitlines() if " settings: " in each]
    assert line.startswith("advice ")
    assert "unknown, ignored: flushDiskTyp (did you mean flushDiskType?)" in line
    assert "without effect here: sendMessageThreadPoolNums" in line


def test_an_unreadable_settings_file_is_a_permission_problem(
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
        assert f"{path} cannot be read: Permission denied; allow the user" in result.output
