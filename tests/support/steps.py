"""Processor time of the longest step of an event loop, or of a client's I/O thread."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from selectors import DefaultSelector
from time import thread_time
from typing import Any

import pytest

from actors.engine.short_collections import set_aside, short_collections
from troupemq.client.connection import remoting

STEP_MS_MAX = 50.0
"""Limit of a step, as docs/security.md says."""


@dataclass
class Longest:
    """Milliseconds of the longest step so far."""

    ms: float = 0.0

    def took(self, since_s: float) -> None:
        self.ms = max(self.ms, 1000 * (thread_time() - since_s))


@contextmanager
def steps_of_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Longest]:
    """Measure the callbacks of all loops of asyncio."""
    longest, run = Longest(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        begun_s = thread_time()
        try:
            run(handle)
        finally:
            longest.took(begun_s)

    with short_collections(), monkeypatch.context() as patched:
        set_aside()  # what other tests have left, which a collection would visit
        patched.setattr(asyncio.Handle, "_run", measured)
        yield longest


@contextmanager
def steps_of_io_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Longest]:
    """Measure what clients' I/O threads do between two looks at their sockets."""
    longest = Longest()

    class Selector(DefaultSelector):
        """Selector that measures the time from each result to the next look."""

        since_s: float | None = None

        def select(self, timeout: float | None = None) -> Any:
            if self.since_s is not None:
                longest.took(self.since_s)
            found = super().select(timeout)
            self.since_s = thread_time()
            return found

    with short_collections(), monkeypatch.context() as patched:
        set_aside()  # what other tests have left, which a collection would visit
        patched.setattr(remoting, "DefaultSelector", Selector)
        yield longest
