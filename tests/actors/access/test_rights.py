"""Tests of actors/access/rights.py: complete tables, and which accounts pass each code."""

import pytest

from actors.access.grant import PREFIX, AccessRefused, Grant
from actors.access.refusals import Refusals
from actors.access.rights import (
    BROKER_RIGHTS,
    IN_HANDLER,
    NAMESRV_RIGHTS,
    STRICT_NAMESRV_RIGHTS,
    Level,
)
from actors.broker import RESPONDERS
from actors.engine.server_log import RateLimitedLog
from actors.jobs.spark_jobs import SparkJobs
from actors.namesrv_server import RESPONDERS as NAMESRV_RESPONDERS
from actors.network.request import codes_of
from protocol.codes import RequestCode as Code
from protocol.send_wire import SEND_CODES
from storage.access.acl_file import DENY, PUB, SUB, Account

SERVED = codes_of([*RESPONDERS, ("spark_jobs", SparkJobs)]).keys() | SEND_CODES
SENDER = Account("sender-account", (), topic_perms={"T": PUB}, group_perms={"G": DENY})
READER = Account("reader-account", (), topic_perms={"T": SUB}, group_perms={"G": SUB})
NOTHING = Account("nothing-account", ())
ADMIN = Account("administrator", (), admin=True)
ADMIN_WITH_LISTS = Account("administrator", (), admin=True, topic_perms={"T": SUB})
BROKER = Account("broker-account", (), broker=True)
MONITOR = Account("monitor-account", (), monitor=True)
FIELDS = {"topic": "T", "consumerGroup": "G", "group": "G", "compareGroup": "G"}


def grant(account: Account, *, is_white: bool = False) -> Grant:
    return Grant(
        account,
        is_white,
        account.admin,
        "host",
        Refusals(lambda: 0, RateLimitedLog(lambda: 0)),
        "C_REPLY_TOPIC",
    )


def passes(
    code: Code, account: Account, *, is_white: bool = False, at_namesrv: bool = False
) -> bool:
    right = (NAMESRV_RIGHTS if at_namesrv else BROKER_RIGHTS)[code]
    try:
        right.check(grant(account, is_white=is_white), code, FIELDS)
    except AccessRefused as refused:
        assert refused.code == 1 and refused.remark.startswith(PREFIX)
        return False
    return True


def test_every_code_that_a_broker_serves_has_a_required_permission() -> None:
    assert sorted(SERVED - BROKER_RIGHTS.keys()) == []
    not_served = {Code.LITE_PULL_MESSAGE} - SERVED
    assert sorted(BROKER_RIGHTS.keys() - SERVED - not_served) == []


def test_every_code_that_a_name_server_serves_has_a_required_permission() -> None:
    assert NAMESRV_RIGHTS.keys() == codes_of(NAMESRV_RESPONDERS).keys()
    assert STRICT_NAMESRV_RIGHTS.keys() == NAMESRV_RIGHTS.keys()


ADMIN_CODES = [code for code, right in BROKER_RIGHTS.items() if right.level is Level.ADMIN]
ADMIN_ONLY = [code for code in ADMIN_CODES if BROKER_RIGHTS[code] == BROKER_RIGHTS[Code(25)]]


@pytest.mark.parametrize("code", [17, 25, *range(50, 55), 200, 207, 215, 222, 309, 314, 323, 401])
def test_administrative_codes_are_for_administrators_only(code: int) -> None:
    assert Code(code) in ADMIN_ONLY
    assert passes(Code(code), ADMIN) and passes(Code(code), ADMIN_WITH_LISTS)
    for account in (READER, SENDER, NOTHING, BROKER, MONITOR):
        assert not passes(Code(code), account)
    assert not passes(Code(code), NOTHING, is_white=True)


@pytest.mark.parametrize("code", [203, 208, 223, 303, 307, 308, 30_001])
def test_administrators_and_consumers_of_the_group_pass(code: int) -> None:
    assert passes(Code(code), ADMIN) and passes(Code(code), READER)
    assert not passes(Code(code), SENDER) and not passes(Code(code), NOTHING)


@pytest.mark.parametrize("code", [202, 300, 321])
def test_administrators_and_users_of_the_topic_pass(code: int) -> None:
    assert all(passes(Code(code), account) for account in (ADMIN, READER, SENDER))
    assert not passes(Code(code), NOTHING)


