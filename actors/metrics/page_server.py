r"""Small HTTP server for scrapes and probes, one request per connection.

It needs no actors, because health opens it before the actors start. One thread accepts connections,
and one thread for each connection answers. Slow or many clients do no harm: at most CONNECTIONS_MAX
are open at a time. Each has HEAD_S for its TLS handshake and request, and SEND_S to read the
response.

Requests are HTTP/1.1, GET or HEAD:

GET /metrics?collect=own HTTP/1.1 \\r\\n  name: value \\r\\n  …  \\r\\n
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain
from select import POLLIN, POLLOUT, poll
from socket import MSG_PEEK, SHUT_RDWR, socket
from ssl import SSLContext, SSLWantReadError, SSLWantWriteError
from threading import BoundedSemaphore, Event, Lock, Thread
from time import monotonic
from urllib.parse import parse_qsl, urlsplit

from actors.metrics.page import Packed
from actors.network.bind_address import KnownHosts
from actors.network.tls_contexts import TlsContexts
from remoting.sync_connection import left_s
from remoting.tls import HANDSHAKE_BYTE
from remoting.tls_socket import TlsSocket

HEAD_BYTES_MAX = 8 << 10
PLAIN = "text/plain; charset=utf-8"
_END = b"\r\n\r\n"
_WORDS = 3
_QUERY_FIELDS_MAX = 16


class HttpRefused(Exception):
    """Request to refuse with `status` and the sentence `why`."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    takes_gzip: bool = False
    host: str | None = field(default=None, compare=False)
    """Value of the Host header, or None."""


def parse_request(data: bytes) -> HttpRequest | None:
    """Return the request at the start of `data`, or None if its head is incomplete.

    Raises HttpRefused if the request is invalid.
    """
    head, end, _ = data.partition(_END)
    if not end:
        if len(data) > HEAD_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise HttpRefused(status, f"request head exceeds {HEAD_BYTES_MAX} bytes")
        return None
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != _WORDS or not words[2].startswith("HTTP/1."):
        raise HttpRefused(HTTPStatus.BAD_REQUEST, "invalid request line")
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        raise HttpRefused(HTTPStatus.METHOD_NOT_ALLOWED, "method not supported: use GET or HEAD")
    headers = _headers(lines[1:])
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, max_num_fields=_QUERY_FIELDS_MAX))
    except ValueError:
        raise HttpRefused(HTTPStatus.BAD_REQUEST, "invalid URL") from None
    takes_gzip = "gzip" in headers.get("accept-encoding", "").lower()
    return HttpRequest(method, parts.path, query, takes_gzip, headers.get("host"))


def _headers(lines: list[str]) -> Mapping[str, str]:
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise HttpRefused(HTTPStatus.BAD_REQUEST, "invalid header line: the colon is missing")
        found[name.strip().lower()] = value.strip()
    return found


def response_head(
    status: HTTPStatus, body_bytes: int, content_type: str = PLAIN, *, is_gzip: bool = False
) -> bytes:
    """Return the status line and the headers."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {body_bytes}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if is_gzip:
        lines.append("Content-Encoding: gzip")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def refusal(error: HttpRefused) -> bytes:
    """Return a whole response that states the reason."""
    body = f"{error.why}\n".encode()
    return response_head(error.status, len(body)) + body


BROKER_PATH, EXPORTER_PATH = "/metrics", "/metrics/exporter"
CONNECTIONS_MAX = 32
HEAD_S = 5.0
SEND_S = 30.0
ACCEPT_AGAIN_S = 1.0
"""Pause after a connection could not be accepted."""
LOOK_S = 1.0
"""Minimum interval between checks of the TLS files."""
RECEIVE_BYTES = 4096
SEND_BYTES = 256 << 10


UNKNOWN_HOST = "unknown host name: add it to monitoringHosts"


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """Response of a page."""

    status: HTTPStatus
    body: bytes | Packed
    content_type: str = PLAIN


Page = Callable[[HttpRequest], PageAnswer]
"""Function that makes a response, on the connection's thread; may raise HttpRefused."""


class PageTls:
    """TLS of a page port; changed certificates are reloaded."""

    def __init__(self, contexts: TlsContexts, *, takes_plain: bool) -> None:
        """Create it; only this port may use `contexts`, as it reloads their files."""
        self.takes_plain = takes_plain
        self._contexts = contexts
        self._lock = Lock()
        self._looked_s = monotonic()

    def wrap(self, sock: socket) -> "_WaitingTls":
        """Return the socket with the newest certificate, before its handshake."""
        with self._lock:
            if monotonic() - self._looked_s >= LOOK_S:
                self._looked_s = monotonic()
                self._contexts.look()
            context = self._contexts.server
        assert context is not None
        return _WaitingTls(sock, context)


