"""Attempts with a recorded signature, and with invalid ones, A31 and A32.

Most are made with accounts that require no fresh signatures: that is 4.9.7's signature.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import thread_time
from typing import Any

import pytest
from structlog.testing import capture_logs

from protocol.codes import RequestCode as Code
from protocol.codes import SerializeType
from protocol.frame import RemotingCommand
from protocol.signature import SecretKey, signed_values
from tests.support.brokers import send_command
from tests.support.guarded import (
    ACCOUNTS,
    SECRETS,
    STRANGE_HOST,
    GuardedBroker,
    signed,
    with_accounts,
)
from tests.support.sockets import paired_lines
from tests.support.told import refused


def test_a32_a_signature_is_invalid_for_another_body() -> None:
    """The seal is for what 4.9.7's signature lacks."""
    made = GuardedBroker(1)
    command = signed(send_command(b"one", topic="Orders"), "shop-account")
    assert made.client.request(replace(command)).code == 0
    assert made.client.request(replace(command, body=b"two")).code == 1


SEARCH = RemotingCommand(
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
    {"queueId": "1", "timestamp": "1700000000000", "topic": "Orders"},
)
ENDS = RemotingCommand(Code.GET_MAX_OFFSET, {"queueId": "0", "topic": "Orders"})
FRESH: dict[str, tuple[RemotingCommand, int | None, Mapping[str, str | None], bytes | None]] = {
    # what is signed, what becomes of it, and its fields then
    "another code": (ENDS, Code.GET_MIN_OFFSET, {}, None),
    "a send that is a batch": (send_command(b"", topic="Orders"), 320, {}, None),
    "bytes of a neighbour": (
        SEARCH,
        None,
        {"queueId": "11", "timestamp": "700000000000"},
        None,
    ),
    "bytes of a neighbour of a send": (
        send_command(topic="Orders", queue_id=10),
        None,
        {"e": "1", "f": "00"},
        None,
    ),
    "the end of a field in the body": (
        send_command(b"ody", topic="Orders", broker_name="broker-ab"),
        None,
        {"n": "broker-a"},
        b"body",
    ),
    "the beginning of the body in a field": (
        send_command(b"abody", topic="Orders", broker_name="broker-"),
        None,
        {"n": "broker-a"},
        b"body",
    ),
    "a field by another name": (ENDS, None, {"queueId": None, "queueName": "0"}, None),
    "a field that is gone, its value before another's": (
        SEARCH,
        None,
        {"queueId": None, "timestamp": "11700000000000"},
        None,
    ),
    "a field more": (SEARCH, None, {"timestamp": "170000000000", "timestampX": "0"}, None),
}


