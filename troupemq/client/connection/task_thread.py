"""A thread that runs what it is given, now, later or every so often, one thing after another.

A consumer's pulling and a client's housekeeping each have one: whatever runs on it needs no lock
against what else runs on it.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Protocol

from troupemq.client.log import client_logger

log = client_logger(__name__)

Task = Callable[[], None]


class Tasks(Protocol):
    """What runs tasks: a TaskThread, or a test that winds its clock by hand."""

    def post(self, task: Task) -> None:
        """Runs `task` after those posted before it."""

    def later(self, delay_ms: float, task: Task) -> None:
        """Runs `task` in `delay_ms`."""

    def every(self, interval_ms: float, task: Task, *, first_ms: float = 0) -> None:
        """Runs `task` in `first_ms`, and `interval_ms` after each of its ends."""


class TaskThread:
    """Starts with `start`, ends with `stop`; tasks given before the start wait for it."""

    def __init__(self, name: str) -> None:
        self._due: list[tuple[float, int, Task]] = []
        self._order = count()
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Drops what has not begun and waits for what has; False if that takes too long."""
        with self._changed:
            self._stopped = True
            self._due.clear()
            self._changed.notify()
        if self._thread.is_alive() and current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def post(self, task: Task) -> None:
        """Runs `task` after those posted before it. Ignored once stopped."""
        self.later(0, task)

    def later(self, delay_ms: float, task: Task) -> None:
        """Runs `task` in `delay_ms`."""
        due_s = monotonic() + delay_ms / 1000
        with self._changed:
            if not self._stopped:
                heappush(self._due, (due_s, next(self._order), task))
                self._changed.notify()

    def every(self, interval_ms: float, task: Task, *, first_ms: float = 0) -> None:
        """Runs `task` in `first_ms`, and `interval_ms` after each of its ends."""

        def again() -> None:
            try:
                task()
            finally:
                self.later(interval_ms, again)

        self.later(first_ms, again)

    def _next(self) -> Task | None:
        with self._changed:
            while not self._stopped:
                wait_s = self._due[0][0] - monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heappop(self._due)[2]
                self._changed.wait(wait_s)
            return None

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except Exception:  # a failed task must not end the ones after it: nobody would notice
                log.error("a task failed", thread=self._thread.name, exc_info=True)
