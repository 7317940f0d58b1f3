"""Tests of troupemq/doctor.py: each trouble has its line, and a start ends as the doctor says."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import socket

import pytest

from actors.config import parse_broker_config
from actors.network.connections import open_listener
from storage.clock import SystemClock
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from tests.compat.servers import SMALL_FILES
from troupemq import doctor
from troupemq.doctor import (
    ADVICE,
    KERNEL,
    OK,
    REFUSED,
    Diagnosis,
    examine_broker,
    examine_jobs,
    examine_machine,
    exit_code_of_all,
    python_of,
)
from troupemq.exit_codes import REFUSALS, exit_code_of
from troupemq.jobs_python import JobsPython, NoSpark
from troupemq.runtime import JIT_OFF, JIT_ON, NO_JIT, Runtime
from troupemq.servers import Servers

HOST = "127.0.0.1"


def settings(tmp_path: Path, **more: str) -> dict[str, str]:
    own = {"listenPort": "0", "bindAddress": HOST, "brokerIP1": HOST}
    return {**own, "storePathRootDir": str(tmp_path / "store"), **SMALL_FILES, **more}


def examined(tmp_path: Path, **more: str) -> list[Diagnosis]:
    broker, store, _ = parse_broker_config("", settings(tmp_path, **more))
    return list(examine_broker(broker, store))


def refused(found: list[Diagnosis]) -> list[str]:
    return [each.name for each in found if each.verdict == REFUSED]


def code_of_a_start(tmp_path: Path, **more: str) -> int:
    broker, store, _ = parse_broker_config("", settings(tmp_path, **more))
    servers = Servers(lambda reason: None)
    with pytest.raises((StoreError, OSError, Exception)) as caught:
        servers.start_broker(broker, store)
    return exit_code_of(caught.value)


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for one starts it, or another Python."""
    monkeypatch.setattr(doctor, "find_java", lambda *_, **__: "/opt/java")
    python = JobsPython("/opt/python", "CPython 3.11.2")
    monkeypatch.setattr(doctor, "find_jobs_python", lambda _: python)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store that was stopped in order."""
    _, config, _ = parse_broker_config("", settings(tmp_path))
    store = MessageStore(config, RealDisk(), SystemClock())
    store.open()
    store.close()
    return tmp_path / "store"


@pytest.fixture
def taken() -> Iterator[socket]:
    sock = open_listener(HOST, 0, "test")
    yield sock
    sock.close()


def test_an_advertised_address_without_a_listener_is_refused_as_by_a_start(
    tmp_path: Path,
) -> None:
    found = examined(tmp_path, brokerIP1="::1")
    assert refused(found) == ["settings"]
    assert exit_code_of_all(found) == code_of_a_start(tmp_path, brokerIP1="::1") == 10


def test_a_healthy_machine_has_no_problems(tmp_path: Path) -> None:
    found = examined(tmp_path)
    assert refused(found) == [] and exit_code_of_all(found) == 0
    assert not (tmp_path / "store").exists()


def test_a_port_in_use_is_found(tmp_path: Path, taken: socket) -> None:
    port = str(taken.getsockname()[1])
    found = examined(tmp_path, healthPort=port)
    assert refused(found) == ["port"]
    assert exit_code_of_all(found) == code_of_a_start(tmp_path, healthPort=port) == 11


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"bindAddress": "a..b"}, 11),
        ({"brokerIP1": "a..b"}, 10),
        ({"metricsExporterType": "PROM", "metricsPromExporterHost": "192.0.2.1"}, 11),
        ({"storePathCommitLog": "/dev/null/log"}, 14),
    ],
)
def test_a_start_was_refused_that_was_said_to_succeed(
    settings: dict[str, str], code: int, tmp_path: Path
) -> None:
    found = examined(tmp_path, **settings)
    assert exit_code_of_all(found) == code_of_a_start(tmp_path, **settings) == code
    (told,) = [each for each in found if each.verdict == REFUSED]
    assert list(settings)[-1] in told.cure


def test_a_relative_path_without_any_folder_yet_ends_in_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = examined(tmp_path, storePathRootDir="new/store")
    assert refused(found) == []


def test_a_foreign_replication_address_is_found(tmp_path: Path) -> None:
    with open_listener(HOST, 0, "nobody's") as sock:
        port = str(sock.getsockname()[1])
    found = examined(tmp_path, listenPort=port, haBindAddress="192.0.2.1")
    (told,) = [each for each in found if "haBindAddress" in each.cure]
    assert (told.verdict, told.found) == (REFUSED, f"listenPort + 1 {int(port) + 1}")


def test_a_newer_store_is_found(tmp_path: Path, made: Path) -> None:
    path = made / "troupemq" / "format.json"
    path.write_text('{"format": 9, "needs": "9.0"}\n')
    found = examined(tmp_path)
    assert refused(found) == ["format"]
    assert exit_code_of_all(found) == code_of_a_start(tmp_path) == 19


def test_an_unfinished_copy_is_found(tmp_path: Path, made: Path) -> None:
    (made / "troupemq" / "backup.running.json").write_text("{}\n")
    found = examined(tmp_path)
    assert refused(found) == ["copy"]
    assert exit_code_of_all(found) == code_of_a_start(tmp_path) == 20


def test_a_file_at_the_stores_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    assert exit_code_of_all(examined(tmp_path)) == code_of_a_start(tmp_path) == 14


def test_a_clock_behind_the_store_is_found(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = bytearray((made / "checkpoint").read_bytes())
    checkpoint[:8] = (SystemClock().now_ms() + 86_400_000).to_bytes(8, "big")
    checkpoint[64:108] = bytes(44)  # as RocketMQ writes it
    (made / "checkpoint").write_bytes(checkpoint)
    found = examined(tmp_path)
    assert refused(found) == ["clock"]
    assert exit_code_of_all(found) == code_of_a_start(tmp_path) == 18


def test_a_too_small_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealDisk, "capacity", lambda *_: (1 << 20, 1 << 20))
    found = examined(tmp_path)
    assert refused(found) == ["disk"]
    assert exit_code_of_all(found) == code_of_a_start(tmp_path) == 13


def test_a_full_disk_besides_that_of_the_log_is_noted(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usages = {f"{made}/commitlog": 0.2, str(made): 0.95}
    monkeypatch.setattr(RealDisk, "usage_ratio", lambda _, path: usages[path])
    (found,) = [each for each in examined(tmp_path) if each.name == "disk use"]
    assert (found.verdict, found.found) == (ADVICE, "95% are used")


def test_an_unwritable_store_is_found(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("checkpoint"))
    found = examined(tmp_path)
    assert refused(found) == ["permissions"] and exit_code_of_all(found) == 14
    assert f"cannot read and write {made}/checkpoint" in str(found)


def test_a_folder_without_room_for_files_is_found() -> None:
    """Everything may write to /proc, but nothing can make a file there."""
    settings = {"storePathRootDir": "/proc/store", "listenPort": "0"}
    found = list(examine_broker(*parse_broker_config("", settings)))
    (permissions,) = [each for each in found if each.name == "permissions"]
    assert permissions.verdict == REFUSED and "/proc" in permissions.cure


def test_a_store_in_use_is_found(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "lock_owner", lambda path: 4242)
    found = examined(tmp_path)
    assert refused(found) == ["lock"] and exit_code_of_all(found) == 12
    assert "in use by process 4242" in str(found)


def test_few_open_files_are_refused_or_advised_against(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for allowed in (512, 4096, 1 << 20):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=allowed: (256, most))
        lines = examine_machine({})
        found[allowed] = next(each.verdict for each in lines if each.name == "files")
    assert found == {512: REFUSED, 4096: ADVICE, 1 << 20: OK}


def test_a_start_with_few_open_files_is_refused_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    monkeypatch.setattr(resource, "setrlimit", lambda _, __: None)
    assert code_of_a_start(tmp_path) == 15


def test_each_kernel_setting_is_read_and_judged(tmp_path: Path) -> None:
    values = {"somaxconn": "128", "swappiness": "60", "dirty_ratio": "50", "enabled": "[always] x"}
    for setting in KERNEL:
        path = tmp_path / setting.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(values.get(path.name, "65530" if path.name != "zone_reclaim_mode" else "0"))
    found = {each.name: each for each in examine_machine({}, tmp_path)}
    advised = {name.rpartition(".")[2] for name in found if found[name].verdict == ADVICE}
    assert values.keys() <= advised
    assert "zone_reclaim_mode" not in advised
    assert "1024" in found["net.core.somaxconn"].cure


def test_an_unreadable_kernel_setting_is_ok(tmp_path: Path) -> None:
    found = {each.name: each for each in examine_machine({}, tmp_path)}
    assert found["vm.swappiness"].found == "not readable here"


CPYTHON = Runtime("CPython", "3.11.2", "3.11", True, NO_JIT)


@pytest.mark.parametrize(
    ("runtime", "environment", "verdict", "words"),
    [
        (CPYTHON, {}, ADVICE, "PyPy 3.11 (about 40 % less)"),
        (
            CPYTHON._replace(is_optimised=False),
            {},
            ADVICE,
            "--enable-optimizations (about 5 % less)",
        ),
        (CPYTHON._replace(jit=JIT_ON), {}, OK, "CPython 3.11.2 with JIT"),
        (CPYTHON._replace(jit=JIT_OFF), {}, OK, "a start switches it on"),
        (CPYTHON._replace(jit=JIT_OFF), {"PYTHON_JIT": "0"}, ADVICE, "unset PYTHON_JIT"),
        (Runtime("PyPy", "8.0.1", "3.11", True, JIT_ON), {}, OK, "PyPy 8.0.1 (Python 3.11)"),
    ],
)
def test_the_python_is_named_with_the_gain_of_a_faster_one(
    monkeypatch: pytest.MonkeyPatch,
    runtime: Runtime,
    environment: dict[str, str],
    verdict: str,
    words: str,
) -> None:
    monkeypatch.setattr(doctor, "may_make_code", lambda: True)
    found = python_of(runtime, environment)
    assert (found.name, found.verdict) == ("python", verdict)
    assert words in found.found + found.cure
    assert f"{runtime}, {sys.executable}" in found.found


def test_a_system_without_a_possible_jit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "may_make_code", lambda: False)
    found = python_of(CPYTHON._replace(jit=JIT_OFF), {})
    assert found.verdict == ADVICE and "MemoryDenyWriteExecute" in found.cure


def test_the_python_and_the_java_of_jobs_are_named() -> None:
    assert list(examine_jobs("/opt/python", {})) == [
        Diagnosis("jobs", OK, "CPython 3.11.2, /opt/python"),
        Diagnosis("java", OK, "/opt/java"),
    ]


@pytest.mark.parametrize(("named", "verdict"), [("", OK), ("/opt/python", ADVICE)])
def test_without_spark_only_a_configured_python_gets_advice(
    monkeypatch: pytest.MonkeyPatch, named: str, verdict: str
) -> None:
    def fails(_: str) -> JobsPython:
        raise NoSpark("Spark is not installed: do this")

    monkeypatch.setattr(doctor, "find_jobs_python", fails)
    jobs, java = examine_jobs(named, {})
    assert (jobs.verdict, java.verdict) == (verdict, OK)
    assert "do this." in jobs.found + jobs.cure and "not checked" in java.found


def test_every_start_refusal_has_a_check(tmp_path: Path) -> None:
    found = (*examine_machine({}), *examine_jobs("", {}), *examined(tmp_path, healthPort="1"))
    names = {each.name for each in found}
    assert {each.name for each in REFUSALS} <= names
