"""Tests of storage/child_python.py: nothing of the working directory runs in our processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark import class_data_session, runner
from spark.leasing import keeper
from spark.session import DEFAULTS, prepare_environment
from spark.shipping import linked_packages
from storage.child_python import (
    LINKS,
    PACKAGE_ROOT,
    child_command,
    child_environment,
    link_packages,
    python_path,
)
from storage.recovery import part_worker
from troupemq.console_child import ConsoleChild
from troupemq.masters.plan import BROKER

HOSTILE = ("json", "structlog", "typing", "click", "orjson", "subprocess", "pyspark", "pyarrow")
CHILDREN = {
    "part worker": child_command(part_worker.__name__, "{"),
    "keeper": child_command(keeper.MODULE),
    "runner": runner.command("no-such-job", {}, work_directory="/nowhere"),
    "class data": child_command(class_data_session.__name__),
    "master": [*BROKER, "--help"],
    "console": [*ConsoleChild("localhost:1", 0, Path("data"))._command[:5], "--help"],
    "python -m": [sys.executable, "-m", "troupemq", "--version"],
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules that leave a mark when they are imported."""
    for name in HOSTILE:
        text = f"open({str(tmp_path / 'MARK')!r}, 'a').write('{name} ')\nraise SystemExit(99)\n"
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", CHILDREN)
def test_a_child_process_imports_nothing_from_the_working_directory(
    name: str, hostile: Path
) -> None:
    """json.py and structlog.py of a folder in which a broker was started ran as the broker."""
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE_ROOT), ""])}
    environment = child_environment(inherited)
    if name == "python -m":
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(
        CHILDREN[name], cwd=hostile, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert not (hostile / "MARK").exists(), (hostile / "MARK").read_text()
    assert "No module named 'storage'" not in done.stderr and "troupemq'" not in done.stderr
    assert done.returncode != 99


def test_every_python_process_is_started_without_the_working_directory() -> None:
    """Checked in the product, the image and the Makefile; -I isolates the supervisor."""
    files = [
        path
        for package in ("storage", "actors", "spark", "troupemq", "conf/deploy/container")
        for path in (PACKAGE_ROOT / package).rglob("*")
        if path.suffix == ".py" or path.name == "Dockerfile"
    ]
    texts = {path: path.read_text("utf-8") for path in [*files, PACKAGE_ROOT / "Makefile"]}
    wrong = re.compile(r'(executable|python3"|\$\(python\)),? "?-m"?,? "?(troupemq|\w*(?i:module))')
    assert [str(path) for path, text in texts.items() if wrong.search(text)] == []


def test_the_environment_of_a_child_applies_to_its_children() -> None:
    found = child_environment({"A": "b", "PYTHONPATH": f"x{os.pathsep}{os.pathsep}y"})
    assert found["A"] == "b" and found["PYTHONSAFEPATH"] == "1"
    assert found["PYTHONPATH"].split(os.pathsep) == [str(PACKAGE_ROOT), "x", "y"]
    assert python_path(found["PYTHONPATH"]) == found["PYTHONPATH"]


def test_sparks_python_workers_exclude_the_working_directory() -> None:
    environment: dict[str, str] = {}
    prepare_environment(DEFAULTS, environment)
    assert environment["PYTHONSAFEPATH"] == "1"
    assert DEFAULTS["spark.executorEnv.PYTHONSAFEPATH"] == "1"


@pytest.mark.slow
def test_links_expose_only_our_packages_to_a_process(tmp_path: Path) -> None:
    """Another Python took numpy from the folder of the broker's packages, made for the broker's."""
    packages = linked_packages()
    link_packages(tmp_path, packages)
    links = tmp_path / LINKS
    assert {each.name: each.readlink() for each in links.iterdir()} == packages
    environment = runner.environment({**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}, None, links)
    text = "import sys\nfrom storage.child_python import *\nprint(PACKAGE_ROOT, sys.path[0])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", text],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == [str(links), str(links)]
    assert environment["PYTHONPATH"] == str(links)
