"""Renderer of metrics pages, on a thread so that the loop goes on.

Owns: the state of the pages between scrapes.
Receives: MakePage from MetricsPort or ClientFigures, its own tick.
Sends: PageMade to the requesting actor, TakeTime to MetricsPort.

A request within FRESH_S gets the same page.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic, perf_counter
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.short_collections import without_collections
from actors.metrics.actor_figures import LOOK_MS, ActorFamilies
from actors.metrics.messages import MakePage, PageMade, TakeTime
from actors.metrics.page import CONTENT_TYPE, Packed
from actors.metrics.page_server import PageAnswer
from actors.metrics.sources import FigureSet

FRESH_S = 1.0
SWITCH_S = 0.0001
"""Interpreter switch interval during a page: longest wait of the loop after a system call.

The alternative, a short sleep every 0.25 ms, cost 0.05 s of CPU time per page. Moreover, a thread
that woke up too late for a sleep had to wait for the next.
"""

Write = Callable[[str, FigureSet], Packed]
"""Writer of a page: takes the value of `collect` and the figures of actors."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Sample the actors."""


class MetricsRenderer(Actor):
    where: ClassVar[Where] = "thread"

    def __init__(
        self, pages: Mapping[str, Write], actors: ActorFamilies, port: ActorAddress
    ) -> None:
        super().__init__()
        self._pages, self._actors, self._port = pages, actors, port
        self._made: dict[tuple[str, str], tuple[float, PageMade]] = {}

    def on_start(self) -> None:
        self.every(LOOK_MS, _Look())

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Sample what changes faster than scrapes come."""
        self._actors.look()
        self._port.tell(TakeTime(perf_counter()))

    @handles(MakePage, reads_only=True)
    def on_make_page(self, message: MakePage) -> None:
        """Render the page, unless a fresh one exists."""
        path, collect = message.key
        made_s, made = self._made.get(message.key, (0.0, None))
        if made is None or monotonic() - made_s >= FRESH_S:
            with without_collections(), short_switches():
                text = self._pages[path](collect, message.reading)
            made = PageMade(message.key, PageAnswer(HTTPStatus.OK, text, CONTENT_TYPE))
            self._made[message.key] = monotonic(), made
        message.reply_to.tell(made)


@contextmanager
def short_switches() -> Iterator[None]:
    """Set the switch interval to SWITCH_S, instead of SWITCH_INTERVAL_S of daemon.py."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
