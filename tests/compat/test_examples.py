"""The projects of docs/examples, each from an empty folder with the built wheels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import main
from tests.support.golden import REPOSITORY

EXAMPLES = REPOSITORY / "docs/examples"
TIMEOUT_S = 90


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    main(str(folder))
    return folder


def run(folder: Path, *command: str | Path) -> str:
    """Run a command without this clone on its path; return its output."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.whole
@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("project", ["celery", "fastapi", "orders"])
def test_project_passes_its_tests_and_types(project: str, wheels: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / project, tmp_path / project)
    python = tmp_path / "venv/bin/python"
    uv = Path(sys.executable).with_name("uv")
    run(folder, uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    wanted = ("--python", python, "--find-links", wheels, "-r", "requirements.txt")
    run(folder, uv, "pip", "install", "--quiet", *wanted)
    said = run(folder, python, "-W", "error::DeprecationWarning:troupemq", "-m", "pytest", "-q")
    assert "passed" in said and "failed" not in said
    modules = sorted(each.stem for each in folder.glob("*.py"))
    names = [word for module in modules for word in ("-m", module)]
    run(folder, python, "-m", "mypy", "--strict", *names)
