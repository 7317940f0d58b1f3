"""Figures of pending timers, by delay level."""

from dataclasses import dataclass, field, fields

from protocol.java_numbers import plain_number

TIMERS_OF_LEVEL = "timersOfLevel_"
"""Name of a level's figures in an answer to code 28, followed by the level."""


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

    @property
    def is_used(self) -> bool:
        return bool(self.pending or self.stored_count or self.delivered_count)

    def encode(self) -> str:
        """Return the numbers in the order of their fields, as an answer to code 28 has them."""
        return ",".join(str(getattr(self, each.name)) for each in fields(self))

    @classmethod
    def decode(cls, text: str) -> "LevelTimers":
        """Return the figures of a text that `encode` or a later version has made."""
        numbers = (plain_number(each) for each in text.split(",")[: len(fields(cls))])
        return cls(*(number or 0 for number in numbers))


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
