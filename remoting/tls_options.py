"""TLS options of a client, from a program or the environment.

TROUPEMQ_TLS                 true: with TLS, as any file below implies; false: without
TROUPEMQ_TLS_CA              trusted CA certificates, a PEM file
TROUPEMQ_TLS_CERT, _KEY      the client certificate and its key
TROUPEMQ_TLS_KEY_PASSWORD    of that key
TROUPEMQ_TLS_AUTH_SERVER     false: the server's certificate is not checked
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ssl import SSLContext

ENABLE = "TROUPEMQ_TLS"
TRUST = "TROUPEMQ_TLS_CA"
CERTIFICATE = "TROUPEMQ_TLS_CERT"
KEY = "TROUPEMQ_TLS_KEY"
KEY_PASSWORD = "TROUPEMQ_TLS_KEY_PASSWORD"
AUTH_SERVER = "TROUPEMQ_TLS_AUTH_SERVER"

WANTS_TLS = f"; if it takes TLS only: {ENABLE}=true"
"""Hint for a connection that ended unanswered: a server that requires TLS cannot say so."""


@dataclass(frozen=True)
class Tls:
    """TLS options of a client."""

    trust: str = ""
    """PEM file of trusted CA certificates; empty: the machine's."""
    certificate: str = ""
    """PEM file of the client certificate, with its key in another file."""
    key: str = ""
    key_password: str = field(default="", repr=False)
    checks_server: bool = True
    """Require a trusted server certificate that names the host."""

    def context(self) -> "SSLContext":
        """Return the context of connections. Raises TlsUnusable with one sentence."""
        from remoting.tls import TlsFiles, client_context  # loads OpenSSL

        files = TlsFiles(self.certificate, self.key, self.key_password, self.trust)
        return client_context(files, checks_server=self.checks_server)


@dataclass(frozen=True)
class InvalidTls(Tls):
    """Options with an invalid word, of which each connection tells: it must not go without TLS."""

    fault: str = ""

    def context(self) -> NoReturn:
        from remoting.tls import TlsUnusable

        raise TlsUnusable(self.fault)


def tls_of_environment() -> Tls | None:
    """Return the options of the environment; None: without TLS."""
    said = os.environ
    for name in (ENABLE, AUTH_SERVER):
        if said.get(name, "").lower() not in ("", "true", "false"):
            return InvalidTls(fault=f"{name} is {said[name]!r}: use true or false.")
    files = [said.get(name, "") for name in (TRUST, CERTIFICATE, KEY)]
    wanted = said.get(ENABLE, "").lower()
    if wanted == "false" or (wanted != "true" and not any(files)):
        return None
    checks_server = said.get(AUTH_SERVER, "").lower() != "false"
    password = said.get(KEY_PASSWORD, "")
    trust, certificate, key = files
    return Tls(trust, certificate, key, password, checks_server=checks_server)
