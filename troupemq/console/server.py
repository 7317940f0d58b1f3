"""Server of the console: uvicorn on a thread, with limits for slow or many peers.

TLS handshake                HANDSHAKE_S, PENDING_MAX at once (listener.py)
TLS records                  type and size (listener.py)
request head and body        HEAD_S after the connection, or IDLE_S more after the last answer
answer, until it is read     ANSWER_S, then the connection is aborted
connections and requests     CONNECTIONS_MAX at once; others get 503
size of a request head       HEAD_BYTES_MAX
"""

from collections.abc import Callable
from functools import partial
from ssl import SSLContext
from threading import Event, Thread
from typing import Any

from h11 import IDLE
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from actors.network.bind_address import BACKLOG
from actors.network.tls_contexts import TlsContexts
from actors.settings.tls_settings import TlsSettings
from troupemq.console.app import Application
from troupemq.console.asking import Console, ConsoleSettings
from troupemq.console.listener import PatientListener

HEAD_S = 10.0
ANSWER_S = 40.0
IDLE_S = 15
"""Idle time between two requests of one connection."""

CONNECTIONS_MAX = 200
HEAD_BYTES_MAX = 16 << 10
HEAD_ENDS = (b"\n\r\n", b"\n\n")
STOP_S = 3
LOOK_S = 1.0


class TimeoutProtocol(H11Protocol):
    """HTTP with timeouts for heads, bodies and readers, on which uvicorn waits forever."""

    _limit: Any = None

    def __init__(self, *given: Any, begun: Callable[[int], None], **more: Any) -> None:
        """Create one; `begun` gets the file number of each connection after its handshake."""
        super().__init__(*given, **more)
        self._begun = begun

    def connection_made(self, transport: Any) -> None:
        self._begun(transport.get_extra_info("socket").fileno())
        super().connection_made(transport)
        self._allow(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Cut a long head, which h11 then refuses: it would take one that comes as a whole."""
        if self.conn.their_state is IDLE and len(data) > HEAD_BYTES_MAX:
            begin = data[:HEAD_BYTES_MAX]
            if not any(end in begin for end in HEAD_ENDS):
                data = data[: HEAD_BYTES_MAX + 1]
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._allow(ANSWER_S)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._allow(HEAD_S + IDLE_S)

    def _allow(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(seconds, self.transport.abort)


class FollowedCertificate:
    """TLS context that a thread reloads each second if its files have changed.

    Unusable files are logged once, and the previous certificate stays in use. At the start they
    raise StoreError.
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


class ConsoleServer:
    """HTTP server of one console. Raises PortTaken, StoreError, ClientError."""

    def __init__(self, settings: ConsoleSettings, proxy: str = "") -> None:
        """Bind the port; trust X-Forwarded-For of the addresses in `proxy`."""
        self._socket = PatientListener.listening(settings.bind_address, settings.port)
        self.port = int(self._socket.getsockname()[1])
        self._certificate: FollowedCertificate | None = None
        try:
            if settings.tls is not None and settings.tls.has_certificate:
                self._socket.has_tls = True
                self._certificate = FollowedCertificate(settings.tls, self._socket.end_late)
            self.console = Console(settings)
        except BaseException:
            self._socket.close()
            raise
        app = Application(self.console).make()
        config = Config(
            app,
            http=_with_patience(self._socket),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=bool(proxy),
            forwarded_allow_ips=proxy or None,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        if self._certificate is not None:
            config.ssl = self._certificate.context
        self._server = Server(config)
        self._thread = Thread(target=self._run, name="console-http", daemon=True)

    def start(self) -> None:
        """Start the threads; the socket already listens."""
        if self._certificate is not None:
            self._certificate.start()
        self.console.watch.start()
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def stop(self, timeout_s: float) -> bool:
        """Stop; return False if a thread did not end in time."""
        self._server.should_exit = True
        self._thread.join(timeout_s)
        self._socket.close()
        is_over = self._certificate is None or self._certificate.stop(timeout_s)
        return self.console.stop(timeout_s) and is_over and not self._thread.is_alive()

    @property
    def scheme(self) -> str:
        return "http" if self._certificate is None else "https"


def _with_patience(listener: PatientListener) -> Any:
    return partial(TimeoutProtocol, begun=listener.begun)
