"""Messages of `make` before it starts, and the files that `make clean` keeps."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def make(tmp_path: Path, python: str) -> subprocess.CompletedProcess[str]:
    """`make run` where nothing is installed and the only Python is this script."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{python}\n")
    script.chmod(0o755)
    command = ["make", "-s", "run", f"VENV={tmp_path}/venv", f"PYTHON={script}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_make_reports_a_too_old_python_in_one_sentence(tmp_path: Path) -> None:
    done = make(tmp_path, "exit 1")
    assert done.returncode != 0
    assert "TroupeMQ needs Python 3.11 or later" in done.stderr.splitlines()[0]
    assert not (tmp_path / "venv").exists()


@pytest.mark.slow
def test_make_reports_a_missing_venv_module_in_one_sentence(tmp_path: Path) -> None:
    done = make(tmp_path, 'case "$2" in *ensurepip*) exit 1 ;; esac')
    assert done.returncode != 0
    assert "lacks the module venv" in done.stderr.splitlines()[0]
    assert not (tmp_path / "venv").exists()


@pytest.mark.slow
def test_make_clean_touches_no_data() -> None:
    done = subprocess.run(
        ["make", "-n", "clean"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    words = done.stdout.split()
    assert ".venv" in words
    assert not {"data", "store", ".", "*"} & set(words)