@pytest.mark.parametrize("code", [21, 26, 28, 43, 45, 201, 204, 305, 315, 317, 328, 402, 30_002])
def test_administrators_brokers_and_monitors_may_read_everything(code: int) -> None:
    assert all(passes(Code(code), account) for account in (ADMIN, BROKER, MONITOR))
    assert passes(Code(code), NOTHING, is_white=True)
    assert not passes(Code(code), READER) and not passes(Code(code), NOTHING)


@pytest.mark.parametrize("code", [11, 14, 15, 361])
def test_a_pull_and_its_offsets_need_topic_and_group(code: int) -> None:
    assert passes(Code(code), READER) and passes(Code(code), ADMIN)
    assert not passes(Code(code), SENDER)
    assert not passes(Code(code), Account("a", (), topic_perms={"T": SUB}))
    assert not passes(Code(code), Account("a", (), group_perms={"G": SUB}))
    assert not passes(Code(code), ADMIN_WITH_LISTS), "its lists count, and have no such group"


@pytest.mark.parametrize("code", [29, 30, 31, 32])
def test_queue_offsets_need_any_permission_on_the_topic(code: int) -> None:
    assert passes(Code(code), READER) and passes(Code(code), SENDER)
    assert not passes(Code(code), NOTHING)


@pytest.mark.parametrize("code", [103, 104, 322])
def test_only_broker_accounts_and_allowlisted_addresses_register_brokers(code: int) -> None:
    assert passes(Code(code), BROKER, at_namesrv=True) and passes(
        Code(code), ADMIN, at_namesrv=True
    )
    assert passes(Code(code), NOTHING, is_white=True, at_namesrv=True)
    assert not passes(Code(code), READER, at_namesrv=True)
    assert not passes(Code(code), MONITOR, at_namesrv=True)


@pytest.mark.parametrize("code", [100, 102, 205, 216, 318, 319, 327])
def test_only_administrators_change_a_name_server(code: int) -> None:
    assert passes(Code(code), ADMIN, at_namesrv=True)
    for account in (READER, BROKER, MONITOR):
        assert not passes(Code(code), account, at_namesrv=True)
    assert not passes(Code(code), NOTHING, is_white=True, at_namesrv=True)


@pytest.mark.parametrize("code", [101, 105, 106, 206, 219, 224, 304, 311, 312, 313])
def test_any_account_may_ask_a_name_server(code: int) -> None:
    assert passes(Code(code), NOTHING, at_namesrv=True)


def test_a_setting_makes_routes_need_a_permission_on_the_topic() -> None:
    right = STRICT_NAMESRV_RIGHTS[Code.GET_ROUTEINFO_BY_TOPIC]
    right.check(grant(READER), 105, FIELDS)
    with pytest.raises(AccessRefused, match="No default permission for topic:T"):
        right.check(grant(NOTHING), 105, FIELDS)


def test_routes_of_trace_and_reply_topics_need_no_permission() -> None:
    right = STRICT_NAMESRV_RIGHTS[Code.GET_ROUTEINFO_BY_TOPIC]
    for topic in ("RMQ_SYS_TRACE_TOPIC", "C_REPLY_TOPIC", "OtherCluster_REPLY_TOPIC"):
        right.check(grant(NOTHING), 105, {"topic": topic})
    denied = Account("denied-account", (), topic_perms={"C_REPLY_TOPIC": DENY})
    with pytest.raises(AccessRefused, match="No default permission for topic:C_REPLY_TOPIC"):
        right.check(grant(denied), 105, {"topic": "C_REPLY_TOPIC"})


def test_codes_checked_in_their_handlers_are_listed() -> None:
    left = {code for code, right in BROKER_RIGHTS.items() if right is IN_HANDLER}
    settled = {200_051, 200_053, 200_151}
    assert left == {10, 310, 320, 324, 325, 33, 34, 37, 41, 42, 46, 400} | settled


def test_a_request_without_the_field_its_permission_names_is_refused() -> None:
    with pytest.raises(AccessRefused, match="Need admin permission for request code=208"):
        BROKER_RIGHTS[Code.GET_CONSUME_STATS].check(grant(READER), 208, {})
