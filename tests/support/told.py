"""What the log of an attempt may hold: one line a kind and minute, with how many there were."""

from collections import Counter
from collections.abc import MutableMapping, Sequence
from typing import Any

Lines = Sequence[MutableMapping[str, Any]]


def times(lines: Lines, event: str) -> list[int]:
    """How many of these each line of them tells of."""
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
    """How many refusals of which account and code there were."""
    found: Counter[tuple[str, int]] = Counter()
    for each in lines:
        if each["event"] == "request refused":
            found[each["account"], int(each["code"])] += each["times"]
    return found
