"""Tests of actors/access/authorizer.py: signatures, allowlists, limits of failures."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from actors.access.access_state import TRACE_BYTES_PER_SECOND, AccessState, new_guard
from actors.access.authorizer import DECOY_BYTES_MAX, Authorizer, TooManyFailures
from actors.access.grant import PREFIX, AccessRefused
from actors.access.refusals import (
    MINUTE_MS,
    REFUSALS_MAX,
    REFUSALS_OF_ACCOUNT_MAX,
    TEXT_CHARS_MAX,
    TRIES_MAX,
    Refusals,
)
from actors.access.rights import BROKER_RIGHTS
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import RateLimitedLog
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.send_values import Send, send_of
from protocol.signature import SIGNATURE, Buffer, SecretKey, signed_values
from storage.access.acl_files import AclSnapshot, parse_texts
from tests.support.brokers import send_command
from tests.support.guarded import ACCOUNTS, SECRETS, STRANGE_HOST, WHITE_HOST, signed

MORE = """
- {accessKey: rotated-account, secretKey: secret-new, previousSecretKey: secret-old,
   defaultTopicPerm: PUB}
- {accessKey: at-home-account, secretKey: secret-home, defaultTopicPerm: SUB,
   allowedRemoteAddresses: [10.0.0.*, '::1']}
- {accessKey: tls-account, secretKey: secret-tls, defaultTopicPerm: SUB, requireTls: true}
- {accessKey: fresh-account, secretKey: secret-fresh, defaultTopicPerm: PUB|SUB,
   aclMaxAgeSeconds: 60}
