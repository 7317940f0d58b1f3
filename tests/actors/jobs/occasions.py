"""All occasions of a span of time, one after the other."""

from actors.jobs.timetable import Occasions


def occasions_between(occasions: Occasions, after_ms: int, until_ms: int) -> list[int]:
    """Those behind `after_ms` and up to `until_ms`."""
    found = []
    while (after_ms := occasions.after(after_ms)) <= until_ms:
        found.append(after_ms)
    return found
