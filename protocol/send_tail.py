"""The end of a send's header: the fields behind the properties, and whose signature it has.

    ,"j":"0","k":"false","m":"false","n":"broker-a"                 the same from send to send
    ,"SecurityToken":"…"                                            only with such accounts
    ,"Signature":"dhWKtm6bxA/TgQrApw0oNdH+3X0="                     another one every time
    ,"AccessKey":"…"                                                and behind it, from our clients,
    ,"Timestamp":"1795189863439"
    ,"Seal":"…"

That is how Java clients write a signed send in JSON. In a binary header their encoder writes the
fields of a send twice, before it and after it has put them together to be signed:

    a b c d e f g h i j k l m n                                     those that are not missing
    a b c d e f g h i j k l m n  Signature  AccessKey               byte for byte the same; two more

What the signature covers is put together here, where the texts of the fields are at hand; whether
it is right is for others to find out.
"""

from collections.abc import Mapping
from functools import lru_cache
from re import compile as compile_pattern
from struct import Struct
from typing import TypeVar

from protocol.header_json import decode_header
from protocol.header_pattern import INT_DIGITS
from protocol.send_values import SendTail, SignedSend, new_object
from protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, TIMESTAMP, signed_values
from protocol.standard_json import loads as json_loads

Learnt = TypeVar("Learnt")
_LEARNT_MAX = 64
"""How many of each kind one connection keeps."""
_LEARNT_BYTES_MAX = 4096
"""Longer ones are read anew each time: 64 of a MiB each would be too much for a stranger."""

_OWN = frozenset("jklmn")
_KEY = {ACCESS_KEY}
_SIGNATURE_AT = b',"Signature":"'
_SIGNATURE_CHARS = 28
_QUOTE, _BACKSLASH = b'"', b"\\"
_SIGNATURE_ENTRY = b"\x00\x09Signature\x00\x00\x00\x1c"
assert _SIGNATURE_ENTRY[-1] == _SIGNATURE_CHARS
_LAYOUTS_MAX = 1024
"""Properties have few lengths. Another length costs the making of a structure, 3 µs."""
_REST = compile_pattern(
    rb'","AccessKey":"([ !#-\[\]-~]*)"'
    rb'(?:,"Timestamp":"([0-9]{1,18})")?(?:,"SecurityToken":"([ !#-\[\]-~]*)")?'
    rb'(?:,"Seal":"([0-9A-Za-z+/=]*)")?'
)


def signed_by(tail: SendTail, fields: Mapping[str, str]) -> SignedSend | None:
    """Of a send with these ext fields; None if they name no account. The rest of it, as with all
    that is given here, is to be filled in."""
    access_key = fields.get(ACCESS_KEY)
    if access_key is None:
        return None
    signature = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    timestamp = fields.get(TIMESTAMP, "")
    send = _signed((tail, access_key, timestamp), signature, signed_values(fields))
    if timestamp:
        send.header = fields
    return send


def sealed_fields(send: SignedSend) -> Mapping[str, str]:
    """All ext fields of a send that has a timestamp, under the names that they have in it."""
    header = send.header
    return (decode_header(header).fields or {}) if isinstance(header, bytes) else header


def _signed(usual: tuple[SendTail, str, str], signature: bytes, values: bytes) -> SignedSend:
    send = new_object(SignedSend)
    send.tail, send.access_key, send.timestamp = usual
    send.signature, send.values = signature, values
    return send


_NO_TAIL = SendTail(0, False, None, False)


