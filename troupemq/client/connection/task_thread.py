"""Threads of a client: one that runs tasks one by one, or a pool.

TaskThread runs tasks at once, after a delay, or periodically. A consumer's pulling and a client's
housekeeping have one each. Tasks on one thread need no locks against each other.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Protocol, TypeVar

from troupemq.client.log import client_logger

log = client_logger(__name__)

Task = Callable[[], None]
Value = TypeVar("Value")


class Tasks(Protocol):
    """A runner of tasks: a TaskThread, or a fake with a virtual clock in tests."""

    def post(self, task: Task) -> None:
        """Run `task` after those posted before it."""

    def apart(self, work: Callable[[], Value], then: Callable[[Value], object]) -> None:
        """Call `then` with the result of work that takes long, as a task of this runner."""

    def later(self, delay_ms: float, task: Task) -> None:
        """Run `task` after `delay_ms`."""

    def every(self, interval_ms: float, task: Task, *, first_ms: float = 0) -> None:
        """Run `task` after `first_ms`, then `interval_ms` after each of its ends."""


class TaskThread:
    """A thread between `start` and `stop`; it accepts tasks before `start`. For any thread."""

    def __init__(self, name: str) -> None:
        self._due: list[tuple[float, int, Task]] = []
        self._order = count()
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Drop waiting tasks and wait for the running one; return False on timeout."""
        with self._changed:
            self._stopped = True
            self._due.clear()
            self._changed.notify()
        if self._thread.is_alive() and current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def post(self, task: Task) -> None:
        self.later(0, task)

    def apart(self, work: Callable[[], Value], then: Callable[[Value], object]) -> None:
        then(work())

    def later(self, delay_ms: float, task: Task) -> None:
        due_s = monotonic() + delay_ms / 1000
        with self._changed:
            if not self._stopped:
                heappush(self._due, (due_s, next(self._order), task))
                self._changed.notify()

    def every(self, interval_ms: float, task: Task, *, first_ms: float = 0) -> None:
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
            except BaseException:  # also for sys.exit: a task must not silently end the thread
                log.error("task failed", thread=self._thread.name, exc_info=True)


class Workers:
    """A pool of threads between `start` and `stop`; tasks start in order."""

    def __init__(self, name: str, count: int) -> None:
        self.count = count
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def run(self, task: Task) -> None:
        self._tasks.put(task)

    def stop(self, timeout_s: float) -> bool:
        """End the threads after all queued tasks; return False on timeout."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline_s = monotonic() + timeout_s
        others = [thread for thread in self._threads if thread is not current_thread()]
        for thread in others:
            if thread.ident is not None:
                thread.join(max(0.0, deadline_s - monotonic()))
        return not any(thread.is_alive() for thread in others)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException:  # also for sys.exit: a task must not end a thread of the pool
                log.error("task failed", exc_info=True)
