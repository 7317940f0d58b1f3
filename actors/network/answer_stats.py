"""Counters of answers and of bad frames, of one server.

The loop and actors on threads write them: of two simultaneous counts one may be missing.
"""

from collections.abc import Iterator

from actors.engine.histogram import RPC_BOUNDS_MS, ClassCounts

ANSWERS_MAX = 4096
"""Maximum pairs of request and response code; further pairs are not counted."""


class AnswerStats:
    """Response times by request and response code; sends and pulls are counted elsewhere."""

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
