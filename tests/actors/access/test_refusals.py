"""Tests of actors/access/refusals.py: counts of refusals, and the limit of failed signatures."""

from actors.access.access_state import new_guard
from actors.access.refusals import (
    MINUTE_MS,
    REFUSALS_MAX,
    REFUSALS_OF_ACCOUNT_MAX,
    TRIES_MAX,
    Refusals,
)
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import RateLimitedLog
from protocol.codes import RequestCode
from storage.access.acl_files import parse_texts


def test_an_address_is_blocked_for_a_minute_even_if_the_clock_is_set() -> None:
    wall, monotonic = [0], [0.0]
    refusals = Refusals(lambda: wall[0], RateLimitedLog(lambda: monotonic[0]))
    tries = new_guard(
        SnapshotRef(parse_texts({}, takes_samples=False)), {}, lambda: wall[0], refusals
    ).tries
    for _ in range(TRIES_MAX + 1):
        tries.note("203.0.113.9", "shop")
    wall[0] = 300_000
    assert tries.is_shut_out("203.0.113.9", "shop")
    wall[0], monotonic[0] = -300_000, MINUTE_MS + 1
    assert not tries.is_shut_out("203.0.113.9", "shop")


def test_counts_by_code_never_fall_when_entries_are_dropped() -> None:
    refusals = Refusals(lambda: 0, RateLimitedLog(lambda: 0.0))
    for _ in range(500):
        refusals.note("bot", "", RequestCode.SEND_MESSAGE_V2, "x", "h")
    for number in range(REFUSALS_MAX):
        account = f"a{number // REFUSALS_OF_ACCOUNT_MAX}"
        refusals.note(account, f"g{number}", RequestCode.PULL_MESSAGE, "x", "h")
    refusals.note("a", "g", 77_777, "x", "h")
    assert all(each.account != "bot" for each in refusals.all())
    assert refusals.by_code == {
        RequestCode.SEND_MESSAGE_V2: 500,
        RequestCode.PULL_MESSAGE: REFUSALS_MAX,
        -1: 1,
    }
