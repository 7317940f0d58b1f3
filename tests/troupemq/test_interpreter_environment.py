"""Tests of a server that executes itself once more, for its interpreter, and loses nothing."""

import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.child_python import JIT, OWN_JIT, may_make_code
from storage.errors import WrongSetting
from tests.support.golden import REPOSITORY
from tests.support.runtimes import IS_PYPY
from troupemq import interpreter_environment
from troupemq.interpreter_environment import (
    COLLECTOR,
    execute_for_server,
    obey_setting,
    wanted_by_server,
)
from troupemq.runtime import JIT_OFF, JIT_ON, NO_JIT

pytestmark = pytest.mark.skipif(IS_PYPY, reason="about the JIT of CPython")

OURS = {"A": "b", JIT: "1", OWN_JIT: "1"}

WITH_A_JIT = """
import os, sys
class Jit:
    is_available = staticmethod(lambda: True)
    is_enabled = staticmethod(lambda: os.environ.get("PYTHON_JIT") == "1")
sys._jit = Jit
print(os.getpid(), os.environ.get("PYTHON_JIT"), file=sys.stderr)
from troupemq.__main__ import main
main()
"""
"""A server on a CPython with its JIT off, unless the environment switches it on."""


class Executed:
    """Record of the exec calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], Mapping[str, str]]] = []

    def __call__(self, path: str, line: list[str], environment: Mapping[str, str]) -> None:
        self.calls.append((path, line, environment))


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Executed:
    monkeypatch.setattr(interpreter_environment, "jit_of_this", lambda: JIT_OFF)
    monkeypatch.setattr(interpreter_environment, "may_make_code", lambda: True)
    return Executed()


def test_a_disabled_jit_is_enabled_by_one_reexecution(
    executed: Executed, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["python3", "-P", "-X", "dev", "-m", "troupemq", "broker", "-s", "a=b c"]
    monkeypatch.setattr(sys, "orig_argv", line)
    execute_for_server({"A": "b"}, executed)
    assert executed.calls == [(sys.executable, [sys.executable, *line[1:]], OURS)]
    execute_for_server(executed.calls[0][2], executed)
    assert len(executed.calls) == 1


@pytest.mark.parametrize("wish", ["0", "1"])
def test_variables_of_the_environment_are_kept(executed: Executed, wish: str) -> None:
    execute_for_server({JIT: wish}, executed)
    obey_setting(False, None, {JIT: wish}, executed)
    assert executed.calls == []


@pytest.mark.parametrize("state", [NO_JIT, JIT_ON])
def test_without_a_jit_or_with_an_enabled_one_nothing_happens(
    executed: Executed, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(interpreter_environment, "jit_of_this", lambda: state)
    execute_for_server({}, executed)
    assert executed.calls == []


def test_the_jit_stays_off_if_making_code_is_forbidden(
    executed: Executed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MemoryDenyWriteExecute of a unit: CPython ends with a fatal error at the first hot loop."""
    monkeypatch.undo()
    monkeypatch.setattr(interpreter_environment, "jit_of_this", lambda: JIT_OFF)
    assert may_make_code()

    def refused(*_: object, prot: int) -> None:
        assert prot & mmap.PROT_EXEC
        raise PermissionError

    monkeypatch.setattr(mmap, "mmap", refused)
    execute_for_server({}, executed)
    assert executed.calls == []


def test_a_failed_exec_does_not_stop_a_server(executed: Executed) -> None:
    def fails(*_: object) -> None:
        raise OSError("no such file")

    execute_for_server({}, fails)


def test_the_setting_disables_an_inherited_jit(executed: Executed) -> None:
    obey_setting(True, None, OURS, executed)
    assert executed.calls == []
    obey_setting(False, __file__, OURS, executed)
    ((_, _, environment),) = executed.calls
    assert environment == {**OURS, JIT: "0"}
    obey_setting(False, __file__, environment, executed)
    assert len(executed.calls) == 1


def test_settings_from_a_pipe_survive_the_reexecution(executed: Executed, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(WrongSetting, match="is not a regular file: set PYTHON_JIT=0"):
        obey_setting(False, str(pipe), OURS, executed)
    assert executed.calls == []


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["true", "false"])
def test_a_server_keeps_its_pid_options_and_signals(tmp_path: Path, setting: str) -> None:
    settings = tmp_path / "namesrv.conf"
    settings.write_text(f"pythonJit = {setting}\nbindAddress = 127.0.0.1\nlistenPort = 1\n")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)}
    environment.pop(JIT, None)
    line = [sys.executable, "-P", "-c", WITH_A_JIT, "namesrv", "-c", str(settings), "-p", "0"]
    with subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        serves = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and re.match(r"Name server on port \d\d+\.", serves), said
    wishes = ["None", "1", *(["0"] if setting == "false" else [])]
    assert said.splitlines()[: len(wishes)] == [f"{process.pid} {each}" for each in wishes]
    assert said.count(f"{process.pid} ") == len(wishes)


def test_pypy_gets_missing_variables_and_no_jit_setting() -> None:
    own = {"PYPY_GC_NURSERY": "32MB", "HOME": "/"}
    wanted = wanted_by_server(own, "pypy")
    assert wanted == {name: value for name, value in COLLECTOR.items() if name not in own}
    assert wanted_by_server({**own, **wanted}, "pypy") == {}
