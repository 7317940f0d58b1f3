"""Figures that tests want seen: printed below the results, from whichever process they ran in.

    tell("502 of 502 frames byte-equal")     a line of its own
    tally["left out"] += 1                   summed over all cases and seeds of one test function

They travel in the reports of the tests, for the workers of pytest-xdist have no terminal.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest

_LINE, _COUNTS = "told", "tallied"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Has a line printed at the end of the run."""
    return lambda line: record_property(_LINE, line)


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Iterator[Counter[str]]:
    """Counts; of all cases of a test function one line is printed at the end of the run."""
    counts: Counter[str] = Counter()
    yield counts
    record_property(_COUNTS, dict(counts))


def told(ends: Iterable[pytest.TestReport]) -> list[str]:
    """Return the lines for these teardown reports: all lines, and one per counting function."""
    lines: list[str] = []
    sums: dict[str, Counter[str]] = {}
    for report in ends:
        for name, value in report.user_properties:
            if name == _LINE:
                lines.append(f"{report.nodeid}: {value}")
            elif isinstance(value, dict) and name == _COUNTS:
                function = report.nodeid.partition("[")[0]
                sums.setdefault(function, Counter()).update(value)
    for function, counts in sums.items():
        counted = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        lines.append(f"{function}: {counted or 'nothing'}")
    return sorted(lines)
