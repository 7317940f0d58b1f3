"""Trials, which are tests that take a seed; what tests tell; which ones begin.

Of a trial there are a few in `make test` and many in `make trials`:

    @pytest.mark.trial(short=20, long=500)
    def test_nothing_is_lost(seed: int) -> None: ...

`make test` runs the seeds 0 to 19 (none where short is 0). `make trials` runs nothing but trials,
with the seeds 0 to 499; ROUNDS= says how many instead, SEED= the first one. The seed of a failure
is in its test's name; ROUNDS=1 SEED=<it> repeats it.

`short` is so many that the trial takes a quarter of a second, or one or two that take longer.
Trials that are too slow for every seed share them: with every=3, turn=1 a trial takes the seeds 1,
4, 7, … of those.

What starts processes is marked `slow`, with the `seconds` that it takes where they are many; who
starts one without the mark fails. What starts none, but takes more than a fifth of a second of
processor time by nature, or more than a second with all its cases, is marked `heavy`: each bit of a
file, a whole golden store, thousands of drawn values. `-m "not slow"` leaves out both, and trials.

Both targets run in several processes. Files with slow tests begin, the longest first, then those
with heavy tests, and the shortest come last, so that no process is left with a long one at the end.
Tests wait now and then, so `-n auto` is one process more than there are processors.
"""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import folders, log_lines, processes, runtimes, short_reports
from tests.support.brokers import running
from tests.support.folders import tmp_path
from tests.support.golden import NO_GOLDEN_DATA
from tests.support.telling import tally, tell, told
from troupemq.logs import shut_down_logs

__all__ = ["tally", "tell", "tmp_path"]

COMPAT = Path(__file__).parent / "compat"
HEAVY_S, LIGHT_S = 0.25, 0.02
"""Processor time of a heavy test or a seed, and of another test, about, for their order."""

settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    processes.watch()
    short_reports.register(config)


def pytest_collection(session: pytest.Session) -> None:
    """In a parallel run, import the test modules, from another one on in each process.

    Otherwise the processes of a first run compile every module at the same time. So each finds what
    the others have compiled meanwhile. Until all is collected, no garbage collection scans the
    imported objects, which stay.
    """
    if hasattr(gc, "freeze"):
        gc.disable()
    config = session.config
    turn, turns = (os.environ.get(f"PYTEST_XDIST_WORKER{end}", "") for end in ("", "_COUNT"))
    if not turns:
        return
    below = [config.invocation_params.dir / path for path in config.args]
    paths = sorted(
        path
        for folder in below
        for path in folder.rglob("test_*.py")
        if folder.is_relative_to(COMPAT) or not path.is_relative_to(COMPAT)
    )
    first = len(paths) * int(turn.removeprefix("gw")) // int(turns)
    for path in paths[first:] + paths[:first]:
        name = path.relative_to(config.rootpath).with_suffix("")
        with suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):
            import_module(".".join(name.parts))  # its collection reports a failure


class Module(pytest.Module):
    """Test module that is skipped on PyPy where it imports what only CPython can have."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            runtimes.needs(str(getattr(error.__cause__, "name", "")).partition(".")[0])
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = Module.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the processes of `-n auto`, before --maxprocesses."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """A process of the run has ended, as after `faulthandler_timeout`: so does the run.

    Another process would begin with the same test. .ci/again.py is told that not all tests ran.
    """
    sched.config.cache.set("troupemq/ended_in", crashitem)
    pytest.exit(f"a process of the run ended in {crashitem}", returncode=1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trials", "trials: tests that take a seed")
    group.addoption("--trials", action="store_true", help="run trials only, with their long counts")
    group.addoption("--rounds", type=int, help="how many seeds each of them takes")
    group.addoption("--seed", type=int, default=0, help="the first of the seeds")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    trial = metafunc.definition.get_closest_marker("trial")
    if trial is None:
        return
    config = metafunc.config
    rounds = trial.kwargs["long" if config.getoption("--trials") else "short"]
    if config.getoption("--rounds") is not None:
        rounds = config.getoption("--rounds")
    first = config.getoption("--seed")
    every, turn = trial.kwargs.get("every", 1), trial.kwargs.get("turn", 0)
    seeds = [seed for seed in range(first, first + rounds) if seed % every == turn]
    metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is no trial in `make trials`, and trials without seeds in `make test`.

    The longest files come first.
    """
    long = config.getoption("--trials")
    left_out = [item for item in items if not _belongs(item, long=long)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _belongs(item, long=long)]
    seconds: dict[Path, float] = defaultdict(float)
    for item in items:
        if item.get_closest_marker("alone"):
            assert "tests/security/" in item.nodeid, f"{item.nodeid}: make trials looks there"
        if slow := item.get_closest_marker("slow"):
            assert not slow.args, f"{item.nodeid}: slow(seconds=...)"
            seconds[item.path] += slow.kwargs.get("seconds", 1)
        elif item.get_closest_marker("heavy") or item.get_closest_marker("trial"):
            item.add_marker(pytest.mark.slow(processes=False))
            seconds[item.path] += HEAVY_S
        else:
            seconds[item.path] += LIGHT_S
    items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that no garbage collection scans them again."""
    if hasattr(gc, "freeze"):
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that starts a process without the marker `slow`."""
    processes.begins(item)
    log_lines.begin()
    try:
        return (yield)
    finally:
        processes.ends()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One line for all that lack golden data: a fixture's skip would name each test's own place.

    A failure comes with the log lines, and its temporary folder stays.
    """
    report = yield
    if report.failed:
        folders.keep(item)
        if lines := log_lines.text():
            report.sections.append((f"Log lines until {report.when}", lines))
    if report.skipped and isinstance(report.longrepr, tuple):
        *_, reason = report.longrepr
        if NO_GOLDEN_DATA in reason:
            report.longrepr = "tests/support/golden.py", 0, reason
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("")
    for line in told(report for report in reports if getattr(report, "when", "") == "teardown"):
        terminalreporter.write_line(line)


def _belongs(item: pytest.Item, *, long: bool) -> bool:
    trial = item.get_closest_marker("trial")
    if trial is None:
        return not long
    # Without a seed there is one case all the same, which would be skipped.
    return isinstance(item, pytest.Function) and isinstance(item.callspec.params["seed"], int)


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Take back what a command leaves behind in its process, after each test."""
    interval_s = sys.getswitchinterval()
    mask = os.umask(0o022)
    yield
    sys.setswitchinterval(interval_s)
    os.umask(mask)
    shut_down_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Stop the simulated brokers that a test has started, the last one first."""
    try:
        yield
    finally:
        left = running[::-1]
        try:
            for each in left:
                each.stop()
        finally:
            running.clear()
        assert "refusal failed" not in log_lines.events(), "a message cannot be refused"
