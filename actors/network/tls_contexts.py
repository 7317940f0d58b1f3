"""The TLS contexts in force: made of their files, and made anew when one of these changes.

A plain class; one actor looks at the files.  Whoever begins a handshake takes the context of that
moment; what is open goes on as it began.  What cannot be used is said in one line, and what was
there before stays.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from shutil import which
from ssl import SSLContext, SSLObject, SSLSocket
from subprocess import DEVNULL, CalledProcessError, run
from tempfile import TemporaryDirectory

from structlog import get_logger

from actors.settings.tls_settings import BrokerTlsSettings, TlsSettings
from remoting.certificate import not_after_s
from remoting.tls import TlsFiles, TlsUnusable, client_context, server_context
from storage.errors import WrongSetting

log = get_logger(__name__)

_OTHERS_READ = 0o004
_MADE_HERE = (
    *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-days", "365", "-subj", "/CN=localhost"),
    *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
)
_Seen = tuple[tuple[str, int, int, int, int, int], ...]
"""Path, mtime, ctime, size, inode and mode of each file."""


class TlsContexts:
    """Those of one server: what it is called with, and what it calls others with."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises WrongSetting with a sentence for the operator."""
        self._settings = settings
        self.server: SSLContext | None = None
        """None: it serves no TLS."""
        self.client: SSLContext | None = None
        """None: it calls others without."""
        self.handshakes: Counter[str] = Counter()
        """What came of those who called this server, by the entrances' words; they count."""
        self.not_after_s: Mapping[str, float] = {}
        """When the certificates are over that it shows as `server` and as `client`, seconds since
        1970; not that of test mode, which is made at each start."""
        self._seen = self._state()
        """Of what is in force."""
        self._told = ""
        """Why what is there now is not."""
        try:
            self.server, self.client = self._made()
        except TlsUnusable as error:
            raise WrongSetting(f"TLS: {error}") from None
        self.not_after_s = self._ends()
        if settings.tls_test_mode:
            log.warning("TLS in test mode: it keeps out nobody", because="tls.test.mode.enable")
        self._warn_of_open_keys()

    def look(self) -> None:
        """Takes over what has changed, if it can be used; what cannot is tried at each look, for
        why it cannot need not be in the files: there were too many open ones."""
        state = self._state()
        if state == self._seen:
            self._told = ""
            return
        try:
            self.server, self.client = self._made()
        except TlsUnusable as error:
            if str(error) != self._told:
                self._told = str(error)
                log.error("TLS stays as it was", reason=self._told)
            return
        self._seen, self._told = state, ""
        self.not_after_s = self._ends()
        log.info("TLS certificates read again")
        self._warn_of_open_keys()

    def followed(self) -> SSLContext:
        """A context for a server that takes one for good, such as that of a console: each of its
        handshakes shows the newest certificate. Clients are not asked for any.

        Raises WrongSetting where there is no certificate.
        """
        try:
            context = self._made_server("none")
        except TlsUnusable as error:
            raise WrongSetting(f"TLS: {error}") from None

        def take_newest(sock: SSLSocket | SSLObject, _: str, __: SSLContext) -> None:
            if self.server is not None:
                sock.context = self.server

        context.sni_callback = take_newest
        return context

    # --- making them

    def _made(self) -> tuple[SSLContext | None, SSLContext | None]:
        settings = self._settings
        server = client = None
        if settings.has_certificate:
            server = self._made_server(settings.tls_client_auth)
        if isinstance(settings, BrokerTlsSettings) and settings.calls_any_with_tls:
            checks = settings.tls_checks_server and not settings.tls_test_mode
            client = client_context(settings.client_files, checks_server=checks)
        return server, client

    def _made_server(self, client_auth: str) -> SSLContext:
        if self._settings.tls_test_mode:
            return _test_context()
        return server_context(self._settings.server_files, client_auth)

    def _ends(self) -> Mapping[str, float]:
        """Of certificates that have just been read."""
        paths, settings = {}, self._settings
        if not settings.tls_test_mode:
            paths["server"] = settings.tls_server_certificate
        if isinstance(settings, BrokerTlsSettings) and settings.calls_any_with_tls:
            paths["client"] = settings.tls_client_certificate
        found = {}
        for use, path in paths.items():
            try:
                with open(path, encoding="latin-1") as file:
                    end_s = not_after_s(file.read())
            except (OSError, ValueError):  # none is named, or it has changed meanwhile
                continue
            if end_s is not None:
                found[use] = end_s
        return found

    @property
    def _paths(self) -> tuple[str, ...]:
        settings = self._settings
        paths = settings.server_files.paths if not settings.tls_test_mode else ()
        if isinstance(settings, BrokerTlsSettings) and settings.calls_any_with_tls:
            paths += settings.client_files.paths
        return paths

    def _state(self) -> _Seen:
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except (OSError, ValueError):  # whoever reads it says why
                continue
            times = status.st_mtime_ns, status.st_ctime_ns
            found.append((path, *times, status.st_size, status.st_ino, status.st_mode))
        return tuple(found)

    def _warn_of_open_keys(self) -> None:
        settings = self._settings
        keys = [settings.tls_server_key]
        if isinstance(settings, BrokerTlsSettings):
            keys.append(settings.tls_client_key)
        for path, *_, mode in self._seen:
            if path in keys and mode & _OTHERS_READ:
                log.warning("everybody on this machine can read a TLS key", file=path)


def tls_contexts(settings: TlsSettings) -> TlsContexts | None:
    """Return the TLS contexts of a server; None if no setting asks for TLS. Raises WrongSetting."""
    calls = isinstance(settings, BrokerTlsSettings) and settings.calls_any_with_tls
    return TlsContexts(settings) if settings.has_certificate or calls else None


ToCallWith = Callable[[], SSLContext | None]
"""Gives those who call others the context of the moment; None: without TLS."""


def to_call_with(contexts: TlsContexts | None, *, wanted: bool) -> ToCallWith:
    """For one kind of calls, with TLS if the settings want it for these."""
    return lambda: contexts.client if wanted and contexts is not None else None


def _test_context() -> SSLContext:
    """One with a certificate for localhost that lives as long as this process. Raises TlsUnusable.

    OpenSSL's command makes it, for Python's module reads certificates and makes none.
    """
    program = which("openssl")
    if program is None:
        raise TlsUnusable(
            "tls.test.mode.enable wants the openssl command, which is not here: install it, or name"
            " a certificate as tls.server.certPath and its key as tls.server.keyPath."
        )
    with TemporaryDirectory(prefix="troupemq-tls-") as folder:
        files = TlsFiles(f"{folder}/certificate.pem", f"{folder}/key.pem")
        where = ("-keyout", files.key_path, "-out", files.cert_path)
        try:
            run((program, *_MADE_HERE, *where), check=True, stdout=DEVNULL, stderr=DEVNULL)
        except (OSError, CalledProcessError) as error:
            raise TlsUnusable(f"{program} makes no certificate for test mode: {error}.") from None
        return server_context(files)
