"""Tests of troupemq/cli/jobs.py: `job run` without a broker, its refusals and its cancellation."""

import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.spark.store_writer import StoreWriter
from troupemq import jobs_python
from troupemq.cli import cli, jobs


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return StoreWriter(tmp_path / "place" / "store").close().root


def run(store: Path) -> Result:
    return CliRunner().invoke(cli, ["job", "run", "traffic", "--store", str(store)])


def test_ctrl_c_says_that_nothing_was_written(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended without a word, with exit code 0."""
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


def test_without_spark_no_log_is_named_and_no_folder_made(
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


def test_beside_what_is_no_store_no_folder_is_made(tmp_path: Path) -> None:
    result = run(tmp_path / "data" / "store")
    assert result.exit_code == 1
    assert result.stderr == (
        f"troupemq: {tmp_path}/data/store is no store directory: there is nothing at this path\n"
    )
    assert os.listdir(tmp_path) == []
