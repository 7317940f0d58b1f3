"""Tests of seals of administrators' requests: each is valid for one request and a limited time."""

from dataclasses import replace

from actors.access.authorizer import SEAL_AGE_S_MAX
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.send_values import send_of
from protocol.signature import SIGNATURE, SecretKey, signed_values
from tests.actors.access.test_authorizer import Server, check_send, ends, refusal, send_refusal
from tests.support.brokers import send_command
from tests.support.guarded import SECRETS, signed


def test_a_sealed_request_is_invalid_under_another_code() -> None:
    """The console signed CANCEL_JOB with a run of the asker's choice: values of code 50."""
    server = Server()
    run = "evil-account" + "true" + "evil-secret"
    heard = signed(RemotingCommand(Code.CANCEL_JOB, {"run": run}), "administrator")
    assert server.gate().grant(heard).is_admin
    own = heard.fields or {}
    made = {
        **{name: own[name] for name in ("AccessKey", "Signature")},
        "accessKey": "evil-account",
        "admin": "true",
        "secretKey": "evil-secret",
    }
    text = "Check signature failed for accessKey=administrator"
    for rest in (
        {"B": own["Seal"] + own["Timestamp"]},
        {"B": own["Seal"], "Timestamp": own["Timestamp"]},
        {"Seal": own["Seal"], "Timestamp": own["Timestamp"]},
        {"Seal": "", "SealX": own["Seal"], "Timestamp": own["Timestamp"]},
    ):
        stolen = RemotingCommand(Code.UPDATE_AND_CREATE_ACL_CONFIG, {**made, **rest})
        signature = own["Signature"].encode()
        content = signed_values(stolen.fields or {})
        assert SecretKey(SECRETS["administrator"]).has_signed(signature, content, None)
        assert refusal(server.gate(), stolen) == text


def test_sealed_fields_are_invalid_when_moved_into_the_body() -> None:
    server = Server()
    heard = signed(RemotingCommand(Code.CANCEL_JOB, {"run": "a\nb=c"}), "administrator")
    own = heard.fields or {}
    kept = {name: own[name] for name in ("AccessKey", "Signature")}
    body = (own["Seal"] + own["Timestamp"] + "a\nb=c").encode()
    stolen = RemotingCommand(Code.UPDATE_BROKER_CONFIG, kept, body)
    assert refusal(server.gate(), stolen).startswith("Check signature failed")


def test_official_tools_of_administrators_need_no_seal() -> None:
    server = Server()
    for command in (ends(), RemotingCommand(Code.UPDATE_BROKER_CONFIG, {}, b"a=b")):
        assert server.gate().grant(official(command)).is_admin
    check_send(server.gate(), send_of(official(send_command())))


def test_a_sealed_request_of_an_administrator_is_good_for_a_quarter_of_an_hour() -> None:
    server = Server()
    heard = signed(ends(), "administrator", now_ms=server.now_ms)
    server.now_ms += SEAL_AGE_S_MAX * 1000
    assert server.gate().grant(heard).is_admin
    server.now_ms += 1
    assert "too old" in refusal(server.gate(), heard)
    sent = signed(send_command(), "administrator", now_ms=server.now_ms)
    gate = server.gate()
    check_send(gate, send_of(sent))
    server.now_ms += SEAL_AGE_S_MAX * 1000 + 1
    assert "too old" in send_refusal(gate, sent)


def test_a_broker_or_monitor_seal_is_valid_for_that_request_only() -> None:
    """A broker with a wrong clock must stay registered, however old its request is."""
    server = Server()
    for account in ("broker-account", "monitor-account"):
        heard = signed(RemotingCommand(Code.GET_BROKER_CONFIG, {"x": "1"}), account, now_ms=10**12)
        assert server.gate().grant(heard)
        own = heard.fields or {}
        shown = {name: own[name] for name in ("AccessKey", "Signature", "Timestamp", "x")}
        stolen = RemotingCommand(Code.GET_ALL_DELAY_OFFSET, {**shown, "B": own["Seal"]})
        text = f"Check signature failed for accessKey={account}"
        assert refusal(server.gate(), stolen) == text
        assert refusal(server.gate(), replace(heard, code=Code.GET_ALL_DELAY_OFFSET)) == text


def official(command: RemotingCommand) -> RemotingCommand:
    """Signed as administrator by a client that knows no seal."""
    fields = {**(command.fields or {}), "AccessKey": "administrator"}
    secret = SecretKey(SECRETS["administrator"])
    signature = secret.sign(signed_values(fields), command.body).decode()
    return replace(command, fields={**fields, SIGNATURE: signature})
