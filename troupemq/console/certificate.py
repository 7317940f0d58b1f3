"""Certificate of the console, reloaded when one of its files changes.

It uses the contexts of brokers and name servers. Each handshake presents the newest certificate.
Unusable files are logged once, and the previous certificate stays in use.
"""

from collections.abc import Callable
from ssl import SSLContext
from threading import Event, Thread

from actors.network.tls_contexts import TlsContexts
from actors.settings.tls_settings import TlsSettings

LOOK_S = 1.0


class FollowedCertificate:
    """TLS context that a thread reloads each second.

    Raises StoreError if the files cannot be used at the start.
    """

    def __init__(self, settings: TlsSettings, at_each_look: Callable[[], None]) -> None:
        """Load the files; the thread calls `at_each_look` after each check."""
        self._contexts = TlsContexts(settings)
        self.context: SSLContext = self._contexts.followed()
        self._at_each_look = at_each_look
        self._over = Event()
        self._thread = Thread(target=self._run, name="console-certificate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        self._contexts.look()
        self._at_each_look()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; return False if it did not end in time."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()
