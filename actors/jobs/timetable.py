"""The timetable of conf/jobs.conf: each occasion once, whatever becomes of clock and broker.

An occasion is a moment that an entry's cron expression names, in its time zone. Where the clocks go
forward, one that is skipped comes at the end of the hour that is missing; where they go back, one
at a fixed time comes once.

What is remembered of an entry, and survives a restart:

    seen_ms   up to here the wall clock has been looked at; it goes back when the clock does
    spans     from … to, of occasions that have had their run: none of these ever runs again
    open      the occasion whose run has begun and not ended, and how often it was tried

Several occasions that were missed have one run together, that of the last. A run that a stop of the
broker interrupts stays open, and begins anew with the next start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

SPANS_MAX = 64
"""Kept for an entry; a new one begins only where something was missed. The oldest go."""

_HOUR_MS = 3_600_000
_LOOK_BACK_MS = (2 * _HOUR_MS, 48 * _HOUR_MS, 32 * 24 * _HOUR_MS, 400 * 24 * _HOUR_MS)
"""Where the search for the last occasion begins: nobody steps through a year of minutes."""


class BadExpression(ValueError):
    """Not a cron expression of five fields, or one that names no moment; the text says why."""


class Occasions:
    """The moments of one cron expression, in ms since 1970."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        """Raises BadExpression."""
        self.expression = " ".join(expression.split())
        self.zone = zone
        if len(self.expression.split()) != 5:
            raise BadExpression("it has not five fields: minute hour day month weekday")
        try:
            next(CronSim(self.expression, datetime.now(zone)))
        except CronSimError as error:
            raise BadExpression(str(error).replace("Bad", "there is no such").lower()) from error
        except StopIteration:
            raise BadExpression("no date is like that") from None
        self._found = (0, 0)
        """From where `after` searched last, and what it found: 130 µs for a daily job."""

    def after(self, moment_ms: int) -> int:
        """The first one after a moment."""
        if not self._found[0] <= moment_ms < self._found[1]:
            self._found = moment_ms, self._search(moment_ms)
        return self._found[1]

    def _search(self, moment_ms: int) -> int:
        local = datetime.fromtimestamp(moment_ms // 1000, UTC).astimezone(self.zone)
        # In an hour that comes twice the library may name a moment of its first time: pass it.
        for found in CronSim(self.expression, local):
            found_ms = int(found.timestamp()) * 1000
            if found_ms > moment_ms:
                return found_ms
        raise AssertionError(self.expression)  # looked for when it was made

    def last(self, after_ms: int, until_ms: int) -> int | None:
        """The last one behind `after_ms` and not behind `until_ms`; None if there is none."""
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
    """A run that has begun and not ended."""

    due_ms: int
    tries: int = 1


@dataclass(slots=True)
class TimetableLine:
    """One entry's line of the timetable."""

    occasions: Occasions
    seen_ms: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    open: Open | None = None

    def due(self, now_ms: int) -> int | None:
        """The occasion that is to have its run now; None while another one's is open."""
        if self.open is not None:
            return None
        if now_ms < self.seen_ms:  # the clock was set back: what has run does not run again
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
        """The next occasion that will have a run, as the clock goes now."""
        found = self.occasions.after(now_ms)
        while (span := self._span_of(found)) is not None:
            found = self.occasions.after(span[1])
        return found

    def begin(self, due_ms: int, now_ms: int) -> None:
        """Its run begins; older ones that were missed are made up for with it."""
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
    """An entry's line as it was saved. A new entry, or one with other times, begins now."""
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
    """The lines of all entries; those that are in no file any more are forgotten."""
    lines = saved.get("entries") if isinstance(saved, Mapping) else None
    found = lines if isinstance(lines, Mapping) else {}
    return {name: line_from(found.get(name), each, now_ms) for name, each in occasions.items()}


def timetable_json(lines: Mapping[str, TimetableLine]) -> dict[str, Any]:
    return {"entries": {name: line.to_json() for name, line in lines.items()}}
