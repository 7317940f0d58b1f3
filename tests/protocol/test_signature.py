"""Signatures: the recorded ones of the official clients, one made by hand, and what they cover."""

from binascii import b2a_base64
from collections.abc import Iterator
from dataclasses import fields, replace
from hmac import digest
from random import Random
from re import compile as compile_pattern
from typing import Any

import pytest

from protocol.codes import RequestCode, SerializeType
from protocol.frame import RemotingCommand, decode_frame, encode
from protocol.headers.send import SendMessageHeader
from protocol.send_values import Send, send_of
from protocol.send_wire import SendDecoder
from protocol.signature import SEAL, TIMESTAMP, Credentials, SecretKey, signed_values, was_sealed
from tests.protocol.test_send_wire import said
from tests.support import golden
from tests.support.headers_by_code import REQUEST_HEADERS
from tests.support.signing import java_signed

SECRET = "12345678"
BASE64 = compile_pattern(rb"[A-Za-z0-9+/]{27}=")
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


def test_signed_values_are_joined_in_javas_order_without_separators() -> None:
    """Upper case before the underscore, that before lower case."""
    assert signed_values(BY_HAND.fields or {}) == b"account1upperunderGroupTopic"


def test_names_beyond_ascii_are_ordered_by_utf_16() -> None:
    """Java compares halves of characters: U+1F600 (D83D DE00) comes before U+FB01."""
    assert signed_values({"\ufb01": "second", "\U0001f600": "first"}) == b"firstsecond"


def test_a_signature_equals_one_computed_by_hand() -> None:
    """Computed by `openssl dgst -sha1 -hmac secret12 -binary | base64`."""
    values = signed_values(BY_HAND.fields or {})
    assert SecretKey("secret12").sign(values, b"body") == b"xzLtrpZ9oGOVyKFUguC6m2F3NpU="
    assert SecretKey("secret12").has_signed(b"xzLtrpZ9oGOVyKFUguC6m2F3NpU=", values, b"body")
    assert not SecretKey("secret13").has_signed(b"xzLtrpZ9oGOVyKFUguC6m2F3NpU=", values, b"body")
    assert not SecretKey("secret12").has_signed(b"", values, b"body")


@pytest.mark.parametrize("size", [(256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1 << 20])
def test_a_long_body_is_signed_as_a_short_one_is(size: int) -> None:
    body = Random(size).randbytes(size)
    wanted = b2a_base64(digest(b"secret12", b"values" + body, "sha1"), newline=False)
    for each in (body, memoryview(body), bytearray(body)):
        assert SecretKey("secret12").sign(b"values", each) == wanted


def test_a_secret_longer_than_a_block_is_hashed_first() -> None:
    assert SecretKey("k" * 100).sign(b"x", None) == b"8PBu3EWgaXhVx2bdkaI19Emqo4Q="


def test_every_recorded_signature_equals_ours() -> None:
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


KINDS = [SerializeType.JSON, SerializeType.ROCKETMQ]
ACCOUNT = Credentials("account1", SECRET)


def is_signed(send: Send | None) -> bool:
    return send is not None and send.signature is not None


def fast(decoder: SendDecoder, frame: bytes) -> Send | None:
    """Decode as a connection does, with another frame behind in the buffer."""
    decode = decoder.binary if frame[4] == SerializeType.ROCKETMQ else decoder.json
    return decode(frame + frame, 8, 8 + int.from_bytes(frame[5:8]), len(frame))


def signed_frame(
    kind: SerializeType, account: Credentials = ACCOUNT, body: bytes = b"body", **changes: Any
) -> bytes:
    """Return the frame that the Java client writes."""
    values = {
        "producer_group": "group",
        "topic": "Topic",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 3,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "KEYS\x01k\x02WAIT\x01true",
        "reconsume_times": 0,
        **changes,
    }
    fields = SendMessageHeader(**values).encode_v2()
    return java_signed(
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body, serialize_type=kind), account
    )