"""


class Server:
    """Access state with a clock that tests set."""

    def __init__(self, text: str = ACCOUNTS + MORE, *, is_white_admin: bool = False) -> None:
        self.now_ms = 1_700_000_000_000
        self.published = SnapshotRef(read(text))
        self.guard: AccessState = new_guard(
            self.published,
            BROKER_RIGHTS,
            lambda: self.now_ms,
            Refusals(lambda: self.now_ms, RateLimitedLog(lambda: self.now_ms)),
            is_white_admin=is_white_admin,
            reply_topic="C_REPLY_TOPIC",
            trace_topic="RMQ_SYS_TRACE_TOPIC",
        )

    def gate(self, host: str = STRANGE_HOST, *, is_encrypted: bool = False) -> Authorizer:
        return Authorizer(self.guard, host, is_encrypted=is_encrypted)


def read(text: str) -> AclSnapshot:
    return parse_texts({"file": text.encode()}, takes_samples=False)


def test_an_account_does_not_evict_refusals_of_others() -> None:
    server = Server()
    refusals = server.guard.refusals
    refusals.note("shop-account", "shop", 11, "first", "192.0.2.1")
    for number in range(REFUSALS_MAX + REFUSALS_OF_ACCOUNT_MAX):
        refusals.note("nothing-account", f"made-up-{number}", 11, "no", "192.0.2.2")
    (kept,) = refusals.of_group("shop")
    assert (kept.account, kept.count) == ("shop-account", 1)
    assert len([*refusals.all()]) == REFUSALS_OF_ACCOUNT_MAX + 2
    (rest,) = refusals.of_group("")
    assert rest.count == REFUSALS_MAX
    for number in range(2 * REFUSALS_MAX):
        refusals.note(f"account-{number}", "", 11, "no", "192.0.2.2")
    assert len([*refusals.all()]) == REFUSALS_MAX


def test_a_code_that_the_table_does_not_have_is_refused() -> None:
    server = Server()
    gate = Authorizer(replace(server.guard, rights={}), STRANGE_HOST)
    for account in ("administrator", "broker-account"):
        with pytest.raises(AccessRefused, match="Need admin permission"):
            gate.grant(signed(ends(), account))


def ends(topic: str = "Orders") -> RemotingCommand:
    return RemotingCommand(Code.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})


def refusal(gate: Authorizer, command: RemotingCommand) -> str:
    with pytest.raises(AccessRefused) as refused:
        gate.grant(command)
    assert refused.value.code == 1
    assert refused.value.remark == PREFIX + refused.value.text
    return refused.value.text


def check_send(gate: Authorizer, send: Send) -> None:
    for error in gate.refused([send]).values():
        raise error


def send_refusal(gate: Authorizer, command: RemotingCommand) -> str:
    (refused,) = gate.refused([send_of(command)]).values()
    return refused.text


# --- authentication


def test_refusals_have_the_texts_of_4_9_7() -> None:
    gate = Server().gate()
    assert refusal(gate, ends()) == "No accessKey is configured"
    assert refusal(gate, signed(ends(), "stranger-key")) == "No acl config for stranger-key"
    wrong = "Check signature failed for accessKey=shop-account"
    assert refusal(gate, signed(ends(), "shop-account", "another-secret")) == wrong
    denied = signed(ends("Other"), "shop-account")
    assert refusal(gate, denied) == "No default permission for topic:Other"
    retried = signed(ends("%RETRY%others"), "shop-account")
    assert refusal(gate, retried) == "No default permission for group:others"
    admin = signed(RemotingCommand(Code.UPDATE_BROKER_CONFIG), "shop-account")
    need = "Need admin permission for request code=25, but accessKey=shop-account is not"
    assert refusal(gate, admin) == need


def test_a_correct_signature_passes_and_covers_the_body() -> None:
    gate = Server().gate()
    command = signed(ends(), "shop-account")
    assert gate.grant(command).account.access_key == "shop-account"
    command.body = b"changed"
    assert refusal(gate, command).startswith("Check signature failed")


def test_little_of_a_body_is_hashed_for_an_unknown_account() -> None:
    """A request of 64 MiB held a name server up for 0.1 s, from any peer."""
    hashed: list[int] = []

    class Noting(SecretKey):
        def sign(self, values: bytes, body: Buffer | None) -> bytes:
            hashed.append(len(body or b""))
            return super().sign(values, body)

    server = Server()
    gate = Authorizer(replace(server.guard, decoy=Noting("decoy")), STRANGE_HOST)
    command = signed(replace(ends(), body=bytes(DECOY_BYTES_MAX + 1)), "stranger-key")
    assert refusal(gate, command) == "No acl config for stranger-key"
    assert hashed == [DECOY_BYTES_MAX]


@pytest.mark.parametrize("signature", [None, "", "not Base64 at all", "x" * 1_000_000, "\ud800"])
def test_malformed_signatures_are_refused(signature: str | None) -> None:
    command = signed(ends(), "shop-account")
    assert command.fields is not None
    del command.fields[SIGNATURE]
    if signature is not None:
        command.fields[SIGNATURE] = signature
    assert refusal(Server().gate(), command).startswith("Check signature failed")


def test_a_long_unknown_key_is_cut_in_the_answer() -> None:
    text = refusal(Server().gate(), signed(ends(), "k" * 1_000_000))
    assert len(text) < 200


def test_a_query_by_unique_key_is_permitted_in_both_forms() -> None:
    fields = {"topic": "Orders", "key": "k", "_UNIQUE_KEY_QUERY": "true"}
    as_client = signed(RemotingCommand(Code.QUERY_MESSAGE, dict(fields)), "shop-account")
    assert Server().gate().grant(as_client)
    as_broker = RemotingCommand(
        Code.QUERY_MESSAGE, {**fields, "AccessKey": "shop-account", SIGNATURE: ""}
    )
    assert as_broker.fields is not None
    values = signed_values(as_broker.fields, without="_UNIQUE_KEY_QUERY")
    as_broker.fields[SIGNATURE] = SecretKey(SECRETS["shop-account"]).sign(values, None).decode()
    assert Server().gate().grant(as_broker)


def test_two_secrets_are_valid_during_a_rotation() -> None:
    server = Server()
    for secret in ("secret-new", "secret-old"):
        gate = server.gate()
        for _ in range(2):
            check_send(gate, send_of(signed(send_command(), "rotated-account", secret)))
    assert send_refusal(server.gate(), signed(send_command(), "rotated-account", "secret-none"))


def test_account_changes_apply_to_open_connections() -> None:
    server = Server()
    gate, command = server.gate(), send_command(topic="Orders")
    check_send(gate, send_of(signed(command, "shop-account")))
    server.published.value = read(ACCOUNTS.replace("Orders=PUB|SUB", "Orders=DENY"))
    text = send_refusal(gate, signed(command, "shop-account"))
    assert text == "No default permission for topic:Orders"


# --- sends


def test_a_send_needs_pub_of_its_topic_and_sub_of_the_group_of_a_retry_topic() -> None:
    gate = Server().gate()
    for _ in range(2):  # found out, and known
        check_send(gate, send_of(signed(send_command(topic="Orders"), "shop-account")))
        check_send(gate, send_of(signed(send_command(topic="%RETRY%shop"), "shop-account")))
        orders = signed(send_command(topic="Orders"), "reader-account")
        assert send_refusal(gate, orders) == "No default permission for topic:Orders"
        retried = signed(send_command(topic="%RETRY%readers2"), "reader-account")
        assert send_refusal(gate, retried) == "No default permission for group:readers2"
        assert send_refusal(gate, send_command()) == "No accessKey is configured"
        wrong = signed(send_command(topic="Orders"), "shop-account", "another-secret")
        assert send_refusal(gate, wrong).startswith("Check signature failed")


def test_replies_need_no_permission_unless_the_topic_is_listed() -> None:
    reply = RemotingCommand(
        Code.SEND_REPLY_MESSAGE_V2, send_command(topic="C_REPLY_TOPIC").fields, b"reply"
    )
    assert Server().gate().grant(signed(reply, "nothing-account"))
    listed = ACCOUNTS.replace("topicPerms: [Orders=SUB]", "topicPerms: [C_REPLY_TOPIC=DENY]")
    text = refusal(Server(listed).gate(), signed(reply, "reader-account"))
    assert text == "No default permission for topic:C_REPLY_TOPIC"


# --- from where


def test_an_allowlisted_address_may_send_receive_and_read_but_not_administer() -> None:
    gate = Server().gate(WHITE_HOST)
    check_send(gate, send_of(send_command(topic="Whatever")))
    assert gate.grant(ends("Whatever")).is_white
    assert gate.grant(RemotingCommand(Code.GET_ALL_TOPIC_CONFIG)).is_white
    update = RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=b"a=b")
    assert refusal(gate, update).startswith("Need admin permission")
    assert gate.grant(signed(update, "administrator")).is_admin
    assert refusal(gate, signed(update, "administrator", "another-secret"))
    assert Server(is_white_admin=True).gate(WHITE_HOST).grant(RemotingCommand(25)).is_admin


def test_an_account_at_its_allowlisted_address_needs_no_signature() -> None:
    server = Server()
    unsigned = RemotingCommand(
        Code.GET_MAX_OFFSET, {"topic": "Orders", "AccessKey": "reader-account"}
    )
    assert server.gate("192.0.2.9").grant(unsigned).is_white
    assert refusal(server.gate(STRANGE_HOST), unsigned).startswith("Check signature failed")


def test_an_account_can_be_restricted_to_addresses() -> None:
    server = Server()
    command = signed(ends(), "at-home-account", "secret-home")
    assert server.gate("10.0.0.77").grant(command)
    assert server.gate("::1").grant(command)
    away = "accessKey=at-home-account is not allowed from this address"
    assert refusal(server.gate("10.0.1.77"), command) == away


def test_an_account_can_be_restricted_to_tls() -> None:
    command = signed(ends(), "tls-account", "secret-tls")
    only = "accessKey=tls-account is only allowed over TLS"
    assert refusal(Server().gate(), command) == only
    assert Server().gate(is_encrypted=True).grant(command)


def test_an_allowlisted_address_does_not_override_address_and_tls_restrictions() -> None:
    text = """
