"""Tests of actors/admin/access_control.py: codes 50 to 54, and files that people write."""

import json
from time import thread_time
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.access.acl_store import split_addresses
from actors.admin.access_control import ACL_IS_OFF, SETTLED_MS, WATCH_MS
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.admin import (
    CreateAccessConfigHeader,
    DeleteAccessConfigHeader,
    UpdateGlobalWhiteAddressesHeader,
)
from storage.errors import StoreError
from tests.support.brokers import SimulatedBroker, send_command
from tests.support.guarded import (
    ACCOUNTS,
    ACL_PATH,
    GuardedBroker,
    signed,
    with_accounts,
    write_accounts,
)

UPDATE, DELETE = Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG
WHITE = Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
VERSIONS, SHOW = Code.GET_BROKER_CLUSTER_ACL_INFO, Code.GET_BROKER_CLUSTER_ACL_CONFIG


def change(made: GuardedBroker, name: str, secret: str | None = None, **more: Any) -> str:
    """The remark; empty where it was done."""
    header = CreateAccessConfigHeader(name, secret, **more)
    return done(made.ask(RemotingCommand(UPDATE, header.encode())), 209)


def delete(made: GuardedBroker, name: str) -> str:
    return done(made.ask(RemotingCommand(DELETE, DeleteAccessConfigHeader(name).encode())), 210)


def whiten(made: GuardedBroker, addresses: str, path: str | None = None) -> str:
    header = UpdateGlobalWhiteAddressesHeader(addresses, path)
    return done(made.ask(RemotingCommand(WHITE, header.encode())), 211)


def done(answer: RemotingCommand, failure: int) -> str:
    assert answer.code in (0, failure), answer
    assert bool(answer.code) is bool(answer.remark)
    return answer.remark or ""


def shown(made: GuardedBroker) -> dict[str, Any]:
    answer = made.ask(RemotingCommand(SHOW))
    assert (answer.code, answer.fields) == (0, {})
    found: dict[str, Any] = json.loads(bytes(answer.body or b""))
    return found


def account(made: GuardedBroker, name: str) -> dict[str, Any] | None:
    listed = shown(made)["plainAccessConfigs"]
    return next((each for each in listed if each["accessKey"] == name), None)


def versions(made: GuardedBroker) -> dict[str, str]:
    answer = made.ask(RemotingCommand(VERSIONS))
    assert answer.code == 0 and answer.fields is not None
    return answer.fields


def counter(made: GuardedBroker) -> int:
    found: int = json.loads(versions(made)["version"])["counter"]
    return found


def test_a_new_account_works_at_once_and_after_a_restart() -> None:
    made = GuardedBroker(1)
    assert change(made, "new-account", "secret-of-it", topic_perms="Topic=PUB,Other=DENY") == ""
    command = signed(send_command(topic="Topic"), "new-account", "secret-of-it")
    assert made.client.request(command).code == 0
    assert account(made, "new-account") == {
        "accessKey": "new-account",
        "admin": False,
        "secretKey": "******",
        "topicPerms": ["Topic=PUB", "Other=DENY"],
    }
    made.stop()
    again = GuardedBroker(2, disk=made.disk)
    assert account(again, "new-account") is not None


def test_fields_not_named_in_a_change_are_kept() -> None:
    made = GuardedBroker(1)
    assert change(made, "shop-account", default_topic_perm="SUB") == ""
    found = account(made, "shop-account")
    assert found is not None and found["defaultTopicPerm"] == "SUB"
    assert found["topicPerms"] == ["Orders=PUB|SUB", "Topic=PUB|SUB"]
    orders = send_command(topic="Orders")
    assert made.ask_as("shop-account", orders).code == 0, "its secret is the same"


