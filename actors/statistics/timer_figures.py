"""Figures of pending timers, by delay level."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class LevelTimers:
    """Timers of one level; its Schedule actor writes them, any thread may read."""

    pending: int = 0
    """Timers that wait, as far as they have been counted since the start."""
    next_due_ms: int = 0
    """Earliest due time, or up to a second less; 0 without one. Later turns do not count."""
    stored_count: int = 0
    """Timers stored since the start, each once per stay in the level."""
    delivered_count: int = 0
    moved_count: int = 0
    """Timers stored again because they were not due at the end of their level."""
    recalled_count: int = 0
    late_max_ms: int = 0
    """Greatest lateness of a delivery since the start."""
    unread: int = 0
    """Messages of the level that the start has still to look at."""


@dataclass(slots=True)
class TimerFigures:
    levels: dict[int, LevelTimers] = field(default_factory=dict)

    def of_level(self, level: int) -> LevelTimers:
        found = self.levels.get(level)
        return self.levels.setdefault(level, LevelTimers()) if found is None else found

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self._all())

    @property
    def next_due_ms(self) -> int:
        """Earliest due time of all levels; 0 without one."""
        return min((each.next_due_ms for each in self._all() if each.next_due_ms), default=0)

    def late_ms(self, now_ms: int) -> int:
        """Return how late the earliest timer that is not delivered is, ms."""
        due_ms = self.next_due_ms
        return max(0, now_ms - due_ms) if due_ms else 0

    def total(self, name: str) -> int:
        """Return the sum of a field of all levels."""
        return sum(getattr(each, name) for each in self._all())

    def _all(self) -> list[LevelTimers]:
        return [*self.levels.values()]