@pytest.mark.parametrize("kind", SerializeType, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", FRESH)
def test_a32_a_fresh_signature_is_valid_for_one_request(name: str, kind: SerializeType) -> None:
    """Without that it is for each that has the same values one behind the other, as in 4.9.7."""
    command, code, fields, body = FRESH[name]
    text = ACCOUNTS.replace("secret-shop,", "secret-shop, aclMaxAgeSeconds: 30,", 1)
    for accounts, is_taken in ((ACCOUNTS, True), (text, False)):
        made = with_accounts(1, accounts)
        now_ms = made.clock.now_ms()
        own = replace(command, fields=dict(command.fields or {}), serialize_type=kind)
        signed(own, "shop-account", now_ms=now_ms)
        stolen = replace(own, code=own.code if code is None else code)
        changed = {**(own.fields or {}), **fields}
        stolen.fields = {key: value for key, value in changed.items() if value is not None}
        stolen.body = own.body if body is None else body
        with paired_lines(made, 1, STRANGE_HOST) as (line,), capture_logs() as logs:
            line.send(own)
            line.send(stolen)
            right, wrong = sorted(line.receive_now(), key=lambda answer: answer.opaque)
            remark = wrong.remark or ""
            failed = "Check signature failed for accessKey=shop-account"
            assert "accessKey=" not in (right.remark or "")
            assert ("accessKey=" not in remark) == is_taken
            assert is_taken or (wrong.code == 1 and remark.endswith(failed))
        assert sum(refused(logs).values()) == (0 if is_taken else 1)


def test_a32_a_timestamp_without_a_seal_is_refused() -> None:
    """Such requests come from an older client of ours, or from an attacker that strips the seal."""
    made = with_accounts(1, ACCOUNTS.replace("secret-shop,", "secret-shop, aclMaxAgeSeconds: 30,"))
    for command in (send_command(topic="Orders"), replace(ENDS)):
        own = command.fields or {}
        shown = {"AccessKey": "shop-account", "Timestamp": str(made.clock.now_ms())}
        content = signed_values({**own, **shown})
        signature = SecretKey(SECRETS["shop-account"]).sign(content, command.body).decode()
        command.fields = {**own, "Signature": signature, **shown}
        answer = made.client.request(command)
        text = "Check signature failed for accessKey=shop-account"
        assert answer.code == 1 and (answer.remark or "").endswith(text)


@pytest.mark.parametrize("kind", SerializeType, ids=lambda kind: kind.name)
def test_a52_an_administrators_seal_is_invalid_for_a_send(kind: SerializeType) -> None:
    """Not even on a connection that sends so all the time and is known by its shape: the seal
    stands where an account lent by a cloud has its token."""
    made = with_accounts(1, ACCOUNTS)
    secret = SecretKey(SECRETS["administrator"])
    own = send_command(b"", topic="Orders").fields or {}

    def sent(token: str, signature: str | None = None) -> RemotingCommand:
        fields = {**own, "AccessKey": "administrator", "SecurityToken": token}
        content = signed_values(fields)
        made_one = secret.sign(content, b"").decode()
        assert signature in (None, made_one)
        fields["Signature"] = made_one
        return RemotingCommand(310, dict(fields), b"", serialize_type=kind)

    run = signed_values(own).decode()
    heard = signed(
        RemotingCommand(Code.CANCEL_JOB, {"run": run}),
        "administrator",
        now_ms=made.clock.now_ms(),
    )
    shown = heard.fields or {}
    stolen = sent(shown["Seal"] + shown["Timestamp"], shown["Signature"])
    with paired_lines(made, 1, STRANGE_HOST) as (line,):
        for _ in range(4):
            line.send(sent("lent"))
            (answer,) = line.receive_now()
            assert answer.code == 0
        line.send(stolen)
        (answer,) = line.receive_now()
        assert (answer.remark or "").endswith("Check signature failed for accessKey=administrator")


# --- A31: what a wrong one costs

VERIFY_S = 25e-6
"""8 µs on a machine that is busy; three times that is for one that is busier."""


def test_a31_a_signature_is_verified_in_microseconds() -> None:
    """The least of 20 turns, of processor time."""
    command = signed(send_command(bytes(100), topic="Orders"), "shop-account", "another-secret")
    fields = command.fields or {}
    secret, signature = SecretKey(SECRETS["shop-account"]), fields["Signature"].encode()

    def turn() -> float:
        began_s = thread_time()
        for _ in range(500):
            assert not secret.has_signed(signature, signed_values(fields), command.body)
        return (thread_time() - began_s) / 500

    assert min(turn() for _ in range(20)) <= VERIFY_S


def test_a31_a_wrong_key_takes_the_code_path_of_a_wrong_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = GuardedBroker(1)
    looked_at = []
    plain = SecretKey.has_signed

    def counted(secret: SecretKey, *arguments: Any) -> bool:
        looked_at.append(arguments[1:])
        return plain(secret, *arguments)

    monkeypatch.setattr(SecretKey, "has_signed", counted)
    for account in ("shop-account", "nobody-account"):
        wrong = signed(send_command(b"body", topic="Orders"), account, "another-secret")
        assert made.client_at(STRANGE_HOST).request(wrong).code == 1
    (first, second) = looked_at
    assert first[1:] == second[1:] == (b"body",), "both are computed, over all of it"
