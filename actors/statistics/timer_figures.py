"""Figures of pending timers, by delay level."""

from dataclasses import dataclass, field

from protocol.timers import LevelTimers


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

    @property
    def stored_count(self) -> int:
        """Timers stored since the start, without those that moved from level to level."""
        return sum(each.stored_count - each.moved_count for each in self._all())

    @property
    def delivered_count(self) -> int:
        return sum(each.delivered_count for each in self._all())

    def _all(self) -> list[LevelTimers]:
        return [*self.levels.values()]
