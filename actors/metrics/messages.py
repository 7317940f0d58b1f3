"""Messages between MetricsPort, ClientFigures and MetricsRenderer."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.metrics.page_server import PageAnswer
from actors.metrics.sources import FigureSet


@dataclass(frozen=True, slots=True)
class AskPage(Message):
    """Request for a page; `reply` is called with it, or with an error page."""

    path: str
    collect: str
    reply: Callable[[PageAnswer], None]

    def on_undelivered(self, remark: str) -> None:
        self.reply(not_made(remark))


@dataclass(frozen=True, slots=True)
class MakePage(Message):
    """Render a page and send PageMade to `reply_to`."""

    key: tuple[str, str]
    """(path, value of `collect`)."""
    reading: FigureSet
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        self.reply_to.tell(PageMade(self.key, not_made(remark)))


@dataclass(frozen=True, slots=True)
class PageMade:
    """The rendered page, or an error page."""

    key: tuple[str, str]
    answer: PageAnswer


@dataclass(frozen=True, slots=True)
class TakeTime:
    """Probe of the loop: count the time since `told_s`."""

    told_s: float


def not_made(remark: str) -> PageAnswer:
    """Return the error response for a page that was not rendered."""
    text = f"page not rendered: {remark}\n".encode()
    return PageAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, text)
