"""The benchmark's choice of Pythons, its order of brokers, and its table of runtimes."""

import json
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import in_turn
from tests.bench.interpreters import Interpreter, UnfitInterpreter, chosen
from tests.bench.kept import Run, runtimes_table

DEBIAN = "'--enable-shared' '--prefix=/usr' 'CFLAGS=-g   -Wformat'"
BUILDS = [
    (("cpython", "3.11.2", [], False, DEBIAN), "CPython 3.11.2"),
    (("cpython", "3.15.0", [], True, DEBIAN), "CPython 3.15.0 with JIT"),
    (("cpython", "3.13.1", [], False, "'--enable-optimizations'"), "CPython 3.13.1"),
    (("pypy", "3.11.15", [8, 0, 1], False, ""), "PyPy 8.0.1 (Python 3.11.15)"),
]
UNOPTIMISED: object = ("cpython", "3.11.7", [], False, "'--prefix=/opt/python' '--enable-shared'")


def python(tmp_path: Path, build: object) -> str:
    """Return the path of a script that answers as a Python of that build."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(build)}\nEND\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "name"), BUILDS)
def test_an_optimised_build_is_measured_by_its_name(
    tmp_path: Path, build: object, name: str
) -> None:
    assert list(chosen([python(tmp_path, build)], unoptimised=False)) == [name]


@pytest.mark.slow
def test_an_unoptimised_build_is_refused_unless_accepted(tmp_path: Path) -> None:
    path = python(tmp_path, UNOPTIMISED)
    with pytest.raises(UnfitInterpreter, match=r"CPython 3\.11\.7 without optimisation: choose"):
        chosen([path], unoptimised=False)
    assert list(chosen([path], unoptimised=True)) == ["CPython 3.11.7 without optimisation"]


@pytest.mark.slow
def test_a_program_that_is_not_python_is_a_one_sentence_error(tmp_path: Path) -> None:
    for path in (str(tmp_path / "missing"), "/bin/false"):
        with pytest.raises(UnfitInterpreter, match=path):
            chosen([path], unoptimised=True)


@pytest.mark.slow
def test_the_running_python_reports_its_build() -> None:
    assert sys.version.split()[0] in Interpreter.asked(sys.executable).name


def test_each_broker_goes_first_once_in_as_many_rounds() -> None:
    orders = [in_turn(["a", "b", "c"], number) for number in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_the_table_of_runtimes_marks_missed_goals() -> None:
    def rounds(rate: float, cpu_us: float, p99_ms: float) -> list[dict[str, float | None]]:
        figures = {"messages/s": rate, "broker_us": cpu_us, "p99_ms": p99_ms}
        return [{**figures, "anonymous_mib": rate / 10}]

    run = Run("", "", "", {}, {})
    run.rows["send", "official"] = [*rounds(100, 20, 4)]
    run.rows["send", "PyPy 8"] = [*rounds(160, 10, 2)]
    run.rows["send", "official-5.5"] = [*rounds(80, 30, 5)]
    run.rows["batches", "official"] = [*rounds(100, 2, 4)]
    _, _, *lines = runtimes_table(run).splitlines()
    assert lines == [
        "| send, 64 threads | ≥ 1.5, ≤ 0.42, ≤ 1.0 | 0.80, 1.50, 1.25 | 1.60, 0.50 !, 0.50 |",
        "| anonymous MiB at most (official 10) |  | 8 | 16 |",
    ]
