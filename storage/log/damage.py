"""The ranges of the commit log that are known to be damaged; readers pass over them.

Nothing of it is kept in a file: recovery and the scrubber find the damage again.
"""

from bisect import bisect_right

REASONS_BYTES_MAX = 200
"""Of the texts that are joined when ranges are; the first of them says enough."""


class Damage:
    """Ranges [start, end) with the reason of each, in words.

    One owner adds and forgets; anyone may read: `ranges` is replaced as a whole.
    """

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int, str], ...] = ()
        """(start, end, reason), sorted, none touching another."""

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def add(self, start: int, end: int, reason: str) -> bool:
        """Notes a range, joined with those that it overlaps or touches; False if it was known."""
        if start >= end:
            return False
        reasons = [reason]
        kept = []
        for known in self.ranges:
            if known[0] <= start and end <= known[1]:
                return False
            if known[1] < start or known[0] > end:
                kept.append(known)
                continue
            start, end = min(start, known[0]), max(end, known[1])
            if known[2] not in reasons:
                reasons.append(known[2])
        kept.append((start, end, "; ".join(reasons)[:REASONS_BYTES_MAX]))
        self.ranges = tuple(sorted(kept))
        return True

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any byte of [start, end) is in a damaged range; for no bytes, `start`."""
        return self.end_of(start, max(end, start + 1)) is not None

    def end_of(self, start: int, end: int) -> int | None:
        """Where the last damaged range that overlaps [start, end) ends; None without one."""
        ranges = self.ranges
        if not ranges:
            return None
        number = bisect_right(ranges, (end - 1, 1 << 63, "")) - 1
        if number >= 0 and ranges[number][1] > start:
            return ranges[number][1]
        return None

    def forget_below(self, offset: int) -> None:
        """Drops what lies below `offset`: the log begins there now."""
        if self.ranges and self.ranges[0][0] < offset:
            self.ranges = tuple(
                (max(start, offset), end, reason)
                for start, end, reason in self.ranges
                if end > offset
            )

    def forget_from(self, offset: int) -> None:
        """Drops what begins at or behind `offset`: the log ends there."""
        if self.ranges and self.ranges[-1][0] >= offset:
            self.ranges = tuple(known for known in self.ranges if known[0] < offset)
