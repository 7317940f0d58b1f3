"""TLS contexts of servers and clients, made from PEM files.

TLS 1.2 and 1.3, with forward secrecy and authenticated ciphers only, without renegotiation. The
given password opens an encrypted key; there is no prompt.
"""

import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from dataclasses import dataclass, field
from os import stat
from ssl import (
    CERT_NONE,
    CERT_OPTIONAL,
    CERT_REQUIRED,
    OP_NO_COMPRESSION,
    OP_NO_RENEGOTIATION,
    PROTOCOL_TLS_CLIENT,
    PROTOCOL_TLS_SERVER,
    SSLContext,
    SSLError,
    TLSVersion,
)
from stat import S_ISREG

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2; those of 1.3 are all of this kind."""

CURVE = "prime256v1"
"""Curve of a server's keys.

OpenSSL would also accept ffdhe8192 of a TLS 1.3 client, which takes 124 ms to compute. Python below
3.15 can name one curve only.
"""

HANDSHAKE_BYTE = 0x16
"""First byte of a TLS connection. A frame would need 352 MiB to begin with it."""

_AT_PLAIN_PORTS = ("UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER")
"""Reasons of OpenSSL for a server that closes the connection, or speaks another protocol."""

CLIENT_AUTH = {"none": CERT_NONE, "optional": CERT_OPTIONAL, "require": CERT_REQUIRED}
"""Client certificate modes, by RocketMQ's words."""

_OLD_CIPHERS = re.compile(
    rb"\x2a\x86\x48\x86\xf7\x0d\x01"
    rb"(?:\x0c\x01[\x01\x02\x05\x06]"  # PKCS #12: RC4, RC2
    rb"|\x05[\x01\x03\x04\x06\x0a\x0b])"  # PKCS #5 version 1: DES, RC2
)
"""Object ids of ciphers of encrypted keys that OpenSSL 3 reads only with its legacy provider.

openssl 1 made such PKCS #8 keys by default, and so does RocketMQ's guide.
"""
_OLD_HEADER = re.compile(r"^DEK-Info: (?:DES-CBC|RC2|RC4|BF|IDEA)", re.MULTILINE)
_PEM_BODY = re.compile(r"-----BEGIN ENCRYPTED PRIVATE KEY-----([^-]*)-----END")


class TlsUnusable(Exception):
    """Unusable TLS files; the sentence says what to do."""


@dataclass(frozen=True)
class TlsFiles:
    """Files of certificates and keys; an empty path means none."""

    cert_path: str = ""
    """Own certificate, followed by intermediate ones."""
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    trust_path: str = ""
    """Trusted CA certificates."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the named paths."""
        return tuple(path for path in (self.cert_path, self.key_path, self.trust_path) if path)


def server_context(files: TlsFiles, client_auth: str = "none") -> SSLContext:
    """Return a server's context. Raises TlsUnusable.

    `client_auth` is a key of CLIENT_AUTH. With any mode but none, a certificate must be signed by
    one of `trust_path`.
    """
    context = SSLContext(PROTOCOL_TLS_SERVER)
    _harden(context)
    context.num_tickets = 0  # they would be written to peers that may never read
    context.set_ecdh_curve(CURVE)
    if not files.cert_path or not files.key_path:
        raise TlsUnusable("A TLS server needs a certificate and its key.")
    _load_pair(context, files)
    if client_auth != "none":
        if not files.trust_path:
            raise TlsUnusable("Client certificates are required: name a file of trusted CAs.")
        _load_trust(context, files.trust_path)
        context.verify_mode = CLIENT_AUTH[client_auth]
    return context


def client_context(files: TlsFiles, *, checks_server: bool = True) -> SSLContext:
    """Return a client's context. Raises TlsUnusable.

    With `checks_server` the server's certificate must be signed by one of `trust_path`, by default
    the machine's CAs, and name the host.
    """
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    _harden(context)
    if not checks_server:
        context.check_hostname = False
        context.verify_mode = CERT_NONE
    elif files.trust_path:
        _load_trust(context, files.trust_path)
    else:
        context.load_default_certs()
    if files.cert_path or files.key_path:
        if not files.cert_path or not files.key_path:
            raise TlsUnusable("A certificate and its key belong together: name both, or neither.")
        _load_pair(context, files)
    return context