def various(kind: SerializeType, random: Random) -> Iterator[bytes]:
    """Sends of some producers with two accounts, in any order."""
    accounts = [ACCOUNT, Credentials("another-account", "87654321")]
    accounts.append(Credentials("account1", SECRET, "lent"))
    for number in range(300):
        yield signed_frame(
            kind,
            random.choice(accounts),
            b"x" * random.randrange(200),
            topic=f"Topic{random.randrange(3)}",
            queue_id=random.choice((3, 9, 10, 1000, -1)),
            sys_flag=random.choice((0, 0, 1, 16)),
            flag=random.choice((0, 0, 123)),
            born_timestamp=1_700_000_000_000 + number,
            properties="TAGS\x01" + "t" * random.randrange(40),
            reconsume_times=random.choice((0, 0, 0, 3)),
        )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_signed_sends_of_all_kinds_are_decoded_fast_one_after_the_other(
    kind: SerializeType,
) -> None:
    decoder, taken = SendDecoder(), 0
    for frame in various(kind, Random(7)):
        send, general = fast(decoder, frame), send_of(decode_frame(frame[4:]))
        signed = general.signature
        assert signed is not None
        secret = SECRET if signed.access_key == "account1" else "87654321"
        assert SecretKey(secret).has_signed(signed.signature, signed.values, general.body)
        if send is not None:
            taken += 1
            assert said(send) == said(general)
    assert taken == 300


def test_a_binary_send_with_contradictory_fields_is_left_to_the_general_decoder() -> None:
    frame = signed_frame(SerializeType.ROCKETMQ)
    decoder = SendDecoder()
    assert is_signed(fast(decoder, frame))
    for one, other in ((b"Topic", b"Topix"), (b"KEYS\x01k", b"KEYS\x01z"), (b"\x01e", b"\x01q")):
        assert frame.count(one) == 2
        last = frame.rindex(one)
        for changed in (
            frame.replace(one, other, 1),
            frame[:last] + other + frame[last + len(one) :],
        ):
            assert fast(decoder, changed) is None
            assert fast(SendDecoder(), changed) is None
    assert is_signed(fast(decoder, frame)), "what is usual is still known"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_changed_byte_of_a_signed_send_is_decoded_as_by_the_general_decoder(
    kind: SerializeType,
) -> None:
    frame = signed_frame(kind)
    known = SendDecoder()
    for at in range(8, len(frame) - len(b"body")):
        for value in (0, 0x1C, 0x31, 0x5C, 0x80):
            changed = frame[:at] + bytes((value,)) + frame[at + 1 :]
            assert fast(known, frame) is not None
            for decoder in (known, SendDecoder()):
                send = fast(decoder, changed)
                if send is None:
                    continue
                if send.signature is None or BASE64.fullmatch(send.signature.signature):
                    # any other is wrong, whatever the rest says
                    assert said(send) == said(send_of(decode_frame(changed[4:])))


def test_signed_and_unsigned_sends_of_one_connection_are_both_decoded() -> None:
    plain = RemotingCommand(
        RequestCode.SEND_MESSAGE_V2,
        decode_frame(signed_frame(SerializeType.ROCKETMQ)[4:]).fields,
        b"body",
        serialize_type=SerializeType.ROCKETMQ,
    )
    plain.fields = {name: plain.fields[name] for name in "abcdefghij"} if plain.fields else None
    decoder = SendDecoder()
    for _ in range(2):
        for frame in (encode(plain), signed_frame(SerializeType.ROCKETMQ)):
            send = fast(decoder, frame)
            assert send is not None
            assert said(send) == said(send_of(decode_frame(frame[4:])))


def test_a_signed_send_is_decoded_fast_with_the_same_signed_content() -> None:
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
            assert said(send) == said(general)
            fast += is_signed(send)
    assert fast > 10


@pytest.mark.parametrize("token", [None, "lent"])
def test_our_clients_signatures_are_read_by_both_decoders(token: str | None) -> None:
    fields = {name: "1" for name in "defghj"} | {"a": "Gruppe", "b": "Topic", "c": "TBW102"}
    fields |= {"i": "KEYS\x01k\x02TAGS\x01t", "k": "false", "m": "false", "n": "broker-a"}
    command = RemotingCommand(310, dict(sorted(fields.items())), b"body")
    credentials = Credentials("account1", "secret12", token)
    credentials.sign(command, 1_700_000_000_000)
    credentials.sign(command, 1_700_000_000_001)  # again, as a client that tries again does
    data = encode(command)
    send = SendDecoder().json(data, 8, 8 + int.from_bytes(data[5:8]), len(data))
    assert send is not None
    for each in (send, send_of(decode_frame(data[4:]))):
        signed = each.signature
        assert signed is not None
        assert (signed.access_key, signed.timestamp) == ("account1", "1700000000001")
        assert SecretKey("secret12").has_signed(signed.signature, signed.values, each.body)


