"""Tests of troupemq/cli/prepare.py: the archive is made by the Python that jobs run with."""

import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark.class_data import MODULE
from storage.child_python import LINKS
from troupemq.cli import cli, prepare
from troupemq.jobs_python import JobsPython, NoSpark


def run(monkeypatch: pytest.MonkeyPatch, python: JobsPython, *words: str) -> Result:
    monkeypatch.setattr(prepare, "find_jobs_python", lambda named: python)
    monkeypatch.setattr(prepare, "find_java", lambda _, package: "/java")
    return CliRunner().invoke(cli, ["job", "prepare", *words])


@pytest.mark.parametrize(
    ("code", "said", "output"),
    [
        (0, "/cache/class-data\n", "Spark's JVM now starts from /cache/class-data.\n"),
        (1, "it needs Java\n", "troupemq: it needs Java.\n"),
        (1, "", "troupemq: /opt/python failed to make a class-data archive.\n"),
    ],
)
def test_another_python_makes_it_with_our_packages(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, output: str
) -> None:
    def child(line: list[str], *, env: dict[str, str], **_: Any) -> CompletedProcess[str]:
        assert line == ["/opt/python", "-P", "-m", MODULE]
        links = Path(env["PYTHONPATH"].partition(":")[0])
        assert links.name == LINKS and (links / "spark" / "class_data.py").is_file()
        return CompletedProcess(line, code, said)

    monkeypatch.setattr(subprocess, "run", child)
    result = run(monkeypatch, JobsPython("/opt/python", "CPython 3.11.2"))
    assert (result.exit_code, result.output) == (code, output)


def test_the_python_of_the_command_makes_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "make_class_data", lambda given: Path(given["JAVA_HOME"], "x"))
    result = run(monkeypatch, JobsPython(sys.executable, "CPython 3.11.2"), "--json")
    assert (result.exit_code, "/java/x" in result.output) == (0, True)


def test_without_spark_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(named: str) -> JobsPython:
        raise NoSpark(f"there is no {named}")

    monkeypatch.setattr(prepare, "find_jobs_python", fails)
    result = CliRunner().invoke(cli, ["job", "prepare", "--jobs-python", "python9"])
    assert (result.exit_code, result.output) == (1, "troupemq: there is no python9.\n")
