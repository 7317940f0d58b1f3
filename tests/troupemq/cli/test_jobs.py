"""Tests of troupemq/cli/jobs.py: `job run` without a broker, and `job prepare`."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark.class_data import MODULE
from storage.child_python import LINKS
from tests.spark.store_writer import StoreWriter
from troupemq import jobs_python
from troupemq.cli import cli, jobs
from troupemq.jobs_python import JobsPython, NoSpark


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return StoreWriter(tmp_path / "place" / "store").close().root


def run(store: Path, *further: str) -> Result:
    return CliRunner().invoke(cli, ["job", "run", "traffic", "--store", str(store), *further])


def test_ctrl_c_reports_that_nothing_was_written(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command used to end silently, with exit code 0."""
    over = Event()

    def interrupted(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(60)
        raise jobs.JobFailed("too late to matter")

    monkeypatch.setattr(jobs, "_run_to_end", interrupted)
    result = run(store)
    over.set()
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.endswith("troupemq: The job traffic was cancelled; nothing was written.\n")


@pytest.mark.parametrize(
    ("further", "said"),
    [
        (("-a", "store=5"), "traffic: store = 5 is not a text"),
        (("-a", "commit_log=7"), "traffic: commit_log = 7 is not a text"),
    ],
)
def test_number_in_place_of_a_path_ended_in_a_traceback(
    store: Path, further: tuple[str, ...], said: str
) -> None:
    result = run(store, *further)
    assert (result.exit_code, result.stderr) == (1, f"troupemq: {said}\n")


def test_root_as_output_ended_in_a_traceback(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(
        jobs, "_run_here", lambda _, __, folder, *___, **____: folders.append(folder)
    )
    assert run(store, "--output", "/").exit_code == 0
    assert folders == [Path("/jobs")]


def test_without_spark_no_log_is_named_and_no_folder_created(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_python, "is_installed", lambda _: False)
    monkeypatch.setenv("PATH", str(store))  # no other Python either
    result = run(store)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("troupemq: The job traffic failed: Spark is not installed: ")
    assert " -m pip install " in last and "log:" not in last
    assert os.listdir(store.parent) == ["store"]


def test_without_a_store_no_folder_is_created(tmp_path: Path) -> None:
    result = run(tmp_path / "data" / "store")
    assert result.exit_code == 1
    assert result.stderr == (
        f"troupemq: {tmp_path}/data/store is no store directory: the path does not exist\n"
    )
    assert os.listdir(tmp_path) == []


def prepare(monkeypatch: pytest.MonkeyPatch, python: JobsPython, *words: str) -> Result:
    monkeypatch.setattr(jobs, "find_jobs_python", lambda named: python)
    monkeypatch.setattr(jobs, "find_java", lambda _, package: "/java")
    return CliRunner().invoke(cli, ["job", "prepare", *words])


@pytest.mark.parametrize(
    ("code", "said", "output"),
    [
        (0, "/cache/class-data\n", "Spark's JVM now starts from /cache/class-data.\n"),
        (1, "it needs Java\n", "troupemq: it needs Java.\n"),
        (1, "", "troupemq: /opt/python failed to make a class-data archive.\n"),
    ],
)
def test_prepare_runs_the_python_of_jobs_with_linked_packages(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, output: str
) -> None:
    def child(line: list[str], *, env: dict[str, str], **_: Any) -> CompletedProcess[str]:
        assert line == ["/opt/python", "-P", "-m", MODULE]
        links = Path(env["PYTHONPATH"].partition(":")[0])
        assert links.name == LINKS and (links / "spark" / "class_data.py").is_file()
        return CompletedProcess(line, code, said)

    monkeypatch.setattr(subprocess, "run", child)
    result = prepare(monkeypatch, JobsPython("/opt/python", "CPython 3.11.2"))
    assert (result.exit_code, result.output) == (code, output)


def test_prepare_needs_no_process_for_its_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "make_class_data", lambda given: Path(given["JAVA_HOME"], "x"))
    result = prepare(monkeypatch, JobsPython(sys.executable, "CPython 3.11.2"), "--json")
    assert (result.exit_code, "/java/x" in result.output) == (0, True)


def test_prepare_without_spark_prints_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(named: str) -> JobsPython:
        raise NoSpark(f"there is no {named}")

    monkeypatch.setattr(jobs, "find_jobs_python", fails)
    result = CliRunner().invoke(cli, ["job", "prepare", "--jobs-python", "python9"])
    assert (result.exit_code, result.output) == (1, "troupemq: there is no python9.\n")
