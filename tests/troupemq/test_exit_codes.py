"""Every refusal of a start has an exit code of its own, which the manual lists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from actors.config import BrokerConfig
from actors.engine.system import StartFailed
from actors.network.connections import PortTaken
from storage.config import StoreConfig
from storage.errors import (
    ClockBehind,
    DiskFull,
    NewerStore,
    StoreError,
    StoreLocked,
    TooManyFiles,
    UnfinishedCopy,
    store_error,
)
from troupemq.exit_codes import REFUSALS, WRONG_OPTIONS, exit_code_of
from troupemq.java import NoJava
from troupemq.text import FAILED

ROOT = Path(__file__).resolve().parents[2]


def test_no_two_refusals_share_a_code() -> None:
    codes = [each.code for each in REFUSALS]
    assert len({0, FAILED, WRONG_OPTIONS, *codes}) == len(codes) + 3


def test_the_manual_lists_the_exit_codes_with_equal_texts() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE))
    for each in REFUSALS:
        assert rows[str(each.code)] == f"{each.name}: {each.meaning}"


@pytest.mark.parametrize(
    "error, name",
    [
        (PortTaken("taken"), "port"),
        (StoreLocked("locked"), "lock"),
        (DiskFull("full"), "disk"),
        (store_error("no", OSError(28, "No space left")), "disk"),
        (store_error("no", OSError(13, "Permission denied")), "permissions"),
        (OSError(30, "Read-only file system"), "permissions"),
        (store_error("no", OSError(17, "File exists")), "permissions"),
        (store_error("no", OSError(24, "Too many open files")), "files"),
        (TooManyFiles("few"), "files"),
        (NoJava("none"), "java"),
        (ClockBehind("behind"), "clock"),
        (NewerStore("newer"), "format"),
        (UnfinishedCopy("half"), "copy"),
    ],
)
def test_an_error_keeps_its_code_as_the_cause_of_a_failed_start(
    error: Exception, name: str
) -> None:
    wanted = next(each.code for each in REFUSALS if each.name == name)
    failed = StartFailed("x")
    failed.__cause__ = error
    assert exit_code_of(error) == exit_code_of(failed) == wanted


def test_invalid_settings_of_broker_and_store_share_one_code() -> None:
    for make in (lambda: BrokerConfig(broker_role="KING"), lambda: StoreConfig(delete_when="x")):
        with pytest.raises(StoreError) as caught:
            make()
        assert exit_code_of(caught.value) == 10


def test_errors_without_their_own_code_give_1() -> None:
    assert exit_code_of(StoreError("damaged")) == exit_code_of(OSError(5, "I/O error")) == FAILED


OLD_PYTHON = "import sys; sys.version_info = (3, 9, 2)"
NEEDED = "TroupeMQ needs Python 3.11 or later, but this is 3.9: use a newer one."


def run_on_old_python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "sitecustomize.py").write_text(OLD_PYTHON)
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_import_with_an_old_python_raises_one_import_error(tmp_path: Path) -> None:
    (tmp_path / "importer").mkdir()
    (tmp_path / "importer" / "__init__.py").write_text("import troupemq")
    for arguments in (("-c", "import troupemq"), ("-m", "importer")):
        done = run_on_old_python(tmp_path, *arguments)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == f"ImportError: {NEEDED}"


@pytest.mark.slow
def test_command_line_with_an_old_python_has_its_own_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "troupemq"
    script.write_text("from troupemq.__main__ import main")
    for arguments in (("-m", "troupemq"), (str(script),)):
        done = run_on_old_python(tmp_path, *arguments)
        assert done.returncode == next(each.code for each in REFUSALS if each.name == "python")
        assert done.stderr == f"troupemq: {NEEDED}\n"
