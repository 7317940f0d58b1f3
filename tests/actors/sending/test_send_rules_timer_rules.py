"""Delay levels of timers, and due times of retries and committed messages."""

from dataclasses import replace

import pytest

from actors.sending.send_rules import TimerRules
from tests.support.brokers import STORE

DELAYS_MS = (1_000, 60_000, 5_000)


@pytest.mark.parametrize(
    "left_ms, level",
    [(-5, 1), (1, 1), (1_000, 1), (1_001, 3), (5_001, 2), (60_000, 2), (10**12, 2)],
)
def test_timer_waits_in_the_shortest_level_that_lasts_or_in_the_longest(
    left_ms: int, level: int
) -> None:
    rules = TimerRules(STORE, DELAYS_MS, lambda: 1_000)
    assert rules.level(1_000 + left_ms) == (level, DELAYS_MS[level - 1])


def test_level_that_outlasts_the_files_of_the_log_is_not_used() -> None:
    rules = TimerRules(replace(STORE, file_reserved_hours=1), (1_000, 3_600_000), lambda: 0)
    assert rules.level(10**9) == (1, 1_000)
    rules = TimerRules(replace(STORE, file_reserved_hours=0), (1_000, 3_600_000), lambda: 0)
    assert rules.level(10**9) == (2, 3_600_000)


def test_delay_of_a_retry_is_cut_to_the_limit() -> None:
    rules = TimerRules(replace(STORE, timer_max_delay_sec=10), DELAYS_MS, lambda: 1_000)
    assert rules.due_in_ms(5_000) == 6_000
    assert rules.due_in_ms(50_000) == 11_000
    assert rules.due_in_ms(0) == rules.due_in_ms(-1) == 0


def test_committed_message_is_never_refused() -> None:
    rules = TimerRules(replace(STORE, timer_max_delay_sec=10), DELAYS_MS, lambda: 1_000)
    assert rules.due_at_commit_ms({b"TIMER_DELAY_SEC": b"100"}) == 101_000
    assert rules.due_at_commit_ms({b"TIMER_DELIVER_MS": b"999"}) == 0
    assert rules.due_at_commit_ms({b"TIMER_DELAY_MS": b"x"}) == 0
    assert TimerRules(STORE, (), lambda: 0).due_at_commit_ms({b"TIMER_DELAY_MS": b"9"}) == 0
