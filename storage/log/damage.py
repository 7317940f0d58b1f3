"""Known damaged ranges of the commit log, which readers skip.

They are not stored: recovery and the scrubber detect the damage again.
"""

from bisect import bisect_right

REASONS_BYTES_MAX = 200
"""Maximum length of joined reasons; the first reason is the most useful."""


class Damage:
    """Damaged ranges [start, end), each with its reason as text.

    One owner adds and removes ranges. Any thread may read, because `ranges` is replaced as a whole.
    """

    def __init__(self) -> None:
        self.ranges: tuple[tuple[int, int, str], ...] = ()
        """(start, end, reason), sorted, disjoint and not adjacent."""

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def add(self, start: int, end: int, reason: str) -> bool:
        """Add a range, merged with those it overlaps or touches; return False if it was known."""
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
        """Return whether a damaged range overlaps [start, end), or byte `start` of an empty one."""
        return self.end_of(start, max(end, start + 1)) is not None

    def end_of(self, start: int, end: int) -> int | None:
        """Return the end of the last damaged range that overlaps [start, end), or None."""
        ranges = self.ranges
        if not ranges:
            return None
        number = bisect_right(ranges, (end - 1, 1 << 63, "")) - 1
        if number >= 0 and ranges[number][1] > start:
            return ranges[number][1]
        return None

    def forget_below(self, offset: int) -> None:
        """Drop what lies below `offset`, the new beginning of the log."""
        if self.ranges and self.ranges[0][0] < offset:
            self.ranges = tuple(
                (max(start, offset), end, reason)
                for start, end, reason in self.ranges
                if end > offset
            )

    def forget_from(self, offset: int) -> None:
        """Drop the ranges that begin at or behind `offset`, the new end of the log."""
        if self.ranges and self.ranges[-1][0] >= offset:
            self.ranges = tuple(known for known in self.ranges if known[0] < offset)
