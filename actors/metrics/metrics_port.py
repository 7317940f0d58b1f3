"""The port of metrics: HTTP for Prometheus, on the loop; the text is made by somebody else.

Owns: the connections of those who scrape.
Told by: the metrics acceptor (`Accepted`), Exposition (`PageMade`, `TakeTime`), its own
tick.
Tells: Exposition, or ClientFigures on its way there (`MakePage`, with what only the loop may look
at).

Nobody who hangs or floods does harm: there are CONNECTIONS_MAX connections, each has HEAD_MS to
ask and SEND_MS to take its answer, and asks once. Who asks for a page that is being made gets it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from select import EPOLLIN, EPOLLOUT
from socket import socket
from time import perf_counter
from typing import Any

from structlog import get_logger

from actors.engine.actor import Actor, handles
from actors.engine.address import Address
from actors.engine.histogram import ClassCounts
from actors.metrics.http_text import (
    PLAIN,
    HttpRefused,
    HttpRequest,
    parse_request,
    refusal,
    response_head,
)
from actors.network.connections import Accepted
from remoting.tls_socket import TlsSocket

log = get_logger(__name__)

CONNECTIONS_MAX = 32
HEAD_MS = 5_000.0
SEND_MS = 30_000.0
TICK_MS = 500.0
RECEIVE_BYTES = 4096
SEND_BYTES = 256 << 10
"""Offered to a socket at a time: the loop goes on with others in between."""


@dataclass(frozen=True, slots=True)
class MakePage:
    """Make the text of a page; `PageMade` to `reply_to`."""

    key: tuple[str, str]
    """Its path, and what is to be collected."""
    reading: Any
    """What the loop has looked at."""
    reply_to: Address

    def refuse(self, remark: str) -> None:
        """Who makes it has failed."""
        text = f"the page cannot be made: {remark}\n".encode()
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        self.reply_to.tell(PageMade(self.key, status, [text], None))


@dataclass(frozen=True, slots=True)
class PageMade:
    """A page, as it is and compressed."""

    key: tuple[str, str]
    status: HTTPStatus
    plain: Sequence[bytes]
    gzip: Sequence[bytes] | None
    content_type: str = PLAIN


Pages = Mapping[str, Mapping[str, Address]]
"""By path, then by what is to be collected: who is told MakePage."""


@dataclass(frozen=True, slots=True)
class TakeTime:
    """Note how long this has waited; told once in a while."""

    told_s: float


@dataclass(frozen=True, slots=True)
class _Tick:
    """Look at the deadlines."""


class Scraper:
    """One connection, from its request to its answer."""

    def __init__(
        self, port: "MetricsPort", sock: socket | TlsSocket, number: int, deadline_ms: float
    ) -> None:
        self.number = number
        self.deadline_ms = deadline_ms
        self.request: HttpRequest | None = None
        self.sock = sock
        self._port = port
        self._received = b""
        self._left: list[memoryview] = []

    def on_readable(self) -> None:
        """Takes what the socket has."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._port.close(self)
        elif self.request is None:
            self._received += data
            try:
                self.request = parse_request(self._received)
            except HttpRefused as error:
                self.answer(refusal(error))
                return
            if self.request is not None:
                self._received = b""
                self._port.asked(self, self.request)

    def answer(self, *buffers: bytes) -> None:
        """Sends this, then closes."""
        self._left = [memoryview(each) for each in buffers if each]
        self.on_writable()

    def on_writable(self) -> None:
        """Sends one piece; the loop comes again."""
        if self._left:
            piece = self._left[0][:SEND_BYTES]
            try:
                sent = self.sock.sendmsg([piece])
            except BlockingIOError:
                sent = 0
            except OSError:
                self._port.close(self)
                return
            self._left[0] = self._left[0][sent:]
            if not self._left[0]:
                del self._left[0]
        if self._left:
            self._port.system.loop.watch(self.sock, EPOLLOUT, self, owner=self._port)
        else:
            self._port.close(self)


class MetricsPort(Actor):
    """Lives on the loop."""

    def __init__(self, pages: Pages, read: Callable[[], object], waits: ClassCounts) -> None:
        """`read` looks at what only the loop may; `waits` gets how long mail to here waits, ms."""
        super().__init__()
        self._pages, self._waits = pages, waits
        self._read = read
        self._scrapers: dict[int, Scraper] = {}
        self._numbers = count(1)
        self._waiting: dict[tuple[str, str], list[Scraper]] = {}
        self.late_count = 0
        """Connections closed because they took too long."""

    def on_start(self) -> None:
        self.every(TICK_MS, _Tick())

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._scrapers)

    @handles(Accepted)
    def on_accepted(self, message: Accepted) -> None:
        """Somebody wants to ask; one too many is closed."""
        if len(self._scrapers) >= CONNECTIONS_MAX or self.stopping:
            message.sock.close()
            return
        deadline_ms = self.system.clock.monotonic_ms() + HEAD_MS
        scraper = Scraper(self, message.sock, next(self._numbers), deadline_ms)
        self._scrapers[scraper.number] = scraper
        self.system.loop.watch(message.sock, EPOLLIN, scraper, owner=self)

    def asked(self, scraper: Scraper, request: HttpRequest) -> None:
        """Has the page made, unless that is under way."""
        scraper.deadline_ms = self.system.clock.monotonic_ms() + SEND_MS
        makers = self._pages.get(request.path)
        if makers is None:
            known = ", ".join(sorted(self._pages))
            scraper.answer(refusal(HttpRefused(HTTPStatus.NOT_FOUND, f"there are {known}")))
            return
        collect = request.query.get("collect", "")
        key = request.path, collect if collect in makers else ""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(scraper)
            return
        self._waiting[key] = [scraper]
        makers[key[1]].tell(MakePage(key, self._read(), self.address))

    @handles(PageMade)
    def on_made(self, message: PageMade) -> None:
        """All who have asked get it."""
        for scraper in self._waiting.pop(message.key, ()):
            request = scraper.request
            if scraper.number not in self._scrapers or request is None:
                continue
            is_gzip = request.takes_gzip and message.gzip is not None
            body = message.gzip if is_gzip and message.gzip is not None else message.plain
            size, kind = sum(map(len, body)), message.content_type
            head = response_head(message.status, size, kind, is_gzip=is_gzip)
            scraper.answer(head, *(() if request.method == "HEAD" else body))

    @handles(TakeTime)
    def on_take_time(self, message: TakeTime) -> None:
        """As long as any other message to the loop would have."""
        self._waits.note((perf_counter() - message.told_s) * 1000)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Closes who takes too long."""
        now_ms = self.system.clock.monotonic_ms()
        for scraper in [*self._scrapers.values()]:
            if scraper.deadline_ms <= now_ms:
                self.late_count += 1
                self.close(scraper)

    def close(self, scraper: Scraper) -> None:
        """Ends one connection."""
        if self._scrapers.pop(scraper.number, None) is not None:
            self.system.loop.unwatch(scraper.sock)
            scraper.sock.close()

    def on_stop(self) -> None:
        self._close_all()

    def on_failure(self, *_: object) -> None:
        """Who scrapes comes again."""
        self._close_all()

    def _close_all(self) -> None:
        for scraper in [*self._scrapers.values()]:
            self.close(scraper)
        self._waiting.clear()
