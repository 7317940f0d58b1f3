"""Holes of 4.9.7 around keys, files and names: each test has the hole's number.

The numbers and what 4.9.7 does: docs/security.md.
"""

import hmac
import json
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from socket import create_connection, socket

import pytest
from structlog.testing import capture_logs

from actors.access import access_state as guard_module
from actors.access.authorizer import Authorizer, TooManyFailures
from actors.access.grant import AccessRefused
from actors.access.refusals import TRIES_MAX
from actors.config import NamesrvConfig
from protocol import signature as signature_module
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, encode
from protocol.stream import CommandStream
from storage.access.acl_file import AclFileError
from storage.access.acl_yaml import parse_acl_file
from tests.support.brokers import send_command
from tests.support.guarded import (
    ACCOUNTS,
    SECRETS,
    STRANGE_HOST,
    WHITE_HOST,
    GuardedBroker,
    signed,
    with_accounts,
    write_accounts,
)
from troupemq.servers import Servers

WHITE_OF_ADMIN = "whiteRemoteAddress: 192.0.2.9"


def test_h8_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown key takes the code path of a wrong secret."""
    made = GuardedBroker(1)
    compared: list[tuple[int, int]] = []

    def compare(ours: bytes, theirs: bytes) -> bool:
        compared.append((len(ours), len(theirs)))
        return hmac.compare_digest(ours, theirs)

    monkeypatch.setattr(signature_module, "compare_digest", compare)
    for account, secret in (("shop-account", "another-secret"), ("stranger-key", "any-secret")):
        command = signed(RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "Orders"}), account, secret)
        assert made.client.request(command).code == 1
    assert compared == [(28, 28), (28, 28)]


def test_h11_only_the_client_that_was_asked_can_answer() -> None:
    made = GuardedBroker(1)
    asked, other = made.client_at("192.0.2.20"), made.client_at("192.0.2.21")
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"shop","subscriptionDataSet":[]}]}'
    command = RemotingCommand(Code.HEART_BEAT, body=beat, version=407)
    assert asked.request(signed(command, "shop-account")).code == 0
    answers: list[RemotingCommand] = []
    fields = {"consumerGroup": "shop", "clientId": "c"}
    question = RemotingCommand(Code.GET_CONSUMER_RUNNING_INFO, fields)
    made.client.start(signed(question, "administrator"), answers.append)
    made.system.drain()
    (passed_on,) = [each for each in asked.received if each.code == 307]
    other.reply(passed_on.answer(body=b"forged"))
    made.system.drain()
    assert answers == []
    asked.reply(passed_on.answer(body=b"its own"))
    made.system.drain()
    assert [each.body for each in answers] == [b"its own"]


def test_h12_no_secret_and_no_signature_is_logged() -> None:
    with capture_logs() as lines:
        made = GuardedBroker(1)
        account = {"accessKey": "new-account", "secretKey": "secret-of-new", "admin": "false"}
        made.ask(RemotingCommand(Code.UPDATE_AND_CREATE_ACL_CONFIG, account))
        made.ask(RemotingCommand(Code.UPDATE_AND_CREATE_ACL_CONFIG, account | {"topicPerms": "x"}))
        wrong = signed(send_command(topic="Orders"), "shop-account", "another-secret")
        made.client.request(wrong)
        write_accounts(made.disk, ACCOUNTS + "- {accessKey: broken1, secretKey: s3cr}\n")
        made.system.advance(6000)
        made.stop()
    text = json.dumps([*map(str, lines)])
    assert len(lines) > 10 and "new-account" in text
    signature = (wrong.fields or {})["Signature"]
    for secret in (*SECRETS.values(), "secret-of-new", "s3cr", "another-secret", signature):
        assert secret not in text


@pytest.fixture
def line(tmp_path: Path) -> Iterator[socket]:
    """A connection to a name server with access control."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    made = Servers(pytest.fail)
    config = NamesrvConfig(
        listen_port=0,
        kv_config_path=str(tmp_path / "kv.json"),
        acl_enable=True,
        acl_file=str(path),
    )
    made.start_namesrv(config)
    with create_connection(("127.0.0.1", made.ports["namesrv"]), 20) as opened:
        yield opened
    assert made.stop(20)


def test_h13_too_many_wrong_signatures_close_the_connection(line: socket) -> None:
    command = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"})
    frame = encode(signed(command, "shop-account", "another-secret"))
    line.sendall(frame * (TRIES_MAX + 1))
    frames, answers = CommandStream(), 0
    while data := line.recv(65_536):
        answers += len([*frames.receive(data)])
    assert answers <= TRIES_MAX


