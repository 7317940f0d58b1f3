"""MetricsRenderer: makes the text of a page of metrics.

Owns: what the pages remember from one scrape to the next.
Told by: MetricsPort or ClientFigures (`MakePage`), its own tick.
Tells: who asked (`PageMade`); MetricsPort (`TakeTime`).

On a thread, so that the loop goes on. Who asks again within FRESH_S gets the same page.
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
from actors.metrics.metrics_port import MakePage, PageMade, TakeTime
from actors.metrics.packed import Packed
from actors.metrics.page import CONTENT_TYPE
from actors.metrics.page_server import PageAnswer

FRESH_S = 1.0
SWITCH_S = 0.0001
"""While a page is made: after each call of the system the loop waits that long to go on. (To sleep
for a moment every 0.25 ms instead cost 0.05 s of processor a page; and who woke up too late for it
began to wait anew.)"""

Write = Callable[[str, object], Packed]
"""Writes a page: what is to be collected, and what the loop has looked at."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Look at the actors."""


class MetricsRenderer(Actor):
    """Runs on a thread."""

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
        """What only somebody sees who looks more often than one scrapes."""
        self._actors.look()
        self._port.tell(TakeTime(perf_counter()))

    @handles(MakePage, reads_only=True)
    def on_make_page(self, message: MakePage) -> None:
        """Makes it, unless it was made a moment ago."""
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
    """Who waits for the interpreter gets it after SWITCH_S, not SWITCH_INTERVAL_S of daemon.py."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
