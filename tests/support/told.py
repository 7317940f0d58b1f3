"""Counts of log lines in attempts: one line per kind and minute, with a count."""

from collections import Counter
from collections.abc import MutableMapping, Sequence
from typing import Any

Lines = Sequence[MutableMapping[str, Any]]


def times(lines: Lines, event: str) -> list[int]:
    """Return the counts in the lines of this event."""
    return [each["times"] for each in lines if each["event"] == event]


def floods(lines: Lines) -> list[str]:
    """Warnings that were told more than once; of refusals each account and code is a kind."""
    told = Counter(
        (each["event"], each.get("account"), each.get("code") if each.get("account") else None)
        for each in lines
        if each["log_level"] == "warning"
    )
    return [str(kind) for kind, count in told.items() if count > 1]


def refused(lines: Lines) -> Counter[tuple[str, int]]:
    """Return the count of refusals by account and code."""
    found: Counter[tuple[str, int]] = Counter()
    for each in lines:
        if each["event"] == "request refused":
            found[each["account"], int(each["code"])] += each["times"]
    return found
