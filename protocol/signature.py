"""The signature of a request, made and checked as RocketMQ's clients make it.

A signed request has these ext fields beside its own:

    AccessKey       the name of the account
    SecurityToken   temporary cloud accounts only; signed, else ignored
    Timestamp       TroupeMQ extension: time of the signature, ms since 1970
    Seal            TroupeMQ extension: Base64(HMAC-SHA256(secret key, outline))
    Signature       Base64(HMAC-SHA1(secret key, content)), made last

The content is the values of all ext fields but Signature, in the order of their names (Java's, by
UTF-16), joined with nothing between, as UTF-8, and then the body as it is sent. Nothing else is
covered: not the code, not the opaque, not the names, and not where one value ends.

That is in the outline, for servers that ask for it (aclMaxAgeSeconds) and for administrators. The
opaque is never covered.

    [code,"Timestamp",bytes of the body,["name",…],[bytes of the value,…]]

as JSON without blanks, in UTF-8, the names in the same order, Signature and Seal left out.

AccessKey, Seal, SecurityToken and Timestamp sort before all fields of our requests. The content of
a sealed request therefore begins with their values, whatever the fields are called afterwards.

Source: acl/common/AclClientRPCHook.java, AclUtils.java, AclSigner.java.
"""

from _operator import _compare_digest as compare_digest  # hmac's takes 5 µs on PyPy
from binascii import b2a_base64
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONEncoder
from re import compile as pattern
from typing import TYPE_CHECKING

from protocol.codes import SerializeType
from protocol.frame import RemotingCommand

if TYPE_CHECKING:
    from _hashlib import HASH

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"
TIMESTAMP = "Timestamp"
SEAL = "Seal"
CREDENTIALS = frozenset((ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, TIMESTAMP, SEAL))
"""Ext fields of the requester's identity, which are never forwarded."""

_SEALED = pattern(rb"[A-Za-z0-9+/]{43}=[!-~]{0,512}?[0-9]{13}")
_SEAL_CHARS, _PADDING = 44, ord("=")
_SEALED_BYTES_MAX = _SEAL_CHARS + 512 + 13
"""Maximum signed bytes behind the access key: a seal, a token and a time."""

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Field of QUERY_MESSAGE that the client of 4.9.7 signs and the broker of 4.9.7 leaves out."""

_as_json = JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""JSON encoder of the standard library, since Spark tasks have no orjson; it takes 3 µs more."""
_LONG_BODY_BYTES = 256 << 10
"""Length from which a body is hashed without a copy, which takes 20 ms for 64 MiB."""
_BLOCK_BYTES = 64
_INNER, _OUTER = 0x36, 0x5C
Buffer = bytes | bytearray | memoryview


class SecretKey:
    """Secret key, with its block for each of the two hashes of an HMAC.

    Two hashes of joined bytes take 0.8 µs, as a copied hash does on CPython. On PyPy each call of a
    method of a hash takes 0.5 µs; copies would take 4 µs.
    """

    __slots__ = ("_inner", "_outer", "_seal_inner", "_seal_outer", "_sha1", "_sha256")

    def __init__(self, secret: str) -> None:
        from hashlib import sha1, sha256  # without an account, no program loads OpenSSL

        key = secret.encode("utf-8", "replace")
        self._sha1, self._sha256 = sha1, sha256
        self._inner, self._outer = _blocks(sha1, key)
        self._seal_inner, self._seal_outer = _blocks(sha256, key)

    def is_as(self, other: "SecretKey") -> bool:
        """Return whether both secrets are equal, in constant time."""
        return compare_digest(self._inner, other._inner)

    def sign(self, values: bytes, body: Buffer | None) -> bytes:
        """Return the signature of this content, in Base64."""
        if body and len(body) > _LONG_BODY_BYTES:
            hashed = self._sha1(self._inner + values, usedforsecurity=False)
            hashed.update(body)
            inner = hashed.digest()
        else:
            content = self._inner + values + body if body else self._inner + values
            inner = self._sha1(content, usedforsecurity=False).digest()
        outer = self._sha1(self._outer + inner, usedforsecurity=False)
        return b2a_base64(outer.digest(), newline=False)

    def has_signed(self, signature: bytes, values: bytes, body: Buffer | None) -> bool:
        """Return whether this secret made the signature, in constant time."""
        return compare_digest(self.sign(values, body), signature)

    def seal(self, outline: bytes) -> bytes:
        """Return the seal of a request with this outline, in Base64.

        Its hash differs from a signature's, so that neither replaces the other.
        """
        inner = self._sha256(self._seal_inner + outline, usedforsecurity=False).digest()
        outer = self._sha256(self._seal_outer + inner, usedforsecurity=False)
        return b2a_base64(outer.digest(), newline=False)

    def has_sealed(self, code: int, fields: Mapping[str, str], body: Buffer | None) -> bool:
        """Return whether the seal among these fields is valid, in constant time."""
        names = [name for name in _in_order(fields) if name != SIGNATURE and name != SEAL]
        values = [fields[name] for name in names]
        outline = _outline(code, fields.get(TIMESTAMP, ""), body, names, values)
        return compare_digest(self.seal(outline), fields.get(SEAL, "").encode("utf-8", "replace"))


