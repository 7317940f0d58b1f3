"""Records of TLS, made one by one, as no library sends them: new keys without end, handshakes
behind the handshake.

A client of Python's shakes hands; what it writes down of the keys seals the records here.
"""

from contextlib import suppress
from hmac import digest
from pathlib import Path
from socket import socket
from ssl import MemoryBIO, SSLContext, SSLObject, SSLWantReadError, TLSVersion

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CIPHER = "TLS_AES_256_GCM_SHA384"
DATA, HANDSHAKE = 23, 22
NEW_KEYS = b"\x18\0\0\1\0"
"""Keys of this side; the other side need not change its own."""


def _derived(secret: bytes, label: str, size_bytes: int) -> bytes:
    name = b"tls13 " + label.encode()
    info = size_bytes.to_bytes(2) + bytes([len(name)]) + name + b"\0"
    return HKDFExpand(SHA384(), size_bytes, info).derive(secret)


class Records:
    """Return a TLS 1.3 client's records after its handshake; it has sent nothing itself."""

    def __init__(self, keys: Path) -> None:
        """`keys`: what its context wrote as `keylog_filename`."""
        lines = [line.split() for line in keys.read_text().splitlines()]
        (secret,) = [each[2] for each in lines if each[0] == "CLIENT_TRAFFIC_SECRET_0"]
        self._begin(bytes.fromhex(secret))

    def _begin(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_derived(secret, "key", 32))
        self._nonce = int.from_bytes(_derived(secret, "iv", 12))
        self._number = 0

    def data(self, text: bytes) -> bytes:
        return self._sealed(text, DATA)

    def new_keys(self) -> bytes:
        """One record without data; those behind it have other keys."""
        record = self._sealed(NEW_KEYS, HANDSHAKE)
        self._begin(_derived(self._secret, "traffic upd", 48))
        return record

    def _sealed(self, text: bytes, kind: int) -> bytes:
        head = b"\x17\3\3" + (len(text) + 1 + 16).to_bytes(2)
        nonce = (self._nonce ^ self._number).to_bytes(12)
        self._number += 1
        return head + self._cipher.encrypt(nonce, text + bytes([kind]), head)


def writes_keys(context: SSLContext, path: Path) -> SSLContext:
    """Return the context with its keys logged."""
    context.keylog_filename = str(path)
    return context


# --- TLS 1.2


class OldRecords:
    """Return a TLS 1.2 client's records, all sealed here, messages of handshakes included."""

    def __init__(self, keys: Path, server_hello: bytes) -> None:
        """`keys` as above; `server_hello`: the record that it came in."""
        lines = [line.split() for line in keys.read_text().splitlines()]
        ((_, of_client, secret),) = [each for each in lines if each[0] == "CLIENT_RANDOM"]
        seed = b"key expansion" + server_hello[11:43] + bytes.fromhex(of_client)
        key_block = _expanded(bytes.fromhex(secret), seed, 2 * 32 + 2 * 4)
        self._cipher, self._salt = AESGCM(key_block[:32]), key_block[64:68]
        self._number = 0

    def data(self, text: bytes) -> bytes:
        return self._sealed(text, DATA)

    def of_handshake(self, text: bytes) -> bytes:
        """One record with any number of messages."""
        return self._sealed(text, HANDSHAKE)

    def with_more(self, finished: bytes, more: bytes) -> bytes:
        """The first record that the client's library sealed, with more in it."""
        explicit, sealed = finished[5:13], finished[13:]
        about = bytes(8) + b"\x16\3\3" + (len(sealed) - 16).to_bytes(2)
        return self.of_handshake(self._cipher.decrypt(self._salt + explicit, sealed, about) + more)

    def _sealed(self, text: bytes, kind: int) -> bytes:
        number = self._number.to_bytes(8)
        self._number += 1
        about = number + bytes([kind]) + b"\3\3" + len(text).to_bytes(2)
        body = number + self._cipher.encrypt(self._salt + number, text, about)
        return bytes([kind]) + b"\3\3" + len(body).to_bytes(2) + body


def _expanded(secret: bytes, seed: bytes, size_bytes: int) -> bytes:
    """The function of RFC 5246, 5, with SHA-384."""
    link, found = seed, b""
    while len(found) < size_bytes:
        link = digest(secret, link, "sha384")
        found += digest(secret, link + seed, "sha384")
    return found[:size_bytes]


def shaken_old(context: SSLContext, sock: socket, keys: Path, more: bytes = b"") -> OldRecords:
    """Hands are shaken by TLS 1.2, over a socket that blocks, and the client is at its end.

    `context` writes `keys`; `more`: with these messages in the last record of the handshake.
    """
    context.maximum_version = TLSVersion.TLSv1_2
    incoming, outgoing = MemoryBIO(), MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    came, said = b"", _said_by(client, outgoing)
    sock.sendall(said)
    while not (said := _said_by(client, outgoing)):
        came += (data := sock.recv(1 << 16))
        incoming.write(data)
    records = OldRecords(keys, came)
    finished = said[said.rindex(b"\x14\3\3\0\1\1") + 6 :]
    sock.sendall(said[: -len(finished)] + records.with_more(finished, more))
    while not more and client.version() is None:
        incoming.write(sock.recv(1 << 16))
        _said_by(client, outgoing)
    return records


def _said_by(client: SSLObject, outgoing: MemoryBIO) -> bytes:
    with suppress(SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
