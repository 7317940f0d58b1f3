"""Records of TLS 1.3, made one by one, as no library sends them: new keys without end.

A client of Python's shakes hands; what it writes down of the keys seals the records here.
"""

from pathlib import Path
from ssl import SSLContext

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CIPHER = "TLS_AES_256_GCM_SHA384"
DATA, HANDSHAKE = 23, 22
NEW_KEYS = b"\x18\0\0\1\0"
"""Those of this side, without asking the other for the same."""


def _derived(secret: bytes, label: str, size_bytes: int) -> bytes:
    name = b"tls13 " + label.encode()
    info = size_bytes.to_bytes(2) + bytes([len(name)]) + name + b"\0"
    return HKDFExpand(SHA384(), size_bytes, info).derive(secret)


class Records:
    """What a client sends behind its handshake. It has sent nothing itself."""

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
        """One record."""
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
    """The same context, with its keys told."""
    context.keylog_filename = str(path)
    return context
