"""Tests of actors/replication/followers.py: from where slaves may come, and what the log says."""

from dataclasses import replace

from structlog.testing import capture_logs

from actors.replication.followers import LOG_STRANGERS_MS, STRANGERS_MAX, Followers
from tests.support.brokers import BROKER


def test_with_a_setting_its_addresses_may_follow_and_no_other() -> None:
    config = replace(BROKER, ha_allowed_addresses="192.0.2.7;2001:db8::7")
    now_ms = [0.0]
    followers = Followers(config, None, lambda: now_ms[0])
    with capture_logs() as logs:
        assert followers.may_follow("192.0.2.7") and followers.may_follow("2001:db8:0::7")
        assert logs == []
        strangers = ("192.0.2.8", "127.0.0.1", "no address")
        assert [followers.may_follow(host) for host in strangers * 2] == [False] * 6
        assert [line["address"] for line in logs] == [*strangers], "one line a minute each"
        now_ms[0] += LOG_STRANGERS_MS
        assert not followers.may_follow("192.0.2.8")
        assert len(logs) == 4


def test_a_crowd_of_strangers_is_not_kept_in_mind() -> None:
    config = replace(BROKER, ha_allowed_addresses="192.0.2.7")
    followers = Followers(config, None, lambda: 0.0)
    with capture_logs():
        for number in range(STRANGERS_MAX * 2):
            followers.may_follow(f"198.51.{number // 250}.{number % 250}")
    assert len(followers._turned_away) <= STRANGERS_MAX


def test_without_a_setting_and_without_accounts_everybody_may() -> None:
    assert Followers(BROKER, None, lambda: 0.0).may_follow("192.0.2.7")
