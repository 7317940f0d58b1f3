"""The certificate of the console: made of its files, and made anew when one of these changes.

The same contexts as those of brokers and name servers. Each handshake shows the newest; files that
cannot be used are told of in one line, and the certificate of before stays.
"""

from collections.abc import Callable
from ssl import SSLContext
from threading import Event, Thread

from actors.network.tls_contexts import TlsContexts
from actors.settings.tls_settings import TlsSettings

LOOK_S = 1.0


class FollowedCertificate:
    """Looks at the files on a thread of its own. Raises StoreError for what cannot be used."""

    def __init__(self, settings: TlsSettings, at_each_look: Callable[[], None]) -> None:
        """`at_each_look`: done on the same thread, as often."""
        self._contexts = TlsContexts(settings)
        self.context: SSLContext = self._contexts.followed()
        self._at_each_look = at_each_look
        self._over = Event()
        self._thread = Thread(target=self._run, name="console-certificate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Takes over what has changed."""
        self._contexts.look()
        self._at_each_look()

    def stop(self, timeout_s: float) -> bool:
        """False if it is stuck."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()
