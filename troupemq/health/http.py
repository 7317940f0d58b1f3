"""The HTTP answers to /health/live and /health/ready: 200 or 503, with JSON; nothing else.

    GET /health/live     200 {"ok": true, "checks": [{"check": "loop", "ok": true, "why": ""}]}
    GET /health/ready    503 with "why" for each that is not well

One thread accepts; a few answer, each connection once, with a deadline for all of it. More than
those at a time are closed unanswered. No login: there are no names in it, of topics or of clients.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from json import dumps
from socket import SHUT_RDWR, socket
from threading import BoundedSemaphore, Thread
from time import monotonic

from actors.network.connections import open_listener
from troupemq.health.checks import Health, HealthCheck, is_well

ANSWERERS_MAX = 8
REQUEST_BYTES_MAX = 8 << 10
DEADLINE_S = 3.0
"""For a request and its answer, the loop's second included."""

_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class HealthServer:
    """Answers from when it is made until `close`. Raises PortTaken."""

    def __init__(self, host: str, port: int, health: Health) -> None:
        self._pages: dict[str, Callable[[], Sequence[HealthCheck]]] = {
            "/health/live": health.live,
            "/health/ready": health.ready,
        }
        self._socket = open_listener(host, port, "healthPort")
        self._socket.setblocking(True)
        self.port: int = self._socket.getsockname()[1]
        self._free = BoundedSemaphore(ANSWERERS_MAX)
        self._thread = Thread(target=self._accept, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing is accepted any more; who is being answered still is."""
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)  # or accept would go on
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                sock.close()
                continue
            Thread(target=self._serve, args=(sock,), name="health answer", daemon=True).start()

    def _serve(self, sock: socket) -> None:
        try:
            with sock, suppress(OSError):
                head = read_head(sock, monotonic() + DEADLINE_S)
                if head:
                    sock.sendall(self._answer(head))
        finally:
            self._free.release()

    def _answer(self, head: bytes) -> bytes:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return response(400, {"ok": False, "why": "this is no HTTP request"})
        method, target, _ = words
        look = self._pages.get(target.partition("?")[0])
        if look is None:
            return response(404, {"ok": False, "why": "there are /health/live and /health/ready"})
        if method not in ("GET", "HEAD"):
            return response(405, {"ok": False, "why": "only GET and HEAD"})
        checks = look()
        well = is_well(checks)
        body = {"ok": well, "checks": [asdict(each) for each in checks]}
        return response(200 if well else 503, body, with_body=method == "GET")


def read_head(sock: socket, deadline_s: float) -> bytes:
    """A request up to its empty line; empty if the peer closes, is too slow, or says too much."""
    data = b""
    while b"\r\n\r\n" not in data:
        left_s = deadline_s - monotonic()
        if left_s <= 0 or len(data) > REQUEST_BYTES_MAX:
            return b""
        sock.settimeout(left_s)
        piece = sock.recv(REQUEST_BYTES_MAX)
        if not piece:
            return b""
        data += piece
    return data


def response(code: int, value: object, *, with_body: bool = True) -> bytes:
    """A whole answer, after which the connection is closed."""
    body = dumps(value).encode() + b"\n"
    head = (
        f"HTTP/1.1 {code} {_STATUS[code]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
