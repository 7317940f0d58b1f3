"""Certificates for tests: an authority, what it signs for servers and clients, what is over.

Nothing of them is kept beyond a test.
"""

from binascii import b2a_base64
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from trustme import CA, KeyType, LeafCert

from remoting.tls import TlsFiles

PASSWORD = "opened-by-this"
OVER = datetime(2020, 1, 1, tzinfo=UTC)
_RC4_KEY = bytes.fromhex(
    "302e"  # what is encrypted, and how
    "301c"
    "060a2a864886f70d010c0101"  # PBE-SHA1-RC4-128
    "300e"
    "04080000000000000000"
    "02020800"  # salt, rounds
    "040e"
    "0000000000000000000000000000"
)


@cache
def _authority(name: str) -> CA:
    return CA(organization_name=name)


@cache
def _leaf(authority: str, host: str, *, is_over: bool, is_rsa: bool) -> LeafCert:
    until = OVER.replace(year=2021) if is_over else None
    return _authority(authority).issue_cert(
        host,
        not_before=OVER if is_over else None,
        not_after=until,
        key_type=KeyType.RSA if is_rsa else KeyType.ECDSA,
    )


class Certificates:
    """Files in one folder."""

    def __init__(self, folder: Path, authority: str = "Tests") -> None:
        self.folder = folder
        self._authority = authority
        folder.mkdir(parents=True, exist_ok=True)
        self.trust = str(folder / f"{authority}.pem")
        _authority(authority).cert_pem.write_to_path(self.trust)

    def files(
        self,
        name: str = "server",
        host: str = "127.0.0.1",
        *,
        is_over: bool = False,
        is_rsa: bool = False,
    ) -> TlsFiles:
        """Return a certificate for that host with its key and its issuer."""
        leaf = _leaf(self._authority, host, is_over=is_over, is_rsa=is_rsa)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(leaf.cert_chain_pems[0].bytes())
        own = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        # the form that Java reads
        key.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        key.chmod(0o600)
        return TlsFiles(str(certificate), str(key), "", self.trust)

    def settings(self, **more: str) -> Mapping[str, str]:
        """Return the settings of a server with a certificate for 127.0.0.1."""
        files = self.files()
        return {
            "tls.server.certPath": files.cert_path,
            "tls.server.keyPath": files.key_path,
            **more,
        }

    def encrypted_key(self) -> str:
        """The server's key, opened by PASSWORD."""
        key = load_pem_private_key(Path(self.files().key_path).read_bytes(), None)
        way = BestAvailableEncryption(PASSWORD.encode())
        path = self.folder / "encrypted.key"
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, way))
        return str(path)

    def old_key(self) -> str:
        """The form of one that openssl 1 makes, and RocketMQ's guide, with nothing in it."""
        path = self.folder / "old.key"
        body = b2a_base64(_RC4_KEY).decode()
        kind = "ENCRYPTED PRIVATE KEY-----"
        path.write_text(f"-----BEGIN {kind}\n{body}-----END {kind}\n")
        return str(path)

    def calls(self, *, shows: TlsFiles | None = None) -> SSLContext:
        """Return the context of a plain Python client; `shows` is its own certificate."""
        context = SSLContext(PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.trust)
        if shows is not None:
            context.load_cert_chain(shows.cert_path, shows.key_path)
        return context
