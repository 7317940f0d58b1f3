"""Tests of actors/access/refusals.py: the limit of failed signatures."""

from actors.access.access_state import new_guard
from actors.access.refusals import MINUTE_MS, TRIES_MAX, Refusals
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import RateLimitedLog
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
