"""Figures of timers, and their text in an answer to code 28."""

from actors.statistics.counts import TimerFigures
from protocol.timers import LevelTimers


def test_text_keeps_the_figures_and_other_versions_are_read() -> None:
    figures = LevelTimers(7, 1_700_000_000_000, 9, 3, 2, 1, 35, 4)
    assert LevelTimers.decode(figures.encode()) == figures
    assert LevelTimers.decode(figures.encode() + ",99") == figures
    assert LevelTimers.decode("7,x") == LevelTimers(7)
    assert figures.is_used and not LevelTimers().is_used


def test_sums_are_those_of_all_levels() -> None:
    figures = TimerFigures()
    assert (figures.pending, figures.next_due_ms, figures.late_ms(5)) == (0, 0, 0)
    figures.of_level(2).pending, figures.of_level(2).next_due_ms = 3, 100
    figures.of_level(3).pending, figures.of_level(3).next_due_ms = 4, 50
    figures.of_level(3).stored_count, figures.of_level(3).moved_count = 9, 2
    assert (figures.pending, figures.next_due_ms) == (7, 50)
    assert (figures.late_ms(40), figures.late_ms(70)) == (0, 20)
    assert (figures.stored_count, figures.delivered_count) == (7, 0)
