"""Occasions of cron expressions, and lines of the timetable through restarts and jumps."""

import json
from datetime import datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest

from actors.jobs.timetable import BadExpression, Occasions, TimetableLine, line_from
from tests.actors.jobs.occasions import occasions_between

BERLIN, NEW_YORK, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("UTC")
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def ms(text: str, zone: ZoneInfo = UTC, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()) * 1000


def local(moment_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, zone).isoformat()


@pytest.mark.parametrize(
    ("zone", "before", "expected"),
    [
        (BERLIN, "2026-03-28T12:00", "2026-03-29T03:00:00+02:00"),
        (NEW_YORK, "2026-03-07T12:00", "2026-03-08T03:00:00-04:00"),
        (BERLIN, "2026-10-24T12:00", "2026-10-25T02:30:00+02:00"),
        (NEW_YORK, "2026-10-31T12:00", "2026-11-01T02:30:00-05:00"),
    ],
)
def test_a_night_in_which_the_clocks_change_has_one_occasion(
    zone: ZoneInfo, before: str, expected: str
) -> None:
    occasions = Occasions("30 2 * * *", zone)
    start = ms(before, zone)
    found = occasions_between(occasions, start, start + DAY_MS)
    assert [local(each, zone) for each in found] == [expected]


def test_in_a_repeated_hour_the_next_occasion_is_in_the_future() -> None:
    occasions = Occasions("30 2 * * *", BERLIN)
    second_time = ms("2026-10-25T02:15", BERLIN, fold=1)
    assert local(occasions.after(second_time), BERLIN) == "2026-10-26T02:30:00+01:00"


def test_a_quarter_hour_schedule_is_regular_through_clock_changes() -> None:
    start = ms("2026-10-25T00:00", BERLIN)
    found = occasions_between(Occasions("*/15 * * * *", BERLIN), start - 1, start + DAY_MS - 1)
    assert found == list(range(start, start + DAY_MS, 15 * MINUTE_MS))


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/7 * * * *", "0 0 1 * *", "0 12 29 2 *"])
def test_the_last_occasion_precedes_the_next(expression: str) -> None:
    occasions = Occasions(expression, BERLIN)
    random = Random(5)
    for _ in range(10):
        until = ms("2026-01-01T00:00") + random.randrange(600) * DAY_MS + random.randrange(DAY_MS)
        after = until - random.choice([HOUR_MS, DAY_MS, 40 * DAY_MS])
        last = occasions.last(after, until)
        if last is None:
            assert occasions.after(after) > until
        else:
            assert after < last <= until < occasions.after(last)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("30 2 * *", "five fields"),
        ("0 30 2 * * *", "five fields"),
        ("61 * * * *", "no such minute"),
        ("0 0 30 2 *", "no such day-of-month"),
    ],
)
def test_a_schedule_without_any_moment_is_refused(expression: str, why: str) -> None:
    with pytest.raises(BadExpression, match=why):
        Occasions(expression, UTC)


class Clockwork:
    """One line, its clock, and what ran when: a broker reduced to its timetable."""

    def __init__(self, expression: str, zone: ZoneInfo, now_ms: int) -> None:
        self.occasions = Occasions(expression, zone)
        self.now_ms = now_ms
        self.line = TimetableLine(self.occasions, now_ms)
        self.saved = json.dumps(self.line.to_json())
        self.ran: list[int] = []

    def look(self) -> None:
        due_ms = self.line.due(self.now_ms)
        if due_ms is not None:
            self.line.begin(due_ms, self.now_ms)
            self.ran.append(due_ms)
            self.line.open = None
            self.saved = json.dumps(self.line.to_json())

    def serve_until(self, until_ms: int) -> None:
        """Looks at each occasion, and at the end."""
        while (next_ms := self.line.next_ms(self.now_ms)) <= until_ms:
            self.now_ms = next_ms
            self.look()
        self.now_ms = until_ms
        self.look()

    def restart(self) -> None:
        self.line = line_from(json.loads(self.saved), self.occasions, self.now_ms)
        self.look()


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK], ids=str)
@pytest.mark.parametrize("expression", ["30 2 * * *", "15 1 * * MON"])
@pytest.mark.parametrize("first", ["2026-02-01T00:00", "2026-09-15T00:00"])
def test_three_months_with_restarts_run_each_occasion_once(
    zone: ZoneInfo, expression: str, first: str
) -> None:
    start, random = ms(first, zone), Random(3)
    clock = Clockwork(expression, zone, start)
    end = start + 92 * DAY_MS
    while clock.now_ms < end:
        clock.serve_until(min(end, clock.now_ms + random.randrange(3 * DAY_MS)))
        if random.random() < 0.5:  # off and on again before the next occasion
            clock.now_ms = random.randrange(clock.now_ms, clock.line.next_ms(clock.now_ms))
            clock.restart()
    assert clock.ran == occasions_between(clock.occasions, start, clock.now_ms)


def test_missed_occasions_get_one_run() -> None:
    clock = Clockwork("0 * * * *", UTC, ms("2026-03-01T00:30"))
    clock.serve_until(ms("2026-03-01T02:10"))
    clock.now_ms = ms("2026-03-04T09:20")
    clock.restart()
    clock.serve_until(ms("2026-03-04T10:05"))
    expected = ["2026-03-01T01:00", "2026-03-01T02:00", "2026-03-04T09:00", "2026-03-04T10:00"]
    assert clock.ran == [ms(text) for text in expected]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK], ids=str)
def test_jumps_of_the_clock_and_restarts_run_nothing_twice(seed: int, zone: ZoneInfo) -> None:
    random = Random(seed)
    clock = Clockwork("30 */2 * * *", zone, ms("2026-09-15T00:00", zone))
    for _ in range(25):
        clock.serve_until(clock.now_ms + random.randrange(1, 6 * HOUR_MS))
        if random.random() < 0.5:
            clock.now_ms += random.choice([-1, 1]) * random.randrange(40 * HOUR_MS)
        if random.random() < 0.3:
            clock.restart()
        else:
            clock.look()
    assert len(clock.ran) == len(set(clock.ran))


def test_a_clock_that_was_wrong_for_a_while_costs_no_occasion() -> None:
    clock = Clockwork("0 * * * *", UTC, ms("2026-03-01T00:30"))
    clock.serve_until(ms("2026-03-01T01:10"))
    clock.now_ms = ms("2040-01-01T00:05")
    clock.look()
    clock.now_ms = ms("2026-03-01T01:11")
    clock.look()
    clock.serve_until(ms("2026-03-01T03:00"))
    expected = ["2026-03-01T01:00", "2040-01-01T00:00", "2026-03-01T02:00", "2026-03-01T03:00"]
    assert clock.ran == [ms(text) for text in expected]


def test_an_occasion_during_a_run_follows_its_end() -> None:
    line = TimetableLine(Occasions("*/10 * * * *", UTC), ms("2026-03-01T00:05"))
    line.begin(ms("2026-03-01T00:10"), ms("2026-03-01T00:10"))
    assert line.due(ms("2026-03-01T00:35")) is None
    line.open = None
    assert line.due(ms("2026-03-01T00:36")) == ms("2026-03-01T00:30")


def test_an_entry_with_changed_times_counts_from_now() -> None:
    now = ms("2026-03-02T13:00")
    old = TimetableLine(Occasions("30 2 * * *", UTC), ms("2026-03-02T02:30"))
    changed = line_from(old.to_json(), Occasions("0 12 * * *", UTC), now)
    assert changed.due(now) is None
    assert line_from({"seenMs": "nonsense"}, Occasions("0 12 * * *", UTC), now).due(now) is None
