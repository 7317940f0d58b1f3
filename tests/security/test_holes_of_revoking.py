"""Revoked accounts, secrets and permissions, and files that two processes change at once.

Each test has the number of the hole (docs/security.md); tests without a number are of holes that
4.9.7 does not have.
"""

from multiprocessing import get_context
from pathlib import Path

import pytest

from actors.access.acl_store import AclStore, ChangeRefused
from actors.access.authorizer import Authorizer
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.ha import encode_report
from protocol.headers.admin import CreateAccessConfigHeader
from storage.files.disk import RealDisk
from tests.security.test_attempts_on_replication import Slave, slaves
from tests.security.test_holes_of_requests import NEED_ADMIN
from tests.support.brokers import pull_command, send_command
from tests.support.guarded import (
    ACCOUNTS,
    ACL_PATH,
    SLAVE_HOST,
    STRANGE_HOST,
    GuardedBroker,
    signed,
    with_accounts,
    write_accounts,
)
from tests.support.sockets import paired_lines

__all__ = ["slaves"]

EVIL = "- {accessKey: evil-admin, secretKey: nobody-knows, admin: true}\n"
LOOK_MS = 5000


def change(name: str, secret: str | None = None, **more: object) -> RemotingCommand:
    header = CreateAccessConfigHeader(name, secret, **more)  # type: ignore[arg-type]
    return RemotingCommand(Code.UPDATE_AND_CREATE_ACL_CONFIG, header.encode())


def test_h2_a_former_administrator_cannot_restore_its_rights() -> None:
    """Neither taken out by hand, before the files are looked at, nor by another's request."""
    made = with_accounts(1, ACCOUNTS + EVIL)
    again = change("evil-admin", "nobody-knows", admin=True)
    write_accounts(made.disk, ACCOUNTS)
    answer = made.ask_as("evil-admin", again)
    assert answer.code == 1 and (answer.remark or "").startswith(NEED_ADMIN)
    assert b"evil" not in made.disk.read_bytes(ACL_PATH)
    write_accounts(made.disk, ACCOUNTS + EVIL)
    made.system.advance(LOOK_MS)
    answers: list[RemotingCommand] = []
    deletion = RemotingCommand(Code.DELETE_ACL_CONFIG, {"accessKey": "evil-admin"})
    made.client_at("192.0.2.50").start(signed(deletion, "administrator"), answers.append)
    made.client_at("192.0.2.51").start(signed(again, "evil-admin"), answers.append)
    made.system.drain()
    if [each.code for each in answers] == [0, 0]:  # the request came before the revocation
        assert made.ask(signed(deletion, "administrator")).code in (0, 210)
    else:
        assert sorted(each.code for each in answers) == [0, 1]
    assert made.ask_as("evil-admin", again).code == 1


@pytest.mark.parametrize(
    ("text", "code", "begin"),
    [
        ("", 209, "The access control files are unchanged"),
        ("\n".join(ACCOUNTS.splitlines()[:2]), 1, NEED_ADMIN),
    ],
)
def test_h2_a_partly_written_file_is_not_the_base_of_a_change(
    text: str, code: int, begin: str
) -> None:
    made = GuardedBroker(1)
    write_accounts(made.disk, text)
    answer = made.ask(change("new-account", "secret-of-it"))
    assert answer.code == code and (answer.remark or "").startswith(begin)
    assert made.disk.read_bytes(ACL_PATH) == text.encode()


def test_h2_an_invalid_file_is_not_overwritten() -> None:
    made = GuardedBroker(1)
    text = ACCOUNTS + "- {accessKey: half-account"
    write_accounts(made.disk, text)
    answer = made.ask(change("new-account", "secret-of-it"))
    assert answer.code == 209 and "are unchanged" in (answer.remark or "")
    assert made.disk.read_bytes(ACL_PATH) == text.encode()


def test_h7_the_old_secret_stays_valid_after_a_repeated_request() -> None:
    """The request is repeated after a timeout, or masters on one machine share one file."""
    made = GuardedBroker(1)
    for _ in range(2):
        assert made.ask(change("shop-account", "secret-two", keep_previous_secret=True)).code == 0
    for secret in ("secret-two", "secret-shop"):
        command = signed(send_command(topic="Orders"), "shop-account", secret)
        assert made.client.request(command).code == 0


def store_of(path: str) -> AclStore:
    store = AclStore(RealDisk(), path, lambda: 1, takes_samples=False)
    store.load()
    return store


def make_accounts(path: str, name: str) -> None:
    """In a process of its own."""
    store = store_of(path)
    for number in range(20):
        header = CreateAccessConfigHeader(f"{name}-account-{number}", "secret-of-it")
        with store.changing():
            store.update_account(header, keeps_previous=False)