accounts:
- {accessKey: tls-account, secretKey: secret-tls, defaultTopicPerm: SUB, requireTls: true,
   whiteRemoteAddress: 10.9.9.9}
- {accessKey: at-home-account, secretKey: secret-home, defaultTopicPerm: SUB,
   whiteRemoteAddress: 10.9.9.*, allowedRemoteAddresses: [10.9.9.9]}
"""
    server = Server(text)
    unsigned = {
        name: RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "T", "AccessKey": name})
        for name in ("tls-account", "at-home-account")
    }
    only = "accessKey=tls-account is only allowed over TLS"
    assert refusal(server.gate("10.9.9.9"), unsigned["tls-account"]) == only
    assert server.gate("10.9.9.9", is_encrypted=True).grant(unsigned["tls-account"]).is_white
    away = "accessKey=at-home-account is not allowed from this address"
    assert refusal(server.gate("10.9.9.8"), unsigned["at-home-account"]) == away
    assert server.gate("10.9.9.9").grant(unsigned["at-home-account"]).is_white


def test_an_old_signature_is_ignored_if_no_signature_is_needed() -> None:
    server = Server(
        "accounts: [{accessKey: fresh-account, secretKey: secret-fresh, aclMaxAgeSeconds: 60,"
        " admin: true, whiteRemoteAddress: 10.9.9.9}]"
    )
    gate = server.gate("10.9.9.9")
    old = signed(ends(), "fresh-account", "secret-fresh", now_ms=server.now_ms - 60_001)
    assert gate.grant(old).is_white and not gate.grant(old).is_admin
    assert "too old" in refusal(server.gate(), old)
    update = RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=b"a=b")
    signed(update, "fresh-account", "secret-fresh", now_ms=server.now_ms - 60_001)
    assert refusal(gate, update).startswith("Need admin permission")


def test_an_account_can_require_fresh_signatures() -> None:
    server = Server()
    gate, now_ms = server.gate(), server.now_ms
    for _ in range(2):
        for age_ms in (0, 60_000, -60_000):
            command = signed(ends(), "fresh-account", "secret-fresh", now_ms=now_ms - age_ms)
            assert gate.grant(command)
            fresh = signed(send_command(), "fresh-account", "secret-fresh", now_ms=now_ms - age_ms)
            check_send(gate, send_of(fresh))
        for age_ms in (60_001, -60_001):
            old = signed(send_command(), "fresh-account", "secret-fresh", now_ms=now_ms - age_ms)
            assert "too old or has no timestamp" in send_refusal(gate, old)


def test_a_fresh_signature_is_for_one_request_only() -> None:
    server = Server(ACCOUNTS + MORE.replace("secret-old,", "secret-old, aclMaxAgeSeconds: 60,"))
    gate, text = server.gate(), "Check signature failed for accessKey=rotated-account"
    for secret in ("secret-new", "secret-old"):
        command = signed(ends(), "rotated-account", secret, now_ms=server.now_ms)
        assert gate.grant(command)
        assert refusal(gate, replace(command, code=Code.GET_MIN_OFFSET)) == text
        send = signed(send_command(), "rotated-account", secret, now_ms=server.now_ms)
        check_send(gate, send_of(send))
        assert send_refusal(gate, replace(send, code=Code.SEND_BATCH_MESSAGE)) == text


# --- how often


def test_too_many_wrong_keys_block_the_address_for_a_minute() -> None:
    server = Server()
    good, bad = server.gate(), server.gate()
    good.grant(signed(ends(), "shop-account"))
    wrong = signed(ends(), "shop-account", "another-secret")
    for _ in range(TRIES_MAX):
        assert refusal(bad, wrong)
    with pytest.raises(TooManyFailures):
        bad.grant(wrong)
    right = signed(ends(), "shop-account")
    with pytest.raises(TooManyFailures):
        server.gate().grant(right)
    assert good.grant(right), "an earlier connection goes on"
    assert server.gate().grant(signed(ends(), "reader-account")), "another account passes"
    assert server.gate("203.0.113.9").grant(right), "another address passes"
    server.now_ms += MINUTE_MS
    assert server.gate().grant(right)


def test_refusals_are_counted_by_account_group_and_code() -> None:
    server = Server()
    pull = {"topic": "Secret", "consumerGroup": "shop"}
    for _ in range(3):
        assert refusal(server.gate(), signed(RemotingCommand(11, dict(pull)), "shop-account"))
    (found,) = server.guard.refusals.of_group("shop")
    assert (found.account, found.group, found.code, found.count) == ("shop-account", "shop", 11, 3)
    assert found.remark == "No default permission for topic:Secret"
    assert refusal(server.gate(), signed(RemotingCommand(11, dict(pull)), "reader-account"))
    assert refusal(server.gate(), signed(RemotingCommand(15, dict(pull)), "shop-account"))
    others = {**pull, "consumerGroup": "others"}
    assert refusal(server.gate(), signed(RemotingCommand(11, others), "shop-account"))
    counted = {(x.account, x.group, x.code): x.count for x in server.guard.refusals.all()}
    assert counted == {
        ("shop-account", "shop", 11): 3,
        ("reader-account", "shop", 11): 1,
        ("shop-account", "shop", 15): 1,
        ("shop-account", "others", 11): 1,
    }


def test_failed_signatures_and_forbidden_addresses_are_counted_by_group_and_code() -> None:
    """A consumer with an old secret is what an operator looks for."""
    server = Server()
    pull = RemotingCommand(11, {"topic": "Orders", "consumerGroup": "shop"})
    assert refusal(server.gate(), pull) == "No accessKey is configured"
    assert refusal(server.gate(), signed(pull, "shop-account", "another-secret"))
    assert refusal(server.gate(), signed(pull, "tls-account", "secret-tls"))
    wrong = signed(send_command(topic="Orders"), "shop-account", "another-secret")
    assert send_refusal(server.gate(), wrong)
    found = [(each.account, each.code) for each in server.guard.refusals.of_group("shop")]
    assert found == [("", 11), ("shop-account", 11), ("tls-account", 11)]
    (send,) = server.guard.refusals.of_group(send_of(wrong).shape.producer_group)
    assert (send.account, send.code, send.count) == ("shop-account", 310, 1)


def test_a_stored_refusal_is_short_whatever_its_group() -> None:
    server, group = Server(), "g" * 900_000
    pull = RemotingCommand(11, {"topic": "Orders", "consumerGroup": group})
    with capture_logs() as logs:
        assert refusal(server.gate(), signed(pull, "shop-account"))
    (found,) = server.guard.refusals.all()
    assert len(found.group) == len(found.remark) == TEXT_CHARS_MAX
    assert all(len(repr(line)) < 2000 for line in logs)


def test_traces_need_no_permission_but_are_limited() -> None:
    server = Server()
    gate, size = server.gate(), TRACE_BYTES_PER_SECOND // 4
    trace = send_of(
        signed(send_command(b"x" * size, topic="RMQ_SYS_TRACE_TOPIC"), "nothing-account")
    )
    for _ in range(4):
        check_send(gate, trace)
    with pytest.raises(
        AccessRefused, match="Trace rate limit reached for topic:RMQ_SYS_TRACE_TOPIC"
    ):
        check_send(gate, trace)
    server.now_ms += 1000
    check_send(gate, trace)
