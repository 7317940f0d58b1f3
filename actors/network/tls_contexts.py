"""TLS contexts in force, reloaded when one of their files changes.

A plain class; one actor checks the files. A handshake uses the context of its begin, and open
connections keep theirs. If the new files cannot be used, one line is logged and the old context
stays.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from shutil import which
from ssl import SSLContext, SSLObject, SSLSocket
from subprocess import DEVNULL, CalledProcessError, run
from tempfile import TemporaryDirectory

from actors.engine.server_log import get_logger
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
    """TLS contexts of one server: for its own port, and for its calls to others."""

    def __init__(self, settings: TlsSettings) -> None:
        """Load the contexts. Raises WrongSetting with a sentence for the operator."""
        self._settings = settings
        self.server: SSLContext | None = None
        """None: it serves no TLS."""
        self.client: SSLContext | None = None
        """None: it calls others without TLS."""
        self.handshakes: Counter[str] = Counter()
        """Results of inbound handshakes, counted by the TlsNegotiators."""
        self.not_after_s: Mapping[str, float] = {}
        """Expiry of its certificates as `server` and as `client`, in seconds since 1970.

        Test mode has no entry: its certificate is made at each start.
        """
        self._seen = self._state()
        """State of the files in force."""
        self._told = ""
        """Logged reason for which the present files are not in force."""
        try:
            self.server, self.client = self._made()
        except TlsUnusable as error:
            raise WrongSetting(f"TLS: {error}") from None
        self.not_after_s = self._ends()
        if settings.tls_test_mode:
            log.warning(
                "TLS test mode enabled",
                because="tls.test.mode.enable",
                hint="it authenticates no peer: for tests only",
            )
        self._warn_of_open_keys()

    def look(self) -> None:
        """Load changed files, if they can be used.

        A failed load is repeated at each call, because the cause may lie elsewhere, such as too
        many open files.
        """
        state = self._state()
        if state == self._seen:
            self._told = ""
            return
        try:
            self.server, self.client = self._made()
        except TlsUnusable as error:
            if str(error) != self._told:
                self._told = str(error)
                log.error("TLS reload failed, old certificate kept", reason=self._told)
            return
        self._seen, self._told = state, ""
        self.not_after_s = self._ends()
        log.info("TLS certificates reloaded")
        self._warn_of_open_keys()

    def followed(self) -> SSLContext:
        """Return a context for a server that keeps it for good, such as a console.

        Each of its handshakes shows the newest certificate. Clients need no certificate. Raises
        WrongSetting without a certificate.
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

    # --- building contexts

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
            except (OSError, ValueError):  # no file is configured, or it has changed meanwhile
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
            except (OSError, ValueError):  # its reader reports the reason
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
                log.warning("TLS key readable by all local users", file=path)


def tls_contexts(settings: TlsSettings) -> TlsContexts | None:
    """Return the TLS contexts of a server; None if no setting asks for TLS. Raises WrongSetting."""
    calls = isinstance(settings, BrokerTlsSettings) and settings.calls_any_with_tls
    return TlsContexts(settings) if settings.has_certificate or calls else None


ToCallWith = Callable[[], SSLContext | None]
"""Function that returns the present client context; None: without TLS."""


def to_call_with(contexts: TlsContexts | None, *, wanted: bool) -> ToCallWith:
    return lambda: contexts.client if wanted and contexts is not None else None


def _test_context() -> SSLContext:
    """Return a context with a certificate for localhost, valid while this process runs.

    The openssl command makes the certificate, because Python's ssl module cannot. Raises
    TlsUnusable.
    """
    program = which("openssl")
    if program is None:
        raise TlsUnusable(
            "tls.test.mode.enable needs the openssl command, which is missing: install it, or set"
            " a certificate as tls.server.certPath and its key as tls.server.keyPath."
        )
    with TemporaryDirectory(prefix="troupemq-tls-") as folder:
        files = TlsFiles(f"{folder}/certificate.pem", f"{folder}/key.pem")
        where = ("-keyout", files.key_path, "-out", files.cert_path)
        try:
            run((program, *_MADE_HERE, *where), check=True, stdout=DEVNULL, stderr=DEVNULL)
        except (OSError, CalledProcessError) as error:
            raise TlsUnusable(
                f"{program} failed to make a certificate for test mode: {error}."
            ) from None
        return server_context(files)