@pytest.mark.slow
def test_two_brokers_that_change_one_file_lose_nothing(tmp_path: Path) -> None:
    """Masters on one machine have one file. Changes were lost, and half of it was read."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    context = get_context("spawn")
    both = [context.Process(target=make_accounts, args=(str(path), name)) for name in "ab"]
    for each in both:
        each.start()
    for each in both:
        each.join(60)
    assert [each.exitcode for each in both] == [0, 0]
    names = store_of(str(path)).published.value.accounts
    assert {f"{name}-account-{number}" for name in "ab" for number in range(20)} <= set(names)
    assert "administrator" in names


def test_an_account_deleted_by_another_broker_is_deleted(tmp_path: Path) -> None:
    """mqadmin asks every broker; all but the first of one file said 210."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    first, second = store_of(str(path)), store_of(str(path))
    for store in (first, second):
        with store.changing():
            store.delete_account("nothing-account")
    with second.changing(), pytest.raises(ChangeRefused, match="has been deleted failed"):
        second.delete_account("nothing-account")
    assert path.with_name("plain_acl.yml.lock").stat().st_mode & 0o777 == 0o600


def test_h16_a_slave_is_disconnected_when_its_account_is_deleted(slaves: list[Slave]) -> None:
    made = GuardedBroker(1)
    made.make_topic()
    tables = RemotingCommand(Code.GET_ALL_TOPIC_CONFIG)
    assert made.ask_as("broker-account", tables, host=SLAVE_HOST).code == 0
    slaves.append(Slave(made, SLAVE_HOST))
    slaves[0].say(encode_report(0))
    for _ in range(61):
        made.system.advance(10_000)
        slaves[0].say(encode_report(0))
    assert slaves[0].is_open, "though its account has asked nothing for ten minutes"
    write_accounts(made.disk, ACCOUNTS.replace("broker: true", "broker: false"))
    made.system.advance(LOOK_MS + 1000)
    assert not slaves[0].is_open
    slaves.append(Slave(made, SLAVE_HOST))
    assert not slaves[1].is_open, "and it does not come in again"


@pytest.mark.parametrize(
    "change_of",
    [
        ("secret-shop", "secret-new"),
        ("secretKey: secret-shop", "secretKey: secret-shop, requireTls: true"),
        ("secretKey: secret-shop", "secretKey: secret-shop, allowedRemoteAddresses: [10.0.0.1]"),
        ("- {accessKey: shop-account", "- {accessKey: another-account"),
    ],
    ids=["secret", "tls", "address", "account"],
)
def test_a_held_pull_gets_nothing_after_its_account_is_refused(
    change_of: tuple[str, str],
) -> None:
    for changed, expected in ((False, 0), (True, 1)):
        made = GuardedBroker(1)
        made.make_topic("Orders")
        made.make_group("shop")
        answers: list[RemotingCommand] = []
        pull = pull_command(topic="Orders", consumer_group="shop", hold_ms=60_000)
        made.client_at(STRANGE_HOST).start(signed(pull, "shop-account"), answers.append)
        made.system.advance(100)
        assert answers == []
        if changed:
            write_accounts(made.disk, ACCOUNTS.replace(*change_of))
        made.system.advance(LOOK_MS)
        made.send(b"secret", topic="Orders", queue_id=0)
        made.system.advance(1000)
        assert [each.code for each in answers] == [expected]
        made.stop()


def test_a_rotated_secret_stays_valid() -> None:
    made = GuardedBroker(1)
    assert made.broker.guard is not None
    gate = Authorizer(made.broker.guard, STRANGE_HOST)
    asked = signed(RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "Orders"}), "shop-account")
    grant = gate.grant(asked)
    kept = "secretKey: secret-new, previousSecretKey: secret-shop"
    write_accounts(made.disk, ACCOUNTS.replace("secretKey: secret-shop", kept))
    made.system.advance(LOOK_MS)
    assert grant.current() is not grant and grant.current().may_use_topic("Orders", 4)
    write_accounts(made.disk, ACCOUNTS.replace("secret-shop", "secret-new"))
    made.system.advance(LOOK_MS)
    assert not grant.current().may_use_topic("Orders", 4)


def test_a_send_with_a_cached_head_is_still_checked() -> None:
    made = GuardedBroker(1)
    with paired_lines(made, 1, STRANGE_HOST) as (line,):

        def codes(secret: str | None = None) -> list[int]:
            line.send(signed(send_command(topic="Orders"), "shop-account", secret))
            return [each.code for each in line.receive_now()]

        assert [codes() for _ in range(3)] == [[0]] * 3
        assert codes("another-secret") == [1] and codes() == [0]
        write_accounts(made.disk, ACCOUNTS.replace("Orders=PUB|SUB", "Orders=DENY"))
        made.system.advance(LOOK_MS)
        assert codes() == [1]
