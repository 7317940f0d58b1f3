"""Three months of the schedule: daylight saving, clocks that jump, restarts; each run once.

What is expected comes from a plain model: occasions counted out by the calendar, and a list of
those that have had their run.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from actors.jobs import spark_jobs
from tests.actors.jobs.test_scheduled_runs import (
    BERLIN,
    DAY_MS,
    HOUR_MS,
    NEW_YORK,
    RUN_MS,
    World,
    entry,
    ms,
)

LOOK_MS = 1_800_000
SPAN_MS = 92 * DAY_MS
STARTS = ("2026-02-10T00:00", "2026-09-10T00:00")
"""In these three months clocks go forward or back in both zones."""


@dataclass(frozen=True)
class Fixed:
    """An entry at a fixed time of a zone, every day or on one day of the week (Monday is 0)."""

    name: str
    cron: str
    zone: ZoneInfo
    at: time
    weekday: int | None = None

    def occasions(self, first: date, days: int) -> Iterator[int]:
        """In ms: the first one if the time comes twice, 3 o'clock if it is left out."""
        for day in (first + timedelta(days=number) for number in range(days)):
            if self.weekday not in (None, day.weekday()):
                continue
            moment = datetime.combine(day, self.at, self.zone)
            there = moment.astimezone(UTC).astimezone(self.zone)
            if there.time() != self.at:
                moment = datetime.combine(day, time(3), self.zone)
            yield int(moment.timestamp()) * 1000


ENTRIES = (
    Fixed("berlin", "30 2 * * *", BERLIN, time(2, 30)),  # left out in spring, twice in autumn
    Fixed("new-york", "45 2 * * *", NEW_YORK, time(2, 45)),  # left out in spring
    Fixed("new-york-early", "30 1 * * *", NEW_YORK, time(1, 30)),  # twice in autumn
    Fixed("mondays", "0 6 * * MON", ZoneInfo("UTC"), time(6), weekday=0),
)


class Model:
    """Expected runs of an entry's occasions."""

    def __init__(self, occasions: list[int], now_ms: int) -> None:
        self.occasions = occasions
        self._seen_ms = now_ms
        self.ran: list[int] = []

    def pass_until(self, now_ms: int) -> None:
        """Run each occasion up to `now_ms`."""
        self.ran += self._new(now_ms)
        self._seen_ms = now_ms

    def find_clock_at(self, now_ms: int) -> None:
        """Run all missed occasions together, after a clock change or a stop."""
        self.ran += self._new(now_ms)[-1:]
        self._seen_ms = now_ms

    def _new(self, now_ms: int) -> list[int]:
        due = [each for each in self.occasions if self._seen_ms < each <= now_ms]
        return [each for each in due if each not in self.ran]


class Months:
    """The broker after broker of a `World`, and what is expected of it."""

    def __init__(self, start: str, random: Random, tally: Counter[str]) -> None:
        self.random = random
        self.tally = tally
        self.world = World(start, *(entry(each.name, each.cron, each.zone) for each in ENTRIES))
        first = date.fromisoformat(start[:10]) - timedelta(days=30)
        self.models = {
            each.name: Model(list(each.occasions(first, 200)), ms(start)) for each in ENTRIES
        }

    def serve(self, span_ms: int) -> None:
        self.world.advance(span_ms)
        for model in self.models.values():
            model.pass_until(self.world.wall_ms)

    def serve_into_a_run(self) -> None:
        """Until a moment of the next run."""
        now_ms = self.world.wall_ms
        coming = (
            each for model in self.models.values() for each in model.occasions if each > now_ms
        )
        self.serve(min(coming) + self.random.randrange(RUN_MS) - now_ms)

    def set_clock(self) -> None:
        self.world.set_clock(self.elsewhere())
        self.look()

    def restart(self) -> None:
        """Off for a while, during which the clock may be set, too."""
        if self.random.random() < 0.5:
            self.serve_into_a_run()
        how = self.random.choice(["stop", "crash"])
        getattr(self.world, how)()
        self.tally[f"restarts after a {how}"] += 1
        self.world.now_ms = self.elsewhere()
        self.world.start()
        self.look()

    def look(self) -> None:
        """The schedule looks at the clock within this time."""
        self.world.advance(LOOK_MS)
        for model in self.models.values():
            model.find_clock_at(self.world.wall_ms)

    def elsewhere(self) -> int:
        """Some time from now or before it. Not so near before an occasion that a look is late."""
        while True:
            span_ms = self.random.choice([-2 * DAY_MS, -3 * HOUR_MS, 3 * HOUR_MS, 4 * DAY_MS])
            way = "back" if span_ms < 0 else "forward"
            target_ms = self.world.wall_ms + int(span_ms * self.random.uniform(0.4, 1))
            if not any(
                target_ms < each <= target_ms + LOOK_MS
                for model in self.models.values()
                for each in model.occasions
            ):
                self.tally[f"clocks found {way}"] += 1
                return target_ms


@pytest.mark.trial(short=1, long=200)
def test_each_run_once_through_daylight_saving_jumps_and_restarts(
    seed: int, tally: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_jobs, "LOOK_MS", LOOK_MS)
    random, start = Random(seed), STARTS[seed % 2]
    months = Months(start, random, tally)
    while months.world.wall_ms < ms(start) + SPAN_MS:
        months.serve(random.randrange(3 * DAY_MS))
        random.choice([months.set_clock, months.restart])()
    months.serve(HOUR_MS)
    for name, model in months.models.items():
        assert len(model.ran) == len(set(model.ran)) > 0
        assert [due for each, due in months.world.finished if each == name] == model.ran
    tally["runs"] += len(months.world.finished)
