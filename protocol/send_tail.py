"""The end of a send's header: the fields behind the properties, and whose signature it has.

    ,"j":"0","k":"false","m":"false","n":"broker-a"                 the same from send to send
    ,"SecurityToken":"…"                                            only with such accounts
    ,"Signature":"dhWKtm6bxA/TgQrApw0oNdH+3X0="                     another one every time
    ,"AccessKey":"…"                                                and behind it, from our clients,
    ,"Timestamp":"1795189863439"

That is how Java clients write a signed send. What its signature covers is put together here, where
the texts of its fields are at hand; whether it is right is for others to find out.
"""

from dataclasses import dataclass
from re import compile as compile_pattern
from typing import NamedTuple, TypeVar

from orjson import JSONDecodeError
from orjson import loads as json_loads

from protocol.header_pattern import INT_DIGITS
from protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, TIMESTAMP, signed_values

Learnt = TypeVar("Learnt")
_LEARNT_MAX = 64
"""How many of each kind one connection keeps; a producer of more topics learns again."""

_OWN = frozenset("jklmn")
_Own = tuple[int, bool, int | None, bool]
_new_tuple = tuple.__new__
"""What a named tuple's own constructor calls: 0.1 µs instead of 0.3."""
_SIGNATURE_AT = b',"Signature":"'
_SIGNATURE_CHARS = 28
_QUOTE, _BACKSLASH = b'"', b"\\"
_REST = compile_pattern(
    rb'","AccessKey":"([ !#-\[\]-~]*)"'
    rb'(?:,"Timestamp":"([0-9]{1,18})")?(?:,"SecurityToken":"([ !#-\[\]-~]*)")?'
)


@dataclass(slots=True, eq=False)
class SendTail:
    """The fields of a send behind its properties."""

    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool


class SignedTail(NamedTuple):
    """Of one send that somebody has signed, or says so: there is one for each, so it is a tuple."""

    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool
    access_key: str
    signature: bytes
    timestamp: str
    values: bytes
    """What is signed before the body."""


def signed_tail(tail: SendTail, fields: dict[str, str]) -> SendTail | SignedTail:
    """The tail of a send with these ext fields: a signed one, if they name an account."""
    access_key = fields.get(ACCESS_KEY)
    if access_key is None:
        return tail
    return SignedTail(
        tail.reconsume_times,
        tail.unit_mode,
        tail.max_reconsume_times,
        tail.batch,
        access_key,
        fields.get(SIGNATURE, "").encode("utf-8", "replace"),
        fields.get(TIMESTAMP, ""),
        signed_values(fields),
    )


class JsonTails:
    """The signed tails of one connection."""

    __slots__ = ("_begin", "_end", "_length", "_rests", "_stable", "_usual", "seen")

    def __init__(self) -> None:
        self.seen = False
        """Whether one came that was signed: the next will be, too."""
        self._begin, self._end, self._length = b"\xff", b"", 0
        self._usual: tuple[_Own, str, bytes, bytes] = ((0, False, None, False), "", b"", b"")
        self._stable: dict[bytes, tuple[_Own, bytes, bytes]] = {}
        self._rests: dict[bytes, tuple[bytes, str, str, bytes]] = {}

    def read(self, tail_bytes: bytes, before: tuple[bytes, ...]) -> SignedTail | None:
        """A tail behind fields with these values; None: one of another form."""
        if (
            tail_bytes.startswith(self._begin)
            and len(tail_bytes) == self._length
            and tail_bytes.endswith(self._end)
        ):  # as the last one, but for its signature
            own, access_key, head, behind = self._usual
            begin = len(self._begin)
            signature = tail_bytes[begin : begin + _SIGNATURE_CHARS]
            if _QUOTE in signature or _BACKSLASH in signature:
                return None  # its text ends sooner than that
            values = b"".join((head, *before, behind))
            return _new_tuple(SignedTail, (*own, access_key, signature, "", values))
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
        own, token, behind = stable
        head, access_key, timestamp, middle = rest
        if not timestamp:
            self._begin, self._end = tail_bytes[:signature_at], tail_bytes[rest_at:]
            self._length = len(tail_bytes)
            self._usual = own, access_key, head + token + middle, behind
        values = b"".join((head, token, middle, *before, behind))
        signature = tail_bytes[signature_at:rest_at]
        if _QUOTE in signature or _BACKSLASH in signature:
            return None
        return _new_tuple(SignedTail, (*own, access_key, signature, timestamp, values))

    def _learn(self, stable: bytes) -> tuple[_Own, bytes, bytes] | None:
        fields = json_tail(stable) or {}
        token = fields.pop(SECURITY_TOKEN, "")
        tail = tail_of(fields)
        if tail is None or not fields:
            return None
        own = tail.reconsume_times, tail.unit_mode, tail.max_reconsume_times, tail.batch
        learnt = (own, token.encode("utf-8", "replace"), signed_values(fields))
        keep(self._stable, stable, learnt)
        return learnt

    def _learn_rest(self, rest: bytes) -> tuple[bytes, str, str, bytes] | None:
        """The key, and what is signed behind it: a token here, the time."""
        found = _REST.fullmatch(rest)
        if found is None:
            return None
        access_key, timestamp, token = found.groups(b"")
        learnt = (access_key, access_key.decode(), timestamp.decode(), token + timestamp)
        if not timestamp:  # else it is another one every time
            keep(self._rests, rest, learnt)
        return learnt


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
    except JSONDecodeError:
        return None
    return fields if all_text(fields) else None


def all_text(fields: dict[str, object]) -> bool:
    """Whether every value is a text."""
    return all(isinstance(value, str) for value in fields.values())


def is_number(text: str) -> bool:
    """Whether Java and Python read the same small number in this."""
    return text.isascii() and text.isdigit() and len(text) <= INT_DIGITS


def keep(learnt: dict[bytes, Learnt], key: bytes, value: Learnt) -> None:
    """Notes what was learnt; past the limit everything is learnt again."""
    if len(learnt) >= _LEARNT_MAX:
        learnt.clear()
    learnt[key] = value