def _blocks(new: Callable[..., "HASH"], key: bytes) -> tuple[bytes, bytes]:
    """Return the first block of the inner and of the outer hash of an HMAC with this key."""
    if len(key) > _BLOCK_BYTES:
        key = new(key, usedforsecurity=False).digest()
    block = key.ljust(_BLOCK_BYTES, b"\0")
    return bytes(byte ^ _INNER for byte in block), bytes(byte ^ _OUTER for byte in block)


def signed_values(fields: Mapping[str, str], *, without: str = "") -> bytes:
    """Return the signed values of these ext fields; `without` leaves one more field out."""
    return "".join(
        [fields[name] for name in _in_order(fields) if name != SIGNATURE and name != without]
    ).encode("utf-8", "replace")


def was_sealed(access_key: str, values: bytes, body: Buffer | None) -> bool:
    """Return whether signed content comes from a sealed request, whatever its field names.

    A replayed request may have renamed fields and moved borders, but the same bytes. No value of an
    official client has `=` in that place.
    """
    begin = len(access_key.encode("utf-8", "replace"))
    last = begin + _SEAL_CHARS - 1
    if len(values) > last and values[last] != _PADDING:  # nearly always
        return False
    end = begin + _SEALED_BYTES_MAX
    content = values[:end] + bytes(memoryview(body or b"")[: max(0, end - len(values))])
    return _SEALED.match(content, begin) is not None


def _outline(
    code: int, timestamp: str, body: Buffer | None, names: Sequence[str], values: Sequence[str]
) -> bytes:
    """Return what a seal covers: all of a request but the values, which are signed."""
    sizes = [*map(len, values)]
    if not "".join(values).isascii():
        sizes = [len(value.encode("utf-8", "replace")) for value in values]
    text = _as_json((int(code), timestamp, len(body or b""), names, sizes))
    return text.encode("utf-8", "replace")  # half a character is sent as a question mark


def _in_order(fields: Mapping[str, str]) -> list[str]:
    names = sorted(fields)
    if not "".join(names).isascii():
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return names


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's account at servers with access control."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    _key: SecretKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError for keys that are no strings; the error does not show them."""
        if not (isinstance(self.access_key, str) and isinstance(self.secret_key, str)):
            kinds = (type(self.access_key).__name__, type(self.secret_key).__name__)
            raise ValueError(f"access_key and secret_key are strings, and not {', '.join(kinds)}")
        object.__setattr__(self, "_key", SecretKey(self.secret_key))

    def sign(self, command: RemotingCommand, now_ms: int) -> None:
        """Sign a request, replacing an earlier signature. Its body must be what is sent."""
        given = command.fields or {}
        own = {name: given[name] for name in given if name not in CREDENTIALS}
        if command.serialize_type == SerializeType.ROCKETMQ:  # which has no empty values
            own = {name: value for name, value in own.items() if value}
        signed = {**own, ACCESS_KEY: self.access_key, TIMESTAMP: str(now_ms)}
        if self.security_token is not None:
            signed[SECURITY_TOKEN] = self.security_token
        names = _in_order(signed)
        values = [signed[name] for name in names]
        outline = _outline(command.code, signed[TIMESTAMP], command.body, names, values)
        signed[SEAL] = self._key.seal(outline).decode()
        values.insert(bisect(names, SEAL), signed[SEAL])
        content = "".join(values).encode("utf-8", "replace")
        signature = self._key.sign(content, command.body)
        shown = {name: signed[name] for name in signed if name in CREDENTIALS}
        command.fields = {**own, SIGNATURE: signature.decode(), **shown}
