"""Trials, which are tests that take a seed; what tests tell; which ones begin.

Of a trial there are a few in `make test` and many in `make trials`:

    @pytest.mark.trial(short=20, long=500)
    def test_nothing_is_lost(seed: int) -> None: ...

`make test` runs the seeds 0 to 19 (none where short is 0). `make trials` runs nothing but trials,
with the seeds 0 to 499; ROUNDS= says how many instead, SEED= the first one. The seed of a failure
is in its test's name; ROUNDS=1 SEED=<it> repeats it.

`short` is so many that the trial takes a second or two.

Both targets run in several processes. Files with slow tests begin, so that no process is left with
one at the end.
"""

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.golden import NO_GOLDEN_DATA
from tests.support.telling import tally, tell, told

__all__ = ["tally", "tell"]

settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


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
    seeds = range(first, first + rounds)
    metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is no trial in `make trials`, and trials without seeds in `make test`.

    Files with slow tests come first.
    """
    long = config.getoption("--trials")
    left_out = [item for item in items if not _belongs(item, long=long)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _belongs(item, long=long)]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What was imported stays to the end: no collection of garbage need go through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One line for all that lack golden data: a fixture's skip would name each test's own place."""
    report = yield
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
    return not long if trial is None else long or trial.kwargs["short"] > 0
