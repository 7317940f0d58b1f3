"""All occasions of a time span, in order."""

from actors.jobs.timetable import Occasions


def occasions_between(occasions: Occasions, after_ms: int, until_ms: int) -> list[int]:
    """Return the occasions after `after_ms` and up to `until_ms`."""
    found = []
    while (after_ms := occasions.after(after_ms)) <= until_ms:
        found.append(after_ms)
    return found
