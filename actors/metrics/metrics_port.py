"""Entry point for metrics pages: reads on the loop, has the text written elsewhere.

Owns: the waiting requests for each page.
Receives: AskPage from page server threads; PageMade and TakeTime from MetricsRenderer.
Sends: MakePage to MetricsRenderer, directly or through ClientFigures.

A request for a page in progress shares its result.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from queue import Empty, SimpleQueue
from time import perf_counter

from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import ClassCounts
from actors.metrics.http_text import HttpRefused, HttpRequest
from actors.metrics.messages import AskPage, MakePage, PageMade, TakeTime
from actors.metrics.page_server import Page, PageAnswer

MAKE_S = 30.0
"""Timeout of a request for a page."""


Makers = Mapping[str, Mapping[str, ActorAddress]]
"""Receivers of MakePage, by path, then by the value of `collect`."""


class MetricsPort(Actor):
    """Receiver of scrapes, on the loop; it lets MetricsRenderer make each page once at a time."""

    def __init__(self, makers: Makers, read: Callable[[], object], waits: ClassCounts) -> None:
        """Create the actor.

        `read` returns what only the loop may read; `waits` counts how long a message waits here,
        ms.
        """
        super().__init__()
        self._makers, self._read, self._waits = makers, read, waits
        self._waiting: dict[tuple[str, str], list[AskPage]] = {}

    @handles(AskPage)
    def on_ask(self, message: AskPage) -> None:
        """Request the page, unless it is in progress."""
        makers = self._makers[message.path]
        key = message.path, message.collect if message.collect in makers else ""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(message)
            return
        self._waiting[key] = [message]
        makers[key[1]].tell(MakePage(key, self._read(), self.address))

    @handles(PageMade)
    def on_made(self, message: PageMade) -> None:
        """Answer all requests for the page."""
        for each in self._waiting.pop(message.key, ()):
            each.reply(message.answer)

    @handles(TakeTime)
    def on_take_time(self, message: TakeTime) -> None:
        """Count the wait, which is that of any message to the loop."""
        self._waits.note((perf_counter() - message.told_s) * 1000)

    def on_stop(self) -> None:
        self._refuse_all("the server stops")

    def on_failure(self, *_: object) -> None:
        """Refuse all requests; the next scrape asks again."""
        self._refuse_all(self.remark())

    def _refuse_all(self, remark: str) -> None:
        for waiting in self._waiting.values():
            for each in waiting:
                each.on_undelivered(remark)
        self._waiting.clear()


def page_of(port: ActorAddress) -> Page:
    """Return a Page that MetricsPort provides."""

    def page(request: HttpRequest) -> PageAnswer:
        made: SimpleQueue[PageAnswer] = SimpleQueue()
        port.tell(AskPage(request.path, request.query.get("collect", ""), made.put))
        try:
            return made.get(timeout=MAKE_S)
        except Empty:
            why = f"page not rendered within {MAKE_S:.0f} s: retry later"
            raise HttpRefused(HTTPStatus.SERVICE_UNAVAILABLE, why) from None

    return page
