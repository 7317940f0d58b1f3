"""Tests of actors/sending/half_owner.py: the property with the owner of a half message."""

from actors.sending.half_owner import with_owner, without_owner
from protocol.command import RemotingCommand
from protocol.send_wire import send_of
from protocol.sink import owner_of
from tests.support.brokers import send_command
from tests.support.guarded import signed

TEXT = b"TRAN_MSG\x01true\x02PGROUP\x01p"


def sent(command: RemotingCommand) -> bytes:
    return with_owner(TEXT, send_of(command))


def test_the_account_that_signed_a_send_is_the_owner() -> None:
    owner = owner_of("shop-account").encode()
    text = sent(signed(send_command(b"b"), "shop-account"))
    assert text == TEXT + b"\x02TROUPE_OWNER\x01" + owner
    assert without_owner(text) == TEXT


def test_a_send_without_an_account_has_no_owner() -> None:
    assert sent(send_command(b"b")) == TEXT


def test_no_sender_names_the_owner() -> None:
    forged = b"TROUPE_OWNER\x01mine\x02" + TEXT + b"\x02TROUPE_OWNER\x01mine"
    text = with_owner(forged, send_of(signed(send_command(b"b"), "shop-account")))
    assert text.count(b"TROUPE_OWNER") == 1 and b"mine" not in text


def test_similar_names_and_values_are_kept() -> None:
    text = b"a\x01TROUPE_OWNER\x02TROUPE_OWNERS\x01b"
    assert without_owner(text) == text
