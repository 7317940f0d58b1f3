"""Tests of actors/access/rights.py: addresses of administrators."""

import pytest
from structlog.testing import capture_logs

from actors.access.rights import BROKER_RIGHTS, NAMESRV_RIGHTS, administration
from actors.engine.server_log import RateLimitedLog
from actors.settings.access_settings import addresses_of
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.errors import RemoteError

ALLOWED = addresses_of("10.0.0.7; 10.1.0.*;2001:db8::/32")


def test_without_the_setting_no_address_is_checked() -> None:
    assert administration(BROKER_RIGHTS, None, RateLimitedLog(lambda: 0)) is None


def test_administrative_requests_are_accepted_only_from_allowed_addresses() -> None:
    made = administration(BROKER_RIGHTS, ALLOWED, RateLimitedLog(lambda: 0))
    assert made is not None
    for remote in ("10.0.0.7:1", "10.1.0.255:2", "2001:db8::1:3", "[2001:db8::1]:3"):
        made.check(Code.UPDATE_BROKER_CONFIG, remote)
    for remote in ("10.0.0.8:1", "127.0.0.1:2", "[2001:db9::1]:3", "somewhere:4"):
        with pytest.raises(RemoteError) as refused:
            made.check(Code.UPDATE_BROKER_CONFIG, remote)
        assert refused.value.code == ResponseCode.NO_PERMISSION
        assert "adminAllowedAddresses" in refused.value.remark


def test_client_requests_are_not_administrative() -> None:
    made = administration(BROKER_RIGHTS, ALLOWED, RateLimitedLog(lambda: 0))
    assert made is not None
    own = {Code.SEND_MESSAGE, Code.PULL_MESSAGE, Code.HEART_BEAT, Code.GET_CONSUMER_LIST_BY_GROUP}
    assert not own & made.codes
    assert {Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.RUN_JOB} <= made.codes
    names = administration(NAMESRV_RIGHTS, ALLOWED, RateLimitedLog(lambda: 0))
    assert names is not None
    assert {Code.PUT_KV_CONFIG, Code.WIPE_WRITE_PERM_OF_BROKER} <= names.codes
    assert not {Code.REGISTER_BROKER, Code.GET_ROUTEINFO_BY_TOPIC} & names.codes


def test_refused_administration_is_logged_once_a_minute() -> None:
    now_ms = 0
    made = administration(BROKER_RIGHTS, ALLOWED, RateLimitedLog(lambda: now_ms))
    assert made is not None
    with capture_logs() as logs:
        for now_ms in (0, 1, 59_999, 60_000, 60_001):  # noqa: B007  the clock reads it
            with pytest.raises(RemoteError):
                made.check(Code.UPDATE_BROKER_CONFIG, "10.0.0.8:1")
    assert [entry["event"] for entry in logs] == ["administration refused"] * 2