class _WaitingTls:
    """TLS with the calls of a blocking socket and a firm deadline for each call.

    OpenSSL alone would read on as long as records without data arrive.
    """

    def __init__(self, sock: socket, context: SSLContext) -> None:
        sock.setblocking(False)
        self._sock = TlsSocket(sock, context)
        self._end_s = monotonic()

    def settimeout(self, timeout_s: float) -> None:
        """Set the deadline of all calls from now on."""
        self._end_s = monotonic() + timeout_s

    def do_handshake(self) -> None:
        """Complete the handshake.

        Raises TimeoutError or another OSError, like the other calls.
        """
        while True:
            try:
                return self._sock.do_handshake()
            except SSLWantReadError:
                self._wait(POLLIN)
            except SSLWantWriteError:
                self._wait(POLLOUT)

    def recv(self, size_bytes: int) -> bytes:
        """Return about `size_bytes` bytes at most."""
        while True:
            try:
                return self._sock.recv(size_bytes)
            except BlockingIOError:
                self._wait(POLLIN)

    def send(self, data: memoryview) -> int:
        """Return the number of bytes sent; the next call must repeat the rest."""
        while True:
            try:
                return self._sock.sendmsg((data,))
            except BlockingIOError:
                self._wait(POLLOUT)

    def _wait(self, events: int) -> None:
        waiting = poll()
        waiting.register(self._sock.fileno(), events)
        waiting.poll(left_s(self._end_s) * 1000)


class PageServer:
    """Server that answers from its creation until `close`; pages may change meanwhile."""

    def __init__(
        self, sock: socket, tls: PageTls | None = None, hosts: KnownHosts | None = None
    ) -> None:
        """Serve at the listening `sock`.

        `hosts` are the permitted host names, besides addresses.
        """
        self._socket, self._tls = sock, tls
        self._hosts = hosts or KnownHosts()
        sock.setblocking(True)
        self.port: int = sock.getsockname()[1]
        self.late_count = 0
        """Connections closed because they exceeded a deadline."""
        self._pages: dict[str, Page] = {}
        self._free = BoundedSemaphore(CONNECTIONS_MAX)
        self._closed = Event()
        self._thread = Thread(target=self._accept, name=f"pages at {self.port}", daemon=True)
        self._thread.start()

    def add(self, pages: Mapping[str, Page]) -> None:
        self._pages = {**self._pages, **pages}

    def remove(self, paths: Sequence[str]) -> None:
        self._pages = {path: page for path, page in self._pages.items() if path not in paths}

    def close(self) -> None:
        """Stop accepting; connections in progress are still answered."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)  # wakes the accepting thread
        self._thread.join()
        self._socket.close()

    # --- one connection

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # closed, or out of descriptors for now
                if self._closed.wait(ACCEPT_AGAIN_S):
                    return
                continue
            if not self._free.acquire(blocking=False):
                sock.close()
                continue
            try:
                Thread(target=self._serve, args=(sock,), name="page", daemon=True).start()
            except RuntimeError:  # the system has no thread left
                sock.close()
                self._free.release()

    def _serve(self, sock: socket) -> None:
        try:
            with suppress(OSError), sock:
                self._answer_at(sock)
        finally:
            self._free.release()

    def _answer_at(self, sock: socket) -> None:
        deadline_s = monotonic() + HEAD_S
        try:
            sock.settimeout(HEAD_S)
            if self._tls is not None:
                first = sock.recv(1, MSG_PEEK)
                if first and first[0] == HANDSHAKE_BYTE:
                    talking = self._tls.wrap(sock)
                    talking.settimeout(left_s(deadline_s))
                    talking.do_handshake()
                    self._talk(talking, deadline_s)
                    return
                if not self._tls.takes_plain:
                    return
            self._talk(sock, deadline_s)
        except TimeoutError:
            self.late_count += 1

    def _talk(self, sock: socket | _WaitingTls, deadline_s: float) -> None:
        _send(sock, self._buffers(sock, deadline_s), monotonic() + SEND_S)

    def _buffers(self, sock: socket | _WaitingTls, deadline_s: float) -> Iterable[bytes]:
        """Read a request and return the response; empty if the client closes."""
        data = b""
        try:
            while (request := parse_request(data)) is None:
                sock.settimeout(left_s(deadline_s))
                piece = sock.recv(RECEIVE_BYTES)
                if not piece:
                    return ()
                data += piece
            if request.host and not self._hosts.knows(request.host):
                raise HttpRefused(HTTPStatus.MISDIRECTED_REQUEST, UNKNOWN_HOST)
            page = self._pages.get(request.path)
            if page is None:
                known = ", ".join(sorted(self._pages)) or "no page yet"
                raise HttpRefused(HTTPStatus.NOT_FOUND, f"page not found; available: {known}")
            answer = page(request)
        except HttpRefused as error:
            return (refusal(error),)
        is_gzip, body = False, answer.body
        if isinstance(body, bytes):
            size, buffers = len(body), iter((body,))
        elif request.takes_gzip:
            is_gzip, size, buffers = True, sum(map(len, body.parts)), iter(body.parts)
        else:
            size, buffers = body.size, body.unpacked()
        head = response_head(answer.status, size, answer.content_type, is_gzip=is_gzip)
        return (head,) if request.method == "HEAD" else chain((head,), buffers)


def _send(sock: socket | _WaitingTls, buffers: Iterable[bytes], deadline_s: float) -> None:
    for buffer in buffers:
        left = memoryview(buffer)
        while left:
            sock.settimeout(left_s(deadline_s))
            left = left[sock.send(left[:SEND_BYTES]) :]
