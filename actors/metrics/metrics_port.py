"""The pages of metrics as they are asked for: the loop looks, somebody else makes the text.

Owns: who waits for which page.
Told by: the page server's threads (`AskPage`), MetricsRenderer (`PageMade`, `TakeTime`).
Tells: MetricsRenderer, or ClientFigures on its way there (`MakePage`, with what only the loop may
look at).

Who asks for a page that is being made gets it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.histogram import ClassCounts
from actors.metrics.http_text import HttpRefused, HttpRequest
from actors.metrics.page_server import Page, PageAnswer

MAKE_S = 30.0
"""How long who asks waits for a page."""


@dataclass(frozen=True, slots=True)
class AskPage:
    """A page is wanted; `reply` is called with it."""

    path: str
    collect: str
    reply: Callable[[PageAnswer], None]

    def refuse(self, remark: str) -> None:
        """Nobody has it made."""
        self.reply(not_made(remark))


@dataclass(frozen=True, slots=True)
class MakePage:
    """Make the text of a page; `PageMade` to `reply_to`."""

    key: tuple[str, str]
    """Its path, and what is to be collected."""
    reading: Any
    """What the loop has looked at."""
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """Who makes it has failed."""
        self.reply_to.tell(PageMade(self.key, not_made(remark)))


@dataclass(frozen=True, slots=True)
class PageMade:
    """A page."""

    key: tuple[str, str]
    answer: PageAnswer


Makers = Mapping[str, Mapping[str, ActorAddress]]
"""By path, then by what is to be collected: who is told MakePage."""


@dataclass(frozen=True, slots=True)
class TakeTime:
    """Note how long this has waited; told once in a while."""

    told_s: float


class MetricsPort(Actor):
    """Lives on the loop."""

    def __init__(self, makers: Makers, read: Callable[[], object], waits: ClassCounts) -> None:
        """`read` looks at what only the loop may; `waits` gets how long mail to here waits, ms."""
        super().__init__()
        self._makers, self._read, self._waits = makers, read, waits
        self._waiting: dict[tuple[str, str], list[AskPage]] = {}

    @handles(AskPage)
    def on_ask(self, message: AskPage) -> None:
        """Has the page made, unless that is under way."""
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
        """All who have asked get it."""
        for each in self._waiting.pop(message.key, ()):
            each.reply(message.answer)

    @handles(TakeTime)
    def on_take_time(self, message: TakeTime) -> None:
        """As long as any other message to the loop would have."""
        self._waits.note((perf_counter() - message.told_s) * 1000)

    def on_stop(self) -> None:
        self._refuse_all("the server stops")

    def on_failure(self, *_: object) -> None:
        """Who scrapes comes again."""
        self._refuse_all(self.remark())

    def _refuse_all(self, remark: str) -> None:
        for waiting in self._waiting.values():
            for each in waiting:
                each.refuse(remark)
        self._waiting.clear()


def page_of(port: ActorAddress) -> Page:
    """A page that MetricsPort has made."""

    def page(request: HttpRequest) -> PageAnswer:
        made: SimpleQueue[PageAnswer] = SimpleQueue()
        port.tell(AskPage(request.path, request.query.get("collect", ""), made.put))
        try:
            return made.get(timeout=MAKE_S)
        except Empty:
            why = f"the page was not made within {MAKE_S:.0f} s"
            raise HttpRefused(HTTPStatus.SERVICE_UNAVAILABLE, why) from None

    return page


def not_made(remark: str) -> PageAnswer:
    """In the place of a page that could not be made."""
    text = f"the page cannot be made: {remark}\n".encode()
    return PageAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, text)
