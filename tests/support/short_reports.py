"""Reports of a process that runs tests for another one: of a passed test that of its call alone.

A test has three, and two more messages around them. Each is packed, sent and unpacked, which takes
2 ms of processor time for each of 13,000 tests.
"""

import pytest
from _pytest.runner import runtestprotocol

NEED_ALL = ("durations", "maxfail", "xmlpath")
"""Options of pytest that need the other reports, or each of them at once."""


class ShortReports:
    """Plug-in that runs a test, and reports its set-up and its end only if they say something."""

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed or report.user_properties:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


def register(config: pytest.Config) -> None:
    """Use short reports in a process of a parallel run, unless an option needs all."""
    if hasattr(config, "workerinput") and not any(map(config.getoption, NEED_ALL)):
        config.pluginmanager.register(ShortReports())
