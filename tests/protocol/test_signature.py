"""Signatures: the recorded ones of the official clients, one made by hand, and what they cover."""

from dataclasses import astuple

import pytest

from protocol.command import RemotingCommand
from protocol.frame import decode_frame, encode
from protocol.send_tail import SignedTail
from protocol.send_wire import SendDecoder, send_of
from protocol.signature import Credentials, SecretKey, signed_values
from tests.support import golden

SECRET = "12345678"
BY_HAND = RemotingCommand(
    310,
    {
        "b": "Topic",
        "a": "Group",
        "Zz": "upper",
        "_x": "under",
        "AccessKey": "account1",
        "Signature": "leftOut=",
    },
    b"body",
)


def test_values_go_in_javas_order_without_anything_between() -> None:
    """Upper case before the underscore, that before lower case."""
    assert signed_values(BY_HAND.fields or {}) == b"account1upperunderGroupTopic"


def test_names_beyond_ascii_go_by_their_utf_16() -> None:
    """Java compares halves of characters: U+1F600 (D83D DE00) comes before U+FB01."""
    assert signed_values({"\ufb01": "second", "\U0001f600": "first"}) == b"firstsecond"


def test_a_signature_by_hand() -> None:
    """As `openssl dgst -sha1 -hmac secret12 -binary | base64` makes it of these texts."""
    values = signed_values(BY_HAND.fields or {})
    assert SecretKey("secret12").sign(values, b"body") == b"xzLtrpZ9oGOVyKFUguC6m2F3NpU="
    assert SecretKey("secret12").has_signed(b"xzLtrpZ9oGOVyKFUguC6m2F3NpU=", values, b"body")
    assert not SecretKey("secret13").has_signed(b"xzLtrpZ9oGOVyKFUguC6m2F3NpU=", values, b"body")
    assert not SecretKey("secret12").has_signed(b"", values, b"body")


def test_a_secret_longer_than_a_block_is_hashed_first() -> None:
    """The same."""
    assert SecretKey("k" * 100).sign(b"x", None) == b"8PBu3EWgaXhVx2bdkaI19Emqo4Q="


def test_every_recorded_request_has_the_signature_that_we_make() -> None:
    found = {"right": 0, "wrong": 0}
    for frame in golden.frames("acl"):
        if frame["direction"] not in ("request", "oneway") or frame.get("truncated"):
            continue
        command = decode_frame(frame["frame"][4:])
        fields = command.fields or {}
        if "Signature" not in fields:
            continue
        signature, values = fields["Signature"].encode(), signed_values(fields)
        is_right = SecretKey(SECRET).has_signed(signature, values, command.body)
        found["right" if is_right else "wrong"] += 1
        if not is_right:
            assert SecretKey("87654321").has_signed(signature, values, command.body), fields
    assert found["right"] > 50
    assert found["wrong"] > 0


def test_a_signed_send_is_decoded_fast_and_covers_what_the_general_decoder_finds() -> None:
    fast = 0
    for frame in golden.frames("acl"):
        if frame["code"] not in (310, 320) or frame["direction"] == "response":
            continue
        data = frame["frame"]
        general = send_of(decode_frame(data[4:]))
        header_end = 8 + int.from_bytes(data[5:8])
        for _ in range(2):  # learnt, and known
            send = SendDecoder().json(data, 8, header_end, len(data))
            if send is None:
                continue
            tail, expected = send.tail, general.tail
            assert isinstance(tail, SignedTail) is isinstance(expected, SignedTail)
            assert astuple(send)[2:] == astuple(general)[2:]
            if isinstance(tail, SignedTail) and isinstance(expected, SignedTail):
                fast += 1
                assert (tail.access_key, tail.signature) == (
                    expected.access_key,
                    expected.signature,
                )
                assert tail.values == expected.values
    assert fast > 10


@pytest.mark.parametrize("token", [None, "lent"])
def test_what_our_client_signs_is_read_by_both_decoders(token: str | None) -> None:
    fields = {name: "1" for name in "defghj"} | {"a": "Gruppe", "b": "Topic", "c": "TBW102"}
    fields |= {"i": "KEYS\x01k\x02TAGS\x01t", "k": "false", "m": "false", "n": "broker-a"}
    command = RemotingCommand(310, dict(sorted(fields.items())), b"body")
    credentials = Credentials("account1", "secret12", token)
    credentials.sign(command, 1_700_000_000_000)
    credentials.sign(command, 1_700_000_000_001)  # again, as a client that tries again does
    data = encode(command)
    send = SendDecoder().json(data, 8, 8 + int.from_bytes(data[5:8]), len(data))
    assert send is not None
    for tail in (send.tail, send_of(decode_frame(data[4:])).tail):
        assert isinstance(tail, SignedTail)
        assert (tail.access_key, tail.timestamp) == ("account1", "1700000000001")
        assert SecretKey("secret12").has_signed(tail.signature, tail.values, send.body)


def test_secrets_are_not_shown() -> None:
    shown = repr(Credentials("account1", "secret12", "token34"))
    assert "account1" in shown
    assert not any(secret in shown for secret in ("secret12", "token34"))
