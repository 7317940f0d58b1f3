"""Counts of answers and of what could not be answered, of one server.

Written on the loop and by actors on threads: of two at the same moment one may be missing.
"""

from collections.abc import Iterator

from actors.engine.histogram import RPC_BOUNDS_MS, ClassCounts

ANSWERS_MAX = 4096
"""Pairs of request and response code; what comes after them is not counted."""


class AnswerStats:
    """How long answers took, by request and response code; sends and pulls count elsewhere."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], ClassCounts] = {}
        self.bad_frames: dict[str, int] = {}
        """Connections closed for what they sent, by the reason."""

    def note(self, code: int, response_code: int, took_ms: float) -> None:
        """One answer."""
        key = code, response_code
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= ANSWERS_MAX:
                return
            found = self._found[key] = ClassCounts(RPC_BOUNDS_MS)
        found.note(took_ms)

    def note_bad_frame(self, reason: str) -> None:
        """A connection was closed for what it sent."""
        self.bad_frames[reason] = self.bad_frames.get(reason, 0) + 1

    def all(self) -> Iterator[tuple[int, int, ClassCounts]]:
        """Request code, response code, and how long they took, ms. Any thread."""
        for (code, response_code), found in self._found.copy().items():
            yield code, response_code, found
