"""The server of the console: uvicorn on a thread, with limits for peers that hang or are many.

a request's head and body       HEAD_S after the connection, or after the answer before
an answer, and its being read   ANSWER_S, then the connection is cut
connections and requests        CONNECTIONS_MAX at once; others get 503
the head of a request           HEAD_BYTES_MAX
"""

from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from threading import Thread
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from actors.network.connections import PortTaken
from storage.errors import reason_of
from troupemq.console.app import Application
from troupemq.console.asking import Console, ConsoleSettings

HEAD_S = 10.0
ANSWER_S = 40.0
IDLE_S = 15
"""Between two requests of one connection."""

CONNECTIONS_MAX = 200
HEAD_BYTES_MAX = 16 << 10
BACKLOG = 128
STOP_S = 3


class PatientProtocol(H11Protocol):
    """HTTP with an end to patience: uvicorn itself waits for ever for a head, a body, a reader."""

    _limit: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._allow(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)

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


class ConsoleServer:
    """Serves one console. Raises PortTaken, StoreError, ClientError."""

    def __init__(self, settings: ConsoleSettings, proxy: str = "") -> None:
        """`proxy`: addresses of reverse proxies whose X-Forwarded-For is believed."""
        self._socket = _listener(settings.bind_address, settings.port)
        self.port = int(self._socket.getsockname()[1])
        try:
            self.console = Console(settings)
        except BaseException:
            self._socket.close()
            raise
        app = Application(self.console).make()
        config = Config(
            app,
            http=PatientProtocol,
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
        self._server = Server(config)
        self._thread = Thread(target=self._run, name="console-http", daemon=True)

    def start(self) -> None:
        """Returns at once: the socket listens already."""
        self.console.watch.start()
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def stop(self, timeout_s: float) -> bool:
        """False if it was stuck."""
        self._server.should_exit = True
        self._thread.join(timeout_s)
        self._socket.close()
        return self.console.stop(timeout_s) and not self._thread.is_alive()


def _listener(host: str, port: int) -> socket:
    listener = socket(AF_INET6 if ":" in host else AF_INET)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"The console cannot listen at {host}:{port}: {reason_of(error)}."
        ) from None
    listener.listen(BACKLOG)
    return listener
