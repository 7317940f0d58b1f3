"""Tests of actors/replication/ha_master.py: permitted addresses of slaves, and log lines."""

from dataclasses import replace

from structlog.testing import capture_logs

from actors.engine.server_log import MINUTE_MS, RateLimitedLog
from actors.replication.ha_master import Followers
from tests.support.brokers import BROKER


def test_only_addresses_of_the_setting_may_replicate() -> None:
    config = replace(BROKER, ha_allowed_addresses="192.0.2.7;2001:db8::7")
    now_ms = [0.0]
    followers = Followers(config, None, RateLimitedLog(lambda: now_ms[0]))
    with capture_logs() as logs:
        assert followers.may_follow("192.0.2.7") and followers.may_follow("2001:db8:0::7")
        assert logs == []
        strangers = ("192.0.2.8", "127.0.0.1", "no address")
        assert [followers.may_follow(host) for host in strangers * 2] == [False] * 6
        assert [line["names"] for line in logs] == [["192.0.2.8"]], "one line a minute"
        now_ms[0] += MINUTE_MS
        assert not followers.may_follow("192.0.2.8")
        assert [line["times"] for line in logs] == [1, 6]


def test_without_a_setting_and_accounts_any_slave_may_connect() -> None:
    assert Followers(BROKER, None, RateLimitedLog(lambda: 0.0)).may_follow("192.0.2.7")
