"""Packages of `make dist`, installed in empty environments: alone, and with each extra alone."""

import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from hatch_build import CLONE_EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"].keys() - CLONE_EXTRAS)
LARGE = {"all", "spark", "java"}
"""Some hundreds of megabytes."""

TIMEOUT_S = 900


def run(*command: str | Path, cwd: Path) -> str:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist() -> Path:
    """`make dist` as people type it; it says what twine found."""
    said = run("make", "-s", "dist", cwd=ROOT)
    assert said.count("PASSED") == 3, said
    return ROOT / "dist"


def installed(dist: Path, folder: Path, extra: str = "") -> Path:
    """An environment with both wheels and what they ask for; gives its programs."""
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    programs = folder / "venv" / "bin"
    wanted = f"troupemq[{extra}]" if extra else "troupemq"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--find-links", dist)
    run(*pip, f"{wanted}=={PROJECT['version']}", cwd=folder)
    return programs


@pytest.mark.slow(seconds=30)
def test_the_sdist_has_all_files_for_a_build_and_an_operator(dist: Path) -> None:
    (path,) = dist.glob("troupemq-*.tar.gz")
    with tarfile.open(path) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    wanted = {"pyproject.toml", "hatch_build.py", "LICENSE", "README.md", "conf/broker.conf"}
    wanted |= {"storage/message_store.py", "conf/deploy/systemd/troupemq-broker.service"}
    assert wanted <= names
    assert not [name for name in names if name.startswith((".venv", "data/", "dist/"))]


@pytest.mark.slow(seconds=60)
def test_without_extras_the_tour_runs_and_names_what_it_omits(dist: Path, tmp_path: Path) -> None:
    programs = installed(dist, tmp_path)
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    said = run(programs / "troupemq", "run", "--once", *ports, cwd=tmp_path)
    assert "Skipping the scheduled job and the archive: Spark is not installed" in said
    assert "messages consumed     1,000" in said


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize(
    "extra",
    [pytest.param(each, marks=[pytest.mark.whole] * (each in LARGE)) for each in EXTRAS],
)
def test_each_extra_installs_alone(dist: Path, tmp_path: Path, extra: str) -> None:
    programs = installed(dist, tmp_path, extra)
    run(programs / "python", "-m", "pip", "check", cwd=tmp_path)
    program = "import troupemq, troupemq.cli; print(troupemq.Message)"
    run(programs / "python", "-c", program, cwd=tmp_path)


@pytest.mark.slow(seconds=200)
@pytest.mark.whole
def test_with_spark_and_java_the_tour_is_complete(dist: Path, tmp_path: Path) -> None:
    programs = installed(dist, tmp_path, "spark,java")
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    said = run(programs / "troupemq", "run", "--once", *ports, cwd=tmp_path)
    assert "rows archived" in said and "Left out" not in said