# --- seals


def sealed(kind: SerializeType = SerializeType.JSON, **fields: str) -> RemotingCommand:
    """A request of ours as the server reads it."""
    command = RemotingCommand(
        310, {"a": "Gruppe", "b": "Topic", **fields}, b"body", serialize_type=kind
    )
    Credentials("account1", SECRET).sign(command, 1_700_000_000_000)
    return decode_frame(encode(command)[4:])


def is_sealed(command: RemotingCommand, secret: str = SECRET) -> bool:
    return SecretKey(secret).has_sealed(command.code, command.fields or {}, command.body)


def test_a_seal_equals_one_computed_by_hand() -> None:
    """Computed by `openssl dgst -sha256 -hmac 12345678 -binary | base64`."""
    text = b'[310,"1700000000000",4,["AccessKey","Timestamp","a","b","x"],[8,13,6,5,4]]'
    seal = "UsHyX/BwXgSTbOFbiQfj87tP/7sZ9kZ/vuZyV2ppmb0="
    assert b2a_base64(digest(SECRET.encode(), text, "sha256"), newline=False).decode() == seal
    assert (sealed(x="fü\u0001").fields or {})["Seal"] == seal, "a letter may be two bytes"


@pytest.mark.parametrize("token", [None, "lent"])
def test_a_sealed_request_is_identified_by_its_signed_content(token: str | None) -> None:
    """Whatever names its fields have later, for those of a seal come first in all our requests."""
    for code, header in REQUEST_HEADERS.items():
        kinds = ("name", "short")
        names = [each.metadata[kind] for each in fields(header) for kind in kinds]
        command = RemotingCommand(code, dict.fromkeys(names, "1"), b"body")
        Credentials("account1", SECRET, token).sign(command, 1_700_000_000_000)
        own = command.fields or {}
        values = signed_values(own)
        assert was_sealed("account1", values, command.body), code
        assert was_sealed("account1", values[:20], values[20:]), code
        rest = {name: own[name] for name in own if name not in (SEAL, TIMESTAMP)}
        assert not was_sealed("account1", signed_values(rest), command.body), code


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("value", ["", "ü", "\U0001f600", "\ud800", "\x01\x02", "x" * 300])
def test_a_server_finds_the_seal_that_the_client_made(kind: SerializeType, value: str) -> None:
    for command in (sealed(kind, x=value), sealed(kind, **{f"x{value}": value, "\ufb01": "y"})):
        assert is_sealed(command)
        assert not is_sealed(command, "87654321")
        values = signed_values(command.fields or {})
        signature = (command.fields or {})["Signature"].encode()
        assert SecretKey(SECRET).has_signed(signature, values, command.body)


def test_a_seal_is_valid_for_one_code_and_one_split_of_the_values() -> None:
    command = sealed(c="TBW102")
    fields = command.fields or {}
    assert is_sealed(command)
    for changed in (
        {**fields, "a": "GruppeT", "b": "opic"},
        {**fields, "a": "Grupp"},
        {name: fields[name] for name in fields if name != "c"},
        {("d" if name == "c" else name): fields[name] for name in fields},
        {**fields, "d": ""},
        {**fields, "Timestamp": "1700000000001"},
        {**fields, "Seal": ""},
        {**fields, "Seal": "é"},
        {name: fields[name] for name in fields if name != "Seal"},
    ):
        assert not is_sealed(replace(command, fields=changed)), changed
    assert not is_sealed(replace(command, code=320))
    assert not is_sealed(replace(command, body=b"bodybody"))
    assert not is_sealed(replace(command, body=None))
    assert is_sealed(replace(command, fields={**fields, "Signature": "x"})), "made before that"


def test_a_request_signed_again_has_exactly_one_new_seal() -> None:
    command = RemotingCommand(310, {"a": "Gruppe"}, b"body")
    Credentials("another-account", "87654321", "lent").sign(command, 1)
    Credentials("account1", SECRET).sign(command, 2)
    again = RemotingCommand(310, {"a": "Gruppe"}, b"body")
    Credentials("account1", SECRET).sign(again, 2)
    assert command.fields == again.fields
    assert is_sealed(command)


def test_secrets_are_absent_from_the_repr() -> None:
    shown = repr(Credentials("account1", "secret12", "token34"))
    assert "account1" in shown
    assert not any(secret in shown for secret in ("secret12", "token34"))