class JsonTails:
    """The signed tails of one connection."""

    __slots__ = (
        "_begin",
        "_begin_size",
        "_behind",
        "_end",
        "_head",
        "_rests",
        "_stable",
        "_usual",
        "seen",
    )

    def __init__(self) -> None:
        self.seen = False
        """Whether one came that was signed: the next will be, too."""
        self._begin, self._end, self._begin_size = b"\xff", b"", 1
        self._usual = _NO_TAIL, "", ""
        self._head, self._behind = b"", b""
        self._stable: dict[bytes, tuple[SendTail, bytes, bytes]] = {}
        self._rests: dict[bytes, tuple[bytes, str, str, bytes]] = {}

    def read(self, tail_bytes: bytes, before: tuple[bytes, ...]) -> SignedSend | None:
        """A tail behind fields with these values; None: one of another form."""
        signature_at = self._begin_size
        end_at = signature_at + _SIGNATURE_CHARS
        if tail_bytes[:signature_at] == self._begin and tail_bytes[end_at:] == self._end:
            signature = tail_bytes[signature_at:end_at]  # as the last one, but for this
            if _QUOTE in signature or _BACKSLASH in signature:
                return None  # its text ends sooner than that
            send = new_object(SignedSend)
            send.tail, send.access_key, send.timestamp = self._usual
            send.signature = signature
            send.values = b"".join((self._head, *before, self._behind))
            return send
        at = tail_bytes.find(_SIGNATURE_AT)
        if at < 0:
            return None
        self.seen = True
        signature_at = at + len(_SIGNATURE_AT)
        rest_at = signature_at + _SIGNATURE_CHARS
        stable = self._stable.get(tail_bytes[:at]) or self._learn(tail_bytes[:at])
        rest = self._rests.get(tail_bytes[rest_at:]) or self._learn_rest(tail_bytes[rest_at:])
        if stable is None or rest is None:
            return None
        tail, token, behind = stable
        head, access_key, timestamp, middle = rest
        if not timestamp:
            self._begin, self._end = tail_bytes[:signature_at], tail_bytes[rest_at:]
            self._begin_size = signature_at
            self._usual = tail, access_key, ""
            self._head, self._behind = head + token + middle, behind
        values = b"".join((head, token, middle, *before, behind))
        signature = tail_bytes[signature_at:rest_at]
        if _QUOTE in signature or _BACKSLASH in signature:
            return None
        return _signed((tail, access_key, timestamp), signature, values)

    def _learn(self, stable: bytes) -> tuple[SendTail, bytes, bytes] | None:
        fields = json_tail(stable) or {}
        token = fields.pop(SECURITY_TOKEN, "")
        tail = tail_of(fields)
        if tail is None or not fields:
            return None
        learnt = (tail, token.encode("utf-8", "replace"), signed_values(fields))
        keep(self._stable, stable, learnt)
        return learnt

    def _learn_rest(self, rest: bytes) -> tuple[bytes, str, str, bytes] | None:
        """The key with its seal, and what is signed behind it: a token here, the time."""
        found = _REST.fullmatch(rest)
        if found is None:
            return None
        access_key, timestamp, token, seal = found.groups(b"")
        if seal and not timestamp:
            return None
        learnt = (access_key + seal, access_key.decode(), timestamp.decode(), token + timestamp)
        if not timestamp:  # else it is another one every time
            keep(self._rests, rest, learnt)
        return learnt


@lru_cache(maxsize=_LAYOUTS_MAX)
def _twice(before_size: int, own_size: int, rest_size: int) -> Struct:
    """All fields of a header in which those of a send are there twice."""
    return Struct(
        f"{before_size}s"  # a to i
        f"{own_size}s"  # j to n, those that are not missing
        f"{before_size}s"  # a to i again
        f"{own_size + len(_SIGNATURE_ENTRY)}s"  # j to n again, and the name of the signature
        f"{_SIGNATURE_CHARS}s"
        f"{rest_size}s"  # AccessKey, and SecurityToken if there is one
    )


