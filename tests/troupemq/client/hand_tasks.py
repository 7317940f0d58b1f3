"""Virtual time for the client: tasks run when the test winds the clock, in the test's thread."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from troupemq.client.connection.calls import Blocking, Flow, Value, drive
from troupemq.client.connection.client import ThreadFlows
from troupemq.client.connection.task_thread import Workers


def run_here(flow: Flow[Value]) -> Value:
    """Return the result of a flow that asks no server."""
    return drive(flow, carry_out_here)


def carry_out_here(wanted: Any) -> object:
    assert isinstance(wanted, Blocking), wanted
    return wanted.work()


class HandTasks:
    """A TaskThread with a virtual clock, `now_s`."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def now_s(self) -> float:
        return self._now_s

    def post(self, task: Callable[[], None]) -> None:
        self.later(0, task)

    def apart(self, work: Callable[[], Value], then: Callable[[Value], object]) -> None:
        then(work())

    def later(self, delay_ms: float, task: Callable[[], None]) -> None:
        heappush(self._due, (self._now_s + delay_ms / 1000, next(self._order), task))

    def every(self, interval_ms: float, task: Callable[[], None], *, first_ms: float = 0) -> None:
        def again() -> None:
            task()
            self.later(interval_ms, again)

        self.later(first_ms, again)

    def advance(self, ms: float) -> None:
        """Winds the clock, and runs what gets due on the way."""
        end_s = self._now_s + ms / 1000
        while self._due and self._due[0][0] <= end_s:
            due_s, _, task = heappop(self._due)
            self._now_s = max(self._now_s, due_s)
            task()
        self._now_s = max(self._now_s, end_s)


class HandWorkers(Workers):
    """Workers without threads: a task runs where the test winds."""

    def __init__(self, tasks: HandTasks) -> None:
        super().__init__("hand", 0)
        self._hand = tasks

    def run(self, task: Callable[[], None]) -> None:
        self._hand.post(task)


def hand_flows(tasks: HandTasks) -> ThreadFlows:
    """Return a runner of flows that ask no server."""
    return ThreadFlows(tasks, run_here)
