"""Histograms: the count of values per class, and their sum; and the answers of a server.

One actor writes a histogram; reporting actors read it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

RPC_BOUNDS_MS: tuple[float, ...] = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000, 5000)
SYNC_BOUNDS_MS: tuple[float, ...] = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50),
    *(100, 200, 500, 1000, 2000, 5000),
)
WAIT_BOUNDS_MS: tuple[float, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 500, 1000)
END_BOUNDS_S: tuple[float, ...] = (5, 60, 600, 3600, 43_200, 86_400)
ANSWERS_MAX = 4096
"""Maximum pairs of request and response code; further pairs are not counted."""


class ClassCounts:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """Upper bounds of the classes, ascending; one more class has none."""
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class AnswerStats:
    """Response times of one server, by request and response code, and counts of bad frames.

    Sends and pulls are counted elsewhere. The loop and actors on threads write it: of two
    simultaneous counts one may be missing.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], ClassCounts] = {}
        self.bad_frames: dict[str, int] = {}
        """Connections closed for what they sent, by reason."""

    def note(self, code: int, response_code: int, took_ms: float) -> None:
        key = code, response_code
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= ANSWERS_MAX:
                return
            found = self._found[key] = ClassCounts(RPC_BOUNDS_MS)
        found.note(took_ms)

    def note_bad_frame(self, reason: str) -> None:
        self.bad_frames[reason] = self.bad_frames.get(reason, 0) + 1

    def all(self) -> Iterator[tuple[int, int, ClassCounts]]:
        """Yield request code, response code, and response times in ms. Any thread."""
        for (code, response_code), found in self._found.copy().items():
            yield code, response_code, found
