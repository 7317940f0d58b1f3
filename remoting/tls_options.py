"""TLS as a caller wants it: said by a program, or by the environment.

TROUPEMQ_TLS                 true: with TLS; so does whoever names a file below; false: without
TROUPEMQ_TLS_CA              the certificates of who is trusted, a PEM file
TROUPEMQ_TLS_CERT, _KEY      the caller's own certificate and its key
TROUPEMQ_TLS_KEY_PASSWORD    of that key
TROUPEMQ_TLS_AUTH_SERVER     false: whoever answers is believed
"""

import os
from dataclasses import dataclass, field
from ssl import SSLContext

from remoting.tls import TlsFiles, client_context

ENABLE = "TROUPEMQ_TLS"
TRUST = "TROUPEMQ_TLS_CA"
CERTIFICATE = "TROUPEMQ_TLS_CERT"
KEY = "TROUPEMQ_TLS_KEY"
KEY_PASSWORD = "TROUPEMQ_TLS_KEY_PASSWORD"
AUTH_SERVER = "TROUPEMQ_TLS_AUTH_SERVER"

WANTS_TLS = f"; if it takes TLS only: {ENABLE}=true"
"""Of a connection without TLS that ended unanswered: a server that takes TLS only cannot say so."""


@dataclass(frozen=True)
class Tls:
    """How servers are called with TLS."""

    trust: str = ""
    """A PEM file with the certificates of who signs those of servers; empty: those that this
    machine trusts."""
    certificate: str = ""
    """One's own, for servers that ask for it: a PEM file, with its key in another one."""
    key: str = ""
    key_password: str = field(default="", repr=False)
    checks_server: bool = True
    """Whether a server must show a trusted certificate that names the host that was called."""

    def context(self) -> SSLContext:
        """What connections are made with. Raises TlsUnusable with one sentence."""
        files = TlsFiles(self.certificate, self.key, self.key_password, self.trust)
        return client_context(files, checks_server=self.checks_server)


def tls_of_environment() -> Tls | None:
    """What the environment asks for; None: calls without TLS."""
    said = os.environ
    files = [said.get(name, "") for name in (TRUST, CERTIFICATE, KEY)]
    wanted = said.get(ENABLE, "").lower()
    if wanted == "false" or (wanted != "true" and not any(files)):
        return None
    checks_server = said.get(AUTH_SERVER, "").lower() != "false"
    password = said.get(KEY_PASSWORD, "")
    trust, certificate, key = files
    return Tls(trust, certificate, key, password, checks_server=checks_server)
