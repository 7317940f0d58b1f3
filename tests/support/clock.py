"""A clock that moves only when a test winds it."""


class ManualClock:
    """Wall and monotonic time under a test's hand; both start where the test says."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        """Moves both clocks forward."""
        self._now_ms += int(ms)
        self._monotonic_ms += ms

    def set_wall(self, now_ms: int) -> None:
        """Moves the wall clock alone, backwards too."""
        self._now_ms = now_ms