def test_a_secret_is_replaced_at_once_or_stays_valid_beside_the_new_one() -> None:
    made = GuardedBroker(1)

    def code(secret: str) -> int:
        command = signed(send_command(topic="Orders"), "shop-account", secret)
        return made.client.request(command).code

    assert change(made, "shop-account", "secret-two", keep_previous_secret=True) == ""
    assert (code("secret-two"), code("secret-shop")) == (0, 0)
    found = account(made, "shop-account")
    assert found is not None and found["previousSecretKey"] == "******"
    assert change(made, "shop-account", "secret-three") == ""
    assert (code("secret-three"), code("secret-two"), code("secret-shop")) == (0, 1, 1)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (("short", "secret12"), "The accessKey=short and secretKey cannot be null and length"),
        (("account1", None), "The accessKey=account1 and secretKey cannot be null and length"),
        (("account1", "short!"), "The accessKey=account1 and secretKey cannot be null"),
        (("shop-account", "short!"), "The secretKey value length should longer than 6"),
        (("account1", "secret12", "10.*.1.1"), "Netaddress examine Exception netaddress is 10.*"),
        (
            ("account1", "secret12", None, False, None, None, "topicA"),
            "Parse Resource format error for topicA.\nThe expected resource format is 'Res=Perm'.",
        ),
        (
            ("account1", "secret12", None, False, None, None, None, "groupA=ANY"),
            "Parse resource permission error for groupA=ANY.\nThe expected permissions are 'SUB'",
        ),
        (("RocketMQ", "12345678"), "The accesskey[RocketMQ] corresponding to accessConfig has"),
    ],
)
def test_an_invalid_account_is_refused_with_the_texts_of_4_9_7(
    header: tuple[Any, ...], text: str
) -> None:
    made = GuardedBroker(1)
    before = made.disk.read_bytes(ACL_PATH)
    answer = made.ask(RemotingCommand(UPDATE, CreateAccessConfigHeader(*header).encode()))
    assert answer.code == 209 and (answer.remark or "").startswith(text)
    assert "secret12" not in str(answer.remark) and "short!" not in str(answer.remark)
    assert made.disk.read_bytes(ACL_PATH) == before


def test_deleting_an_account_twice_is_an_error() -> None:
    made = GuardedBroker(1)
    text = "The accesskey[shop-account] corresponding to accessConfig has been deleted failed."
    assert delete(made, "shop-account") == ""
    assert delete(made, "shop-account") == text
    assert "No acl config" in str(made.ask_as("shop-account", send_command()).remark)


def test_allowlisted_addresses_are_replaced() -> None:
    made = GuardedBroker(1)
    assert whiten(made, "10.0.0.{1,2},10.1.*.*") == ""
    assert shown(made)["globalWhiteAddrs"] == ["10.0.0.{1,2}", "10.1.*.*"]
    assert made.ask_as(None, send_command(), host="10.0.0.2").code == 0
    assert made.ask_as(None, send_command(), host="192.0.2.7").code == 1, "the old one"
    assert "has been updated failed" in whiten(made, "10.0.0")


def test_the_version_counts_changes_by_request_and_by_hand() -> None:
    made = GuardedBroker(1)
    assert counter(made) == 0
    first = versions(made)
    assert json.loads(first["allAclFileVersion"]).keys() == {ACL_PATH}
    assert (first["brokerName"], first["brokerAddr"]) == ("broker-a", "127.0.0.1:10911")
    assert change(made, "shop-account", default_topic_perm="SUB") == ""
    assert counter(made) == 1
    assert json.loads(versions(made)["version"])["timestamp"] == made.clock.now_ms()
    text = made.disk.read_bytes(ACL_PATH).decode()
    write_accounts(made.disk, text.replace("defaultTopicPerm: SUB", "defaultTopicPerm: PUB"))
    assert counter(made) == 1, "the files were not reloaded yet"
    made.system.advance(WATCH_MS)
    assert counter(made) == 2
    found = account(made, "shop-account")
    assert found is not None and found["defaultTopicPerm"] == "PUB"
    assert change(made, "shop-account", default_topic_perm="SUB") == ""
    assert counter(made) == 3


def test_different_files_have_different_fingerprints_at_equal_versions() -> None:
    brokers = [GuardedBroker(1), GuardedBroker(1), with_accounts(1, ACCOUNTS + " \n# same\n")]
    brokers.append(with_accounts(1, ACCOUNTS.replace("secret-shop", "secret-other")))
    first, *others = [versions(made)["aclFingerprints"] for made in brokers]
    assert [each == first for each in others] == [True, True, False]
    assert len(json.loads(first)[ACL_PATH]) == 4
    for made in brokers:
        made.stop()


def test_an_invalid_manual_edit_has_no_effect_until_it_is_fixed() -> None:
    made = GuardedBroker(1)
    orders = send_command(topic="Orders")
    write_accounts(made.disk, ACCOUNTS.replace("Orders=PUB|SUB", "Orders"))
    with capture_logs() as logs:
        made.system.advance(3 * WATCH_MS)
    (said,) = [
        line for line in logs if line["event"] == "access control reload failed, old accounts kept"
    ]
    assert said["reason"].startswith(f"{ACL_PATH}, account shop-account")
    assert made.ask_as("shop-account", orders).code == 0
    write_accounts(made.disk, ACCOUNTS.replace("Orders=PUB|SUB", "Orders=SUB"))
    made.system.advance(WATCH_MS)
    assert made.ask_as("shop-account", orders).code == 1


