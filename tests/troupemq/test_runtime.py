"""Tests of troupemq/runtime.py: what a start says of its Python, for Pythons that are not here."""

import json
import sys
from types import SimpleNamespace

import pytest

from troupemq import runtime
from troupemq.runtime import (
    JIT_OFF,
    JIT_ON,
    NO_JIT,
    Runtime,
    jit_of_3_13,
    jit_of_this,
    this_runtime,
    was_optimised,
)

PYENVS = "'--prefix=/opt/pyenv/versions/3.11.7' '--enable-shared' 'LDFLAGS=-L/opt/pyenv/lib'"
DEBIANS = "'--enable-shared' '--prefix=/usr' '--with-computed-gotos' 'CC=x86_64-linux-gnu-gcc'"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Runtime("CPython", "3.15.0", "3.15", True, JIT_ON), "CPython 3.15.0 with JIT"),
        (Runtime("CPython", "3.15.0", "3.15", True, JIT_OFF), "CPython 3.15.0, JIT off"),
        (Runtime("CPython", "3.11.2", "3.11", True, NO_JIT), "CPython 3.11.2"),
        (
            Runtime("CPython", "3.11.7", "3.11", False, NO_JIT),
            "CPython 3.11.7, built without optimisation",
        ),
        (
            Runtime("CPython", "3.14.0rc1", "3.14", False, JIT_ON),
            "CPython 3.14.0rc1 with JIT, built without optimisation",
        ),
        (Runtime("PyPy", "8.0.1", "3.11", True, JIT_ON), "PyPy 8.0.1 (Python 3.11)"),
    ],
)
def test_a_runtime_is_named_by_the_features_that_decide_its_speed(
    found: Runtime, text: str
) -> None:
    assert str(found) == text


@pytest.mark.parametrize(
    ("options", "folder", "optimised"),
    [
        (PYENVS, "/tmp/Python-3.11.7", False),
        (f"{PYENVS} '--enable-optimizations' '--with-lto'", "/usr/src/python", True),
        (DEBIANS, "/build/reproducible-path/python3.11-3.11.2/build-shared", True),
        (DEBIANS, "/build/python3.12-3.12.3/build-static", True),
        ("", "", False),
    ],
)
def test_debians_builds_count_as_optimised(options: str, folder: str, optimised: bool) -> None:
    assert was_optimised(options, folder) is optimised


@pytest.mark.parametrize(
    ("available", "enabled", "found"),
    [(False, False, NO_JIT), (True, False, JIT_OFF), (True, True, JIT_ON)],
)
def test_a_cpythons_own_jit_report_is_used(
    monkeypatch: pytest.MonkeyPatch, available: bool, enabled: bool, found: str
) -> None:
    own = SimpleNamespace(is_available=lambda: available, is_enabled=lambda: enabled)
    monkeypatch.setattr(sys, "_jit", own, raising=False)
    assert jit_of_this() == found


@pytest.mark.parametrize(
    ("option", "wish", "found"),
    [
        ("", "1", NO_JIT),
        ("--enable-experimental-jit=interpreter", "1", NO_JIT),
        ("--enable-experimental-jit", "", JIT_ON),
        ("--enable-experimental-jit=yes-off", "", JIT_OFF),
        ("--enable-experimental-jit=yes-off", "1", JIT_ON),
        ("--enable-experimental-jit=yes", "0", JIT_OFF),
    ],
)
def test_a_cpython_3_13_is_identified_by_its_build_options(
    option: str, wish: str, found: str
) -> None:
    assert jit_of_3_13(f"'--prefix=/usr' '{option}' 'CC=gcc'", wish) == found


def test_pypy_is_named_with_its_own_version_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    version = (8, 0, 1, "final", 0)
    own = SimpleNamespace(**{**vars(sys.implementation), "name": "pypy", "version": version})
    monkeypatch.setattr(sys, "implementation", own)
    language = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert str(this_runtime()) == f"PyPy 8.0.1 (Python {language})"
    assert this_runtime().compiles


def test_the_program_prints_the_paths_of_packages(capsys: pytest.CaptureFixture[str]) -> None:
    runtime.main(["json", "no_such_package"])
    told = json.loads(capsys.readouterr().out)
    assert told["packages"] == {"json": json.__file__}
    assert (told["path"], told["runtime"]) == (sys.executable, str(this_runtime()))
    assert told["language"] == list(sys.version_info[:2])
