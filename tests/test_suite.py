"""Promises of the suite: it passes without the golden data, and leaves no files behind."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.support.golden import REPOSITORY, golden_root

PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-rs",
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.conftest",
)
TWO_TESTS = """
import pytest
from tests.support.golden import golden_root

@pytest.fixture
def root():
    return golden_root()

def test_by_a_fixture(root):
    pass

def test_by_itself():
    golden_root()
"""


def test_no_module_reads_golden_data_at_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checked with the data present: otherwise nothing shows that a collection without it fails."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(RuntimeError, match="for running tests"):
        golden_root()


@pytest.mark.slow
def test_without_golden_data_one_line_names_skipped_tests_and_searched_paths(
    tmp_path: Path,
) -> None:
    nowhere = tmp_path / "nowhere"
    tests = tmp_path / "test_two.py"
    tests.write_text(TWO_TESTS)
    variables = {**os.environ, "TROUPEMQ_GOLDEN": str(nowhere)}
    variables.pop("TROUPEMQ_CI", None)
    done = subprocess.run(
        [*PYTEST, f"--rootdir={REPOSITORY}", f"--basetemp={tmp_path}/run", str(tests)],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert line.startswith("SKIPPED [2] ")
    assert f"no golden data at {nowhere}" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("truncate -s 3G $TMPDIR/sparse; rm $TMPDIR/sparse", 0, "0 left behind"),
        ("echo > $TMPDIR/forgotten", 1, "left behind: forgotten"),
        ("echo > $TMPDIR/of-a-failure; exit 3", 3, "1 left behind"),
    ],
)
def test_files_left_in_the_temporary_folder_are_a_failure(
    script: str, code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / ".ci" / "temp_use.py"), "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert said in done.stdout + done.stderr


STARTS_ONE = """
import subprocess
import sys
import pytest

def start(tmp_path):
    (tmp_path / "left").touch()
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_without_a_mark(tmp_path):
    start(tmp_path)

@pytest.mark.heavy
def test_heavy(tmp_path):
    start(tmp_path)

@pytest.mark.trial(short=1, long=9)
def test_trial(seed, tmp_path):
    start(tmp_path)

@pytest.mark.slow
@pytest.mark.trial(short=1, long=9)
def test_with_it(seed, tmp_path):
    start(tmp_path)
"""


@pytest.mark.slow
def test_an_unmarked_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    """The folder of a failed test is kept, that of a passed one is not."""
    said = suite(tmp_path)
    assert "3 failed, 1 passed" in said
    assert "test_without_a_mark starts a process: mark it `slow`" in said
    left = sorted(path.parent.name.rstrip("0123456789") for path in tmp_path.glob("run/*/left"))
    assert left == ["test_heavy", "test_trial_seed_0_", "test_without_a_mark"]


@pytest.mark.slow
def test_trials_and_heavy_tests_are_slow(tmp_path: Path) -> None:
    said = suite(tmp_path, "-m", "not slow")
    assert "1 failed, 3 deselected" in said


def item(file: str, *marks: pytest.MarkDecorator) -> SimpleNamespace:
    """Return what decides the place of a test in the order."""
    found = {each.name: each.mark for each in marks}
    return SimpleNamespace(
        nodeid=file, path=Path(file), get_closest_marker=found.get, add_marker=lambda _: None
    )


def test_the_longest_files_begin_and_the_shortest_come_last(pytestconfig: pytest.Config) -> None:
    """Otherwise a process might be left with a long file at the end of a run."""
    slow, heavy = pytest.mark.slow, pytest.mark.heavy
    items: list[Any] = [item("light"), item("heavy", heavy), item("slow", slow)]
    items += [item("long", slow(seconds=20)), *[item("many")] * 30]
    pytest_collection_modifyitems(pytestconfig, items)
    files = dict.fromkeys(str(each.path) for each in items)
    assert [*files] == ["long", "slow", "many", "heavy", "light"]


HAS_ENDS = """
import pytest

@pytest.fixture
def leaves():
    yield
    raise OSError("left behind")

@pytest.fixture
def lacks():
    pytest.skip("nothing here")

def test_passes():
    pass

def test_told(tell):
    tell("a figure")

def test_end(leaves):
    pass

def test_begin(lacks):
    pass
"""


@pytest.mark.slow
def test_a_parallel_run_reports_figures_and_failures_outside_of_calls(tmp_path: Path) -> None:
    said = suite(tmp_path, "-n", "1", text=HAS_ENDS)
    assert "3 passed, 1 skipped, 1 error" in said
    assert "OSError: left behind" in said and "test_told: a figure" in said
    assert "nothing here" in said


def suite(tmp_path: Path, *options: str, text: str = STARTS_ONE) -> str:
    """Return the output of a run of those tests."""
    tests = tmp_path / "test_four.py"
    tests.write_text(text)
    done = subprocess.run(
        [*PYTEST, f"--rootdir={REPOSITORY}", f"--basetemp={tmp_path}/run", *options, str(tests)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout
