"""Every refusal of a start has an exit code of its own, which the manual lists."""

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
from troupemq.saying import FAILED

ROOT = Path(__file__).resolve().parents[2]


def test_no_two_refusals_share_a_code() -> None:
    codes = [each.code for each in REFUSALS]
    assert len({0, FAILED, WRONG_OPTIONS, *codes}) == len(codes) + 3


def test_the_manual_lists_them_in_the_same_words() -> None:
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
def test_an_error_has_the_code_of_its_refusal_also_as_the_cause_of_a_failed_start(
    error: Exception, name: str
) -> None:
    wanted = next(each.code for each in REFUSALS if each.name == name)
    failed = StartFailed("x")
    failed.__cause__ = error
    assert exit_code_of(error) == exit_code_of(failed) == wanted


def test_wrong_settings_of_broker_and_store_have_one_code() -> None:
    for make in (lambda: BrokerConfig(broker_role="KING"), lambda: StoreConfig(delete_when="x")):
        with pytest.raises(StoreError) as caught:
            make()
        assert exit_code_of(caught.value) == 10


def test_what_has_no_code_of_its_own_is_1() -> None:
    assert exit_code_of(StoreError("damaged")) == exit_code_of(OSError(5, "I/O error")) == FAILED


@pytest.mark.slow
def test_an_old_python_is_told_in_a_sentence() -> None:
    program = "import sys; sys.version_info = (3, 9, 2); import troupemq"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == next(each.code for each in REFUSALS if each.name == "python")
    assert done.stderr.startswith("troupemq: ") and done.stderr.count("\n") == 1
