"""Entry point for metrics pages: asks the actors for figures, has the text written elsewhere.

Owns: the waiting requests for each page.
Receives: AskPage from page server threads; figures from the asked actors; PageMade and TakeTime
from MetricsRenderer.
Sends: AskFigures to actors on the loop; MakePage to MetricsRenderer, directly or through
ClientFigures.

A request for a page in progress shares its result. A page waits for all actors that run when it is
requested. They are on the loop, so that takes a round; after a failure it takes until the restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from queue import Empty, SimpleQueue
from time import perf_counter

from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import ClassCounts
from actors.metrics.messages import AskPage, MakePage, PageMade, TakeTime
from actors.metrics.page_server import HttpRefused, HttpRequest, Page, PageAnswer
from actors.metrics.sources import FigureSet

MAKE_S = 30.0
"""Timeout of a request for a page."""


Makers = Mapping[str, Mapping[str, ActorAddress]]
"""Receivers of MakePage, by path, then by the value of `collect`."""


@dataclass(slots=True, eq=False)
class _Gathering:
    """A page that waits for the figures of `owed` actors."""

    key: tuple[str, str]
    owed: int
    found: dict[type, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Told:
    """Figures of one actor, None if it refused."""

    gathering: _Gathering
    figures: object


class MetricsPort(Actor):
    """Receiver of scrapes, on the loop; it lets MetricsRenderer make each page once at a time."""

    def __init__(
        self, makers: Makers, asked: Mapping[str, Sequence[str]], waits: ClassCounts
    ) -> None:
        """Create the actor.

        `asked` names the actors with figures for each path; `waits` counts how long a message waits
        here, ms.
        """
        super().__init__()
        self._makers, self._asked, self._waits = makers, asked, waits
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
        asked = self.system.up(self._asked[message.path])
        gathering = _Gathering(key, len(asked))
        for each in asked:
            each.tell(AskFigures(partial(self._told, gathering)))
        if not asked:
            self._make(gathering)

    def _told(self, gathering: _Gathering, figures: object) -> None:
        """Send the figures to this actor. Any thread."""
        self.address.tell(_Told(gathering, figures))

    @handles(_Told)
    def on_told(self, message: _Told) -> None:
        """Add the figures of one actor; the last ones complete the reading."""
        gathering = message.gathering
        if message.figures is not None:
            gathering.found[type(message.figures)] = message.figures
        gathering.owed -= 1
        if not gathering.owed:
            self._make(gathering)

    def _make(self, gathering: _Gathering) -> None:
        path, collect = key = gathering.key
        self._makers[path][collect].tell(MakePage(key, FigureSet(gathering.found), self.address))

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