def test_a_manual_edit_just_before_a_change_is_kept() -> None:
    made = GuardedBroker(1)
    more = "- {accessKey: by-hand-account, secretKey: secret-hand}\n"
    write_accounts(made.disk, ACCOUNTS + more)
    assert change(made, "shop-account", default_topic_perm="SUB") == ""
    assert account(made, "by-hand-account") is not None


def test_files_added_or_removed_below_acl_are_detected() -> None:
    made = GuardedBroker(1)
    made.disk.make_dirs("/conf/acl")
    extra = "accounts: [{accessKey: team-account, secretKey: secret-team}]"
    write_accounts(made.disk, extra, "/conf/acl/team.yml")
    made.system.advance(WATCH_MS)
    assert account(made, "team-account") is not None
    assert change(made, "team-account", default_topic_perm="SUB") == ""
    assert b"SUB" in made.disk.read_bytes("/conf/acl/team.yml"), "changed where it stands"
    made.disk.unlink("/conf/acl/team.yml")
    made.system.advance(WATCH_MS)
    assert account(made, "team-account") is None


def test_refusals_are_shown_to_administrators() -> None:
    made = GuardedBroker(1)
    assert made.ask_as("reader-account", send_command(topic="Orders")).code == 1
    answer = made.ask(RemotingCommand(Code.GET_ACL_REFUSALS))
    (found,) = json.loads(bytes(answer.body or b""))["refusals"]
    assert (found["account"], found["code"], found["count"]) == ("reader-account", 310, 1)


@pytest.mark.parametrize(("code", "refused"), [(50, 209), (51, 210), (53, 211), (52, 1), (54, 1)])
def test_without_access_control_its_codes_are_refused_with_an_explanation(
    code: int, refused: int
) -> None:
    made = SimulatedBroker(1)
    answer = made.ask(RemotingCommand(code, {"accessKey": "a", "globalWhiteAddrs": ""}))
    assert (answer.code, answer.remark) == (refused, ACL_IS_OFF)


def test_invalid_accounts_prevent_a_start() -> None:
    with pytest.raises(StoreError, match=r"account account1: .* longer than 6 characters"):
        with_accounts(1, "accounts: [{accessKey: account1, secretKey: short}]")
    sample = "accounts: [{accessKey: RocketMQ, secretKey: 12345678}]"
    with pytest.raises(StoreError, match="its secret is public"):
        with_accounts(1, sample)
    with_accounts(1, sample, {"takes_samples": True}).stop()


def test_unreadable_account_files_are_logged_once_and_change_nothing() -> None:
    made = GuardedBroker(1)
    text = made.disk.read_bytes(ACL_PATH).decode()
    with capture_logs() as logs:
        made.disk.unlink(ACL_PATH)
        made.system.advance(4 * WATCH_MS)
        assert made.ask_as("shop-account", send_command(topic="Orders")).code == 0
        told = [
            each
            for each in logs
            if each["event"] == "access control reload failed, old accounts kept"
        ]
        assert len(told) == 1 and ACL_PATH in told[0]["reason"]
        write_accounts(made.disk, text)
        made.system.advance(WATCH_MS)
        for emptied in ("", "# half of it\n"):
            write_accounts(made.disk, emptied)
            made.system.advance(2 * WATCH_MS)
        assert made.ask_as("shop-account", send_command(topic="Orders")).code == 0
        assert [each["reason"] for each in logs if each["event"] == told[0]["event"]][1:] == [
            f"{ACL_PATH} is empty: to remove its accounts, write accounts: []."
        ]
        write_accounts(made.disk, "accounts: []\n")
        made.system.advance(WATCH_MS)
    assert made.ask_as("shop-account", send_command(topic="Orders")).code == 1
    known = "accounts missing"
    assert [each["event"] for each in logs].count(known) == 1


def test_a_half_written_file_is_not_taken() -> None:
    made = GuardedBroker(1)
    orders = send_command(topic="Orders")
    half = ACCOUNTS.partition("- {accessKey: shop-account")[0]
    for _ in range(100):  # looks meet both states
        for text, ms in ((half, SETTLED_MS * 0.8), (ACCOUNTS + "#\n", SETTLED_MS * 1.23)):
            write_accounts(made.disk, text)
            made.system.advance(ms)
            assert made.ask_as("shop-account", orders).code == 0


def test_a_list_of_many_addresses_is_split_in_linear_time() -> None:
    """40,000 numbers between braces took 0.9 s, a header of 1 MiB minutes."""
    members = ",".join(["7"] * 40_000)
    began_s = thread_time()
    assert [*split_addresses(f"::1, 10.0.0.{{{members}}},")] == ["::1", f"10.0.0.{{{members}}}", ""]
    assert thread_time() - began_s < 0.3