class BinaryTails:
    """The signed tails of one connection with binary headers."""

    __slots__ = (
        "_before_size",
        "_behind",
        "_end",
        "_head",
        "_layout",
        "_own_bytes",
        "_rest",
        "_size",
        "_usual",
        "seen",
    )

    def __init__(self) -> None:
        self.seen = False
        """Whether one came that was signed: the next will be, too."""
        self._own_bytes = self._end = self._rest = b"\xff"
        self._usual = _NO_TAIL, "", ""
        self._head, self._behind = b"", b""
        self._before_size, self._layout = 0, _twice(0, 0, 0)
        self._size = self._layout.size

    def read(
        self,
        data: bytes,
        fields_at: int,
        at: int,
        end: int,
        a_to_d: bytes,
        e: bytes,
        f: bytes,
        g: bytes,
        h: bytes,
        i: bytes,
    ) -> SignedSend | None:
        """The tail at `at`, behind fields that begin at `fields_at` and have these values; None:
        one of another form.

        0.4 µs, where the general decoder takes 30; with one slice after the other it was 0.6.
        """
        if at - fields_at != self._before_size:
            self._measure(at - fields_at)
        if end - fields_at != self._size:
            return self._learn(data, fields_at, at, end, a_to_d, e, f, g, h, i)
        before, own, again, own_end, signature, rest = self._layout.unpack_from(data, fields_at)
        if rest != self._rest or own != self._own_bytes or own_end != self._end or again != before:
            return self._learn(data, fields_at, at, end, a_to_d, e, f, g, h, i)
        send = new_object(SignedSend)
        send.tail, send.access_key, send.timestamp = self._usual
        send.signature = signature
        send.values = b"".join((self._head, a_to_d, e, f, g, h, i, self._behind))
        return send

    def _measure(self, before_size: int) -> None:
        """From now on the fields before the tail are of that length."""
        self._before_size = before_size
        self._layout = _twice(before_size, len(self._own_bytes), len(self._rest))
        self._size = self._layout.size

    def _learn(
        self, data: bytes, fields_at: int, at: int, end: int, *before: bytes
    ) -> SignedSend | None:
        """The same, if it is the first of its form."""
        entry_at = data.rfind(_SIGNATURE_ENTRY, at, end)
        own_bytes = data[at : at + (entry_at - at - (at - fields_at)) // 2]
        rest = data[entry_at + len(_SIGNATURE_ENTRY) + _SIGNATURE_CHARS : end]
        if entry_at < 0 or not own_bytes or not rest or not (own_bytes + rest).isascii():
            return None
        own, shown = binary_tail(own_bytes), binary_tail(rest)
        tail = tail_of(own)
        if own is None or tail is None or shown is None or shown.keys() - {SECURITY_TOKEN} != _KEY:
            return None
        if (own_bytes, rest) == (self._own_bytes, self._rest):
            return None  # its form is known: it is not twice the same
        self._own_bytes, self._end, self._rest = own_bytes, own_bytes + _SIGNATURE_ENTRY, rest
        self._usual = tail, shown[ACCESS_KEY], ""
        self._head, self._behind = signed_values(shown), signed_values(own)
        self._measure(at - fields_at)
        found = self.read(data, fields_at, at, end, *before)
        self.seen = found is not None
        return found


def tail_of(fields: dict[str, str] | None) -> SendTail | None:
    """The tail that these fields are; None where the general decoder has to look."""
    if fields is None or not fields.keys() <= _OWN:
        return None
    if not (is_number(fields.get("j", "0")) and is_number(fields.get("l", "0"))):
        return None
    limit = int(fields["l"]) if "l" in fields else None
    unit_mode, batch = (fields.get(name, "").lower() == "true" for name in "km")
    return SendTail(int(fields.get("j", "0")), unit_mode, limit, batch)


def binary_tail(tail: bytes) -> dict[str, str] | None:
    """The fields of a tail in the binary header."""
    fields, at = {}, 0
    while at < len(tail):
        key_end = at + 2 + int.from_bytes(tail[at : at + 2])
        value_end = key_end + 4 + int.from_bytes(tail[key_end : key_end + 4])
        if value_end > len(tail):
            return None
        fields[tail[at + 2 : key_end].decode("latin-1")] = tail[key_end + 4 : value_end].decode(
            "latin-1"
        )
        at = value_end
    return fields


def json_tail(tail: bytes) -> dict[str, str] | None:
    """The fields of a tail in the JSON header."""
    try:
        fields = json_loads(b"{" + tail[1:] + b"}")
    except ValueError:
        return None
    return fields if all_text(fields) else None


def all_text(fields: dict[str, object]) -> bool:
    """Whether every value is a text."""
    return all(isinstance(value, str) for value in fields.values())


def is_number(text: str) -> bool:
    """Whether Java and Python read the same small number in this."""
    return text.isascii() and text.isdigit() and len(text) <= INT_DIGITS


def keep(learnt: dict[bytes, Learnt], key: bytes, value: Learnt) -> None:
    """Notes what was learnt, if it is short; past the limit everything is learnt again."""
    if len(key) > _LEARNT_BYTES_MAX:
        return
    if len(learnt) >= _LEARNT_MAX:
        learnt.clear()
    learnt[key] = value