def test_h13_a_verified_account_does_not_allow_guesses_at_another() -> None:
    made = GuardedBroker(1)
    guard = made.broker.guard
    assert guard is not None
    own = signed(RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "Orders"}), "shop-account")

    def proven() -> Authorizer:
        gate = Authorizer(guard, STRANGE_HOST)
        assert gate.grant(own).account.access_key == "shop-account"
        return gate

    def guess(gate: Authorizer, account: str, secret: str | None) -> None:
        gate.grant(signed(RemotingCommand(Code.GET_BROKER_CLUSTER_ACL_CONFIG), account, secret))

    before, answered = proven(), 0
    for number in range(3 * TRIES_MAX):
        account = ("administrator", f"unknown-{number}")[number % 2]
        with pytest.raises(AccessRefused) as refused:
            guess(proven(), account, f"secret-{number}")
        answered += not isinstance(refused.value, TooManyFailures)
    assert answered == 2 * TRIES_MAX, "20 of the administrator, 20 of unknown accounts"
    with pytest.raises(TooManyFailures):
        guess(proven(), "administrator", None)
    assert before.grant(own), "who is right goes on"


@pytest.mark.parametrize("host", [WHITE_HOST, "192.0.2.9"], ids=["global", "of the account"])
def test_h13_an_allowlisted_address_cannot_guess_secrets(host: str) -> None:
    """Requests that need no key are still served, with any key shown."""
    made = with_accounts(1, ACCOUNTS.replace("admin: true", f"admin: true, {WHITE_OF_ADMIN}"))
    guard = made.broker.guard
    assert guard is not None
    show = Code.GET_BROKER_CLUSTER_ACL_CONFIG
    gate = Authorizer(guard, host)
    with pytest.raises(TooManyFailures):
        for number in range(TRIES_MAX + 1):
            with suppress(AccessRefused) if number < TRIES_MAX else nullcontext():
                gate.grant(signed(RemotingCommand(show), "administrator", f"guess-{number}"))
    with pytest.raises(TooManyFailures):
        Authorizer(guard, host).grant(signed(RemotingCommand(show), "administrator"))
    told = [each for each in guard.refusals.all() if each.account == "administrator"]
    assert [(each.code, each.count) for each in told] == [(show, TRIES_MAX + 1)]
    looked = RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "Orders"})
    grant = Authorizer(guard, host).grant(signed(looked, "administrator", "another"))
    assert grant.is_white and not grant.is_admin


def test_h18_an_acl_file_creates_no_objects() -> None:
    for text in (
        b"accounts: !!python/object/apply:os.system [id]",
        b"accounts: !!javax.script.ScriptEngineManager []",
        b"a: &a [x]\nb: [*a, *a]",
    ):
        with pytest.raises(AclFileError, match="are not supported"):
            parse_acl_file("plain_acl.yml", text)


@pytest.mark.parametrize("topic", ["../../x", "a/b", "nul\0", "x" * 128, "%RETRY%../x"])
def test_h19_no_name_is_a_path_for_any_sender(topic: str) -> None:
    made = GuardedBroker(1)
    before = made.broker.store.commit_log.end_offset
    assert made.ask_as("administrator", send_command(topic=topic)).code != 0
    assert made.broker.store.commit_log.end_offset == before


@pytest.mark.parametrize("part", ["body", "properties"])
def test_h20_traces_need_no_permission_and_have_a_limit(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "TRACE_BYTES_PER_SECOND", 20_000)
    made = with_accounts(1, ACCOUNTS, {"trace_topic_enable": True})
    topic = "RMQ_SYS_TRACE_TOPIC"
    trace = send_command(b"x" * 15_000, topic=topic)
    if part == "properties":
        trace = send_command(b"x", topic=topic, properties="k\x01" + "v" * 15_000)
    codes = [made.ask_as("nothing-account", trace).code for _ in range(3)]
    assert codes == [0, 0, 1]
    made.system.advance(1000)
    codes = [made.ask_as("nothing-account", trace).code for _ in range(2)]
    assert codes == [0, 1], "what was too much is missing from the next second"
    made.system.advance(3_600_000)
    codes = [made.ask_as("nothing-account", trace).code for _ in range(3)]
    assert codes == [0, 0, 1], "an hour without traces saves nothing up"


def test_h20_traces_go_to_the_clients_trace_topic() -> None:
    made = with_accounts(1, ACCOUNTS, {"trace_topic_enable": True, "trace_topic_name": "Payroll"})
    assert made.ask_as("nothing-account", send_command(topic="Payroll")).code == 1


def test_h21_brokers_with_different_accounts_can_be_distinguished() -> None:
    """The command: tests/troupemq/client/test_credentials.py."""
    first = GuardedBroker(1)
    second = with_accounts(1, ACCOUNTS.replace("readers=SUB", "readers=PUB"))
    shown = [
        made.ask(RemotingCommand(Code.GET_BROKER_CLUSTER_ACL_INFO)).fields or {}
        for made in (first, second)
    ]
    assert shown[0]["version"] == shown[1]["version"]
    assert shown[0]["aclFingerprints"] != shown[1]["aclFingerprints"]
    for made in (first, second):
        made.stop()