def reason_of_tls(error: OSError) -> str:
    """Return the reason of a TLS failure in a few words."""
    if not isinstance(error, SSLError):
        return error.strerror or str(error) or type(error).__name__
    verify_message = getattr(error, "verify_message", "")
    words = (error.reason or error.strerror or str(error)).lower().replace("_", " ")
    return f"TLS: {words}{f' ({verify_message})' if verify_message else ''}"


def plain_hint(error: BaseException) -> str:
    """Return a hint if a client's handshake failed as it does at a port without TLS."""
    is_plain = isinstance(error, SSLError) and error.reason in _AT_PLAIN_PORTS
    if not (is_plain or isinstance(error, ConnectionResetError)):
        return ""
    return "; if it has no TLS: leave out --tls and TROUPEMQ_TLS"


def _harden(context: SSLContext) -> None:
    context.minimum_version = TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= OP_NO_COMPRESSION | OP_NO_RENEGOTIATION


def _load_trust(context: SSLContext, path: str) -> None:
    _check(path)
    try:
        context.load_verify_locations(path)
    except SSLError:
        raise TlsUnusable(f"{path} holds no certificate in PEM form.") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _load_pair(context: SSLContext, files: TlsFiles) -> None:
    asked: list[bool] = []

    def password() -> bytes:
        asked.append(True)
        return secret

    key_text = _read(files.key_path)
    _read(files.cert_path)
    try:
        secret = files.key_password.encode()
        context.load_cert_chain(files.cert_path, files.key_path, password)
    except SSLError:
        raise TlsUnusable(_why_not(files, key_text, is_encrypted=bool(asked))) from None
    except ValueError:
        raise TlsUnusable(
            f"{files.key_path} is not opened: its password has more than 1,024 bytes, or is no text"
            " (keyPassword)."
        ) from None
    except OSError as error:  # removed since it was read
        raise _unreadable(f"{files.cert_path} or {files.key_path}", error) from None


def _why_not(files: TlsFiles, key_text: str, *, is_encrypted: bool) -> str:
    key = files.key_path
    if is_encrypted and _is_old(key_text):
        return (
            f"{key} is encrypted in a way that OpenSSL 3 does not read; convert it: openssl pkcs8"
            f" -topk8 -provider legacy -provider default -in {key} -v2 aes-256-cbc -out {key}.new"
        )
    if is_encrypted and not files.key_password:
        return f"{key} is encrypted: its password is missing (keyPassword)."
    if is_encrypted:
        return f"{key} is not opened by the password that is given for it (keyPassword)."
    if "-----BEGIN" not in key_text or "PRIVATE KEY-----" not in key_text:
        return f"{key} holds no private key in PEM form (openssl pkey -in OLD -out NEW makes one)."
    return f"{files.cert_path} and {key} do not belong together, or one of them is damaged."


def _is_old(key_text: str) -> bool:
    if _OLD_HEADER.search(key_text):
        return True
    body = _PEM_BODY.search(key_text)
    try:
        return body is not None and bool(_OLD_CIPHERS.search(a2b_base64(body[1])))
    except NotBase64:
        return False


def _check(path: str) -> None:
    """Refuse a path that is no regular file: a pipe would block, and be empty when read again."""
    try:
        mode = stat(path).st_mode
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError:
        raise TlsUnusable(f"{path!r} is no path: it has a NUL or no text in it.") from None
    if not S_ISREG(mode):
        raise TlsUnusable(f"{path} cannot be read: it is no regular file.")


def _read(path: str) -> str:
    _check(path)
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> TlsUnusable:
    return TlsUnusable(f"{path} cannot be read: {error.strerror}.")
