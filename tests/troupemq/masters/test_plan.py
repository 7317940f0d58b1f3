"""The settings of several masters, derived from one file's, and what is refused."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import pytest

from actors.config import BrokerConfig, ConfigError, parse_broker_config
from storage.config import StoreConfig
from storage.errors import StoreError, StoreLocked
from storage.files.disk import RealDisk
from storage.files.lock_file import StoreLock
from troupemq.masters.plan import (
    BROKER,
    SPARE_OPTION,
    BrokerCommandLine,
    arguments_for_spare,
    derived,
    make_plan,
    supervise,
)
from troupemq.masters.supervisor import MastersPlan

NAMES = ["broker-a", "broker-a-1", "broker-a-2"]


def loaded(
    *settings: str, over: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, StoreConfig]:
    text = "\n".join(("brokerName=broker-a", "brokerIP1=127.0.0.1", *settings))
    return parse_broker_config(text, over)[:2]


def planned(tmp_path: Path, *settings: str, **line: Any) -> MastersPlan:
    """The plan for a file with these settings, three masters unless they say otherwise."""
    text = (f"storePathRootDir={tmp_path}/store", "masters=3", *settings)
    command = BrokerCommandLine(
        **{"config": "b.conf", "overrides": {}, "jobs": None, "log_json": False, "ready_file": None}
        | line
    )
    return make_plan(command, *loaded(*text), lambda own: loaded(*text, over=own))


def own(*settings: str, number: int) -> dict[str, str]:
    return derived(*loaded(*settings), number)


def test_the_health_port_is_shifted_without_a_collision() -> None:
    assert [own("healthPort=10915", number=number)["healthPort"] for number in range(3)] == [
        "10915",
        "10925",
        "10935",
    ]
    assert "healthPort" not in own(number=1)


def test_the_first_master_keeps_its_settings_and_others_are_numbered() -> None:
    found = [own("storePathRootDir=/s", number=number) for number in range(3)]
    assert [each["brokerName"] for each in found] == NAMES
    assert [each["listenPort"] for each in found] == ["10911", "10921", "10931"]
    assert [each["storePathRootDir"] for each in found] == ["/s", "/s-masters/1", "/s-masters/2"]
    assert all(each.keys() == {"brokerName", "listenPort", "storePathRootDir"} for each in found)


def test_each_master_has_its_own_metrics_port() -> None:
    on = "metricsExporterType=PROM"
    found = [own(on, number=number)["metricsPromExporterPort"] for number in range(3)]
    assert found == ["5557", "5567", "5577"]
    assert "metricsPromExporterPort" not in own(on, "metricsPromExporterPort=0", number=1)


def test_every_configured_folder_is_numbered() -> None:
    found = own("storePathCommitLog=/log", "retentionArchivePath=/archive", number=2)
    assert found["storePathCommitLog"] == "/log-masters/2"
    assert found["retentionArchivePath"] == "/archive-masters/2"


def test_a_slave_replicates_the_master_of_its_number() -> None:
    slave = "brokerRole=SLAVE", "brokerId=1", "haMasterAddress=master:10912"
    assert own(*slave, number=0)["haMasterAddress"] == "master:10912"
    assert own(*slave, number=2)["haMasterAddress"] == "master:10932"


def test_free_ports_stay_free_ports() -> None:
    assert own("listenPort=0", number=2)["listenPort"] == "0"


def test_each_master_overrides_settings_of_the_file(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, overrides={"namesrvAddr": "n:1"}, log_json=True)
    assert [each.name for each in plan.instances] == NAMES
    for number, each in enumerate(plan.instances):
        command = list(each.command)
        assert command[command.index("-c") + 1] == "b.conf" and "--log-json" in command
        assert command[command.index("--one-of") + 1] == "broker-a"
        assert command[command.index("--ready-file") + 1] == each.ready_file
        settings = {command[at + 1] for at, word in enumerate(command) if word == "-s"}
        assert {"namesrvAddr=n:1", "masters=3", f"listenPort={10911 + 10 * number}"} < settings


def test_a_spare_becomes_the_broker_of_the_command_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path)
    second = list(plan.instances[1].command)
    assert plan.spare == (*BROKER, SPARE_OPTION)
    reading, writing = os.pipe()
    os.write(writing, json.dumps(second).encode() + b"\n")
    with os.fdopen(writing, "wb"), os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert [*BROKER, *arguments_for_spare()] == second
        with pytest.raises(SystemExit) as ended:
            arguments_for_spare()  # its stdin is empty from then on, even while the pipe is open
    assert ended.value.code == 0


def test_only_the_first_master_runs_the_schedule(tmp_path: Path) -> None:
    for jobs, wanted in ((Path("j.conf"), "j.conf"), (None, None)):
        first, *others = (list(each.command) for each in planned(tmp_path, jobs=jobs).instances)
        assert (first[first.index("--jobs") + 1] if "--jobs" in first else None) == wanted
        assert [each[each.index("--jobs") + 1] for each in others] == [os.devnull] * 2


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (("listenPort=65520",), "listenPort 65520 is too high: 3 masters need ports up to 65541"),
        (("monitoringPort=10919",), "monitoringPort 10919 conflicts: one of the 3"),
        (
            ("metricsExporterType=PROM", "metricsPromExporterPort=10901"),
            "metricsPromExporterPort 10901 conflicts: 3 masters also need port 10911",
        ),
        (
            ("monitoringPort=10935", "healthPort=10915"),
            "monitoringPort 10935 conflicts: one of the 3",
        ),
        (("monitoringPort=10932",), "monitoringPort 10932 conflicts: one of the 3"),
        (("masters=65",), "masters is 65: it must be 1 to 64."),
        (("masters=0",), "masters is 0: it must be 1 to 64."),
    ],
)
def test_impossible_ports_are_a_one_sentence_error(
    tmp_path: Path, settings: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(tmp_path, *settings)
    assert str(refused.value).startswith(sentence)


def test_a_monitoring_port_is_served_by_a_separate_process(tmp_path: Path) -> None:
    assert planned(tmp_path).monitoring is None
    plan = planned(tmp_path, "monitoringPort=10908", overrides={"namesrvAddr": "n:1"})
    assert len(plan.instances) == 3 and plan.monitoring is not None
    command = list(plan.monitoring.command)
    assert command[command.index("--monitors") + 1] == f"{tmp_path}/store-masters/plan.json"
    assert command[command.index("--ready-file") + 1] == plan.monitoring.ready_file
    assert "namesrvAddr=n:1" in command and "--one-of" not in command


def test_metrics_of_monitored_masters_are_open_only_to_the_monitor() -> None:
    settings = "metricsExporterType=PROM", "monitoringPort=10908"
    found = own(*settings, "metricsPromExporterHost=192.0.2.1", number=1)
    assert found["metricsPromExporterHost"] == "127.0.0.1"
    assert found["tls.metrics.mode"] == "disabled"
    assert "metricsPromExporterHost" not in own("metricsExporterType=PROM", number=1)


def test_fewer_masters_than_stores_are_refused(tmp_path: Path) -> None:
    (tmp_path / "store-masters" / "3" / "commitlog").mkdir(parents=True)
    with pytest.raises(StoreError, match="start with --masters 4"):
        planned(tmp_path)


def test_a_store_in_use_refuses_the_plan_and_nothing_is_written(tmp_path: Path) -> None:
    second = tmp_path / "store-masters" / "1"
    lock = StoreLock(StoreConfig(str(second)), RealDisk())
    lock.acquire()
    with pytest.raises(StoreLocked, match="store-masters/1 is in use"):
        planned(tmp_path)
    lock.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store-masters"]
    planned(tmp_path)


def test_the_second_of_two_supervisors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, program: programs.append(program))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):  # of the brokers, not of the tests that follow
        monkeypatch.setenv(name, "")
    store, plan = StoreConfig(str(tmp_path / "store")), planned(tmp_path)
    supervise(plan, store)
    with pytest.raises(StoreLocked, match="are in use by another process"):
        supervise(plan, store)
    ((*_, path, lock),) = programs
    assert os.path.samestat(os.fstat(int(lock)), os.stat(path)) and os.get_inheritable(int(lock))
    assert os.environ["PYTHONSAFEPATH"] == "1"
    os.close(int(lock))


def test_a_plan_cut_by_a_full_disk_starts_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, program: programs.append(program))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, "")
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(StoreError, match=r"^cannot write .*store-masters/.*arge"):
            supervise(planned(tmp_path), StoreConfig(str(tmp_path / "store")))
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    assert not programs
