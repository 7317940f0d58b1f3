"""Timetable of conf/jobs.conf: each occasion runs once, in spite of clock changes and restarts.

An occasion is a moment that an entry's cron expression names in its time zone. When the clocks go
forward, a skipped occasion moves to the end of the missing hour. When they go back, an occasion at
a fixed time happens once.

Saved state of an entry:
    seen_ms   wall clock of the last check; it goes back with the clock
    spans     first and last of occasions that have run; none of them runs again
    open      occasion of the run in progress, and its number of tries

Missed occasions have one run together, that of the last. A run that a stop interrupts stays open
and restarts at the next start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

SPANS_MAX = 64
"""Spans kept for an entry; only missed occasions begin a new one, and the oldest go."""

_HOUR_MS = 3_600_000
_LOOK_BACK_MS = (2 * _HOUR_MS, 48 * _HOUR_MS, 32 * 24 * _HOUR_MS, 400 * 24 * _HOUR_MS)
"""Starts of the search for the last occasion, to avoid a year of minute steps."""


class BadExpression(ValueError):
    """Cron expression that is invalid, or names no moment; the text has the reason."""


class Occasions:
    """Occasions of one cron expression, in ms since 1970."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        """Parse the expression. Raises BadExpression."""
        self.expression = " ".join(expression.split())
        self.zone = zone
        if len(self.expression.split()) != 5:
            raise BadExpression("it must have five fields: minute hour day month weekday")
        try:
            next(CronSim(self.expression, datetime.now(zone)))
        except CronSimError as error:
            raise BadExpression(str(error).replace("Bad", "there is no such").lower()) from error
        except StopIteration:
            raise BadExpression("no date matches it") from None
        self._found = (0, 0)
        """Last argument of `after` and its result, as a search takes 130 µs."""

    def after(self, moment_ms: int) -> int:
        """Return the first occasion after a moment."""
        if not self._found[0] <= moment_ms < self._found[1]:
            self._found = moment_ms, self._search(moment_ms)
        return self._found[1]

    def _search(self, moment_ms: int) -> int:
        local = datetime.fromtimestamp(moment_ms // 1000, UTC).astimezone(self.zone)
        # In a repeated hour the library may return a moment of its first pass: skip it.
        for found in CronSim(self.expression, local):
            found_ms = int(found.timestamp()) * 1000
            if found_ms > moment_ms:
                return found_ms
        raise AssertionError(self.expression)  # __init__ found an occasion

    def last(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last occasion after `after_ms` and up to `until_ms`, or None."""
        starts = [until_ms - back for back in _LOOK_BACK_MS if until_ms - back > after_ms]
        for start in (*starts, after_ms):
            found = None
            while (next_ms := self.after(start if found is None else found)) <= until_ms:
                found = next_ms
            if found is not None:
                return found
        return None


@dataclass(slots=True)
class Open:
    """Run in progress."""

    due_ms: int
    tries: int = 1


@dataclass(slots=True)
class TimetableLine:
    occasions: Occasions
    seen_ms: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    open: Open | None = None

    def due(self, now_ms: int) -> int | None:
        """Return the occasion to run now, or None; None while a run is open."""
        if self.open is not None:
            return None
        if now_ms < self.seen_ms:  # the clock was set back: no occasion runs twice
            self.seen_ms = now_ms
            return None
        until_ms = now_ms
        while (found := self.occasions.last(self.seen_ms, until_ms)) is not None:
            span = self._span_of(found)
            if span is None:
                return found
            until_ms = span[0] - 1
        self.seen_ms = now_ms
        return None

    def next_ms(self, now_ms: int) -> int:
        """Return the next occasion that will run, by the present clock."""
        found = self.occasions.after(now_ms)
        while (span := self._span_of(found)) is not None:
            found = self.occasions.after(span[1])
        return found

    def begin(self, due_ms: int, now_ms: int) -> None:
        """Begin the run of an occasion, which replaces older missed ones."""
        self.seen_ms = max(due_ms, now_ms)
        self.open = Open(due_ms)
        for index, (first, last) in enumerate(self.spans):
            if last < due_ms and self.occasions.after(last) == due_ms:
                self.spans[index] = (first, due_ms)
                return
        self.spans = sorted([*self.spans, (due_ms, due_ms)])[-SPANS_MAX:]

    def _span_of(self, occasion_ms: int) -> tuple[int, int] | None:
        return next((span for span in self.spans if span[0] <= occasion_ms <= span[1]), None)

    def to_json(self) -> dict[str, Any]:
        opened = {} if self.open is None else {"open": [self.open.due_ms, self.open.tries]}
        return {
            "cron": self.occasions.expression,
            "timeZone": self.occasions.zone.key,
            "seenMs": self.seen_ms,
            "spans": [list(span) for span in self.spans],
            **opened,
        }


def line_from(saved: Any, occasions: Occasions, now_ms: int) -> TimetableLine:
    """Return an entry's saved line; a new entry, or one with other times, starts now."""
    line = TimetableLine(occasions, now_ms)
    if not isinstance(saved, Mapping) or (saved.get("cron"), saved.get("timeZone")) != (
        occasions.expression,
        occasions.zone.key,
    ):
        return line
    try:
        line.seen_ms = int(saved["seenMs"])
        line.spans = [(int(first), int(last)) for first, last in saved["spans"]]
        if "open" in saved:
            due_ms, tries = saved["open"]
            line.open = Open(int(due_ms), int(tries))
    except (KeyError, TypeError, ValueError):
        return TimetableLine(occasions, now_ms)
    return line


def timetable_from(
    saved: Any, occasions: Mapping[str, Occasions], now_ms: int
) -> dict[str, TimetableLine]:
    """Return the lines of all entries, without lines of removed entries."""
    lines = saved.get("entries") if isinstance(saved, Mapping) else None
    found = lines if isinstance(lines, Mapping) else {}
    return {name: line_from(found.get(name), each, now_ms) for name, each in occasions.items()}


def timetable_json(lines: Mapping[str, TimetableLine]) -> dict[str, Any]:
    return {"entries": {name: line.to_json() for name, line in lines.items()}}
