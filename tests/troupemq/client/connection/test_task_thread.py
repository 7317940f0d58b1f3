"""Tasks run one after the other; a failed one does not end the rest."""

import sys
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import get_ident

import pytest

from troupemq.client.connection.task_thread import TaskThread

WAIT_S = 10.0


@pytest.fixture
def thread() -> Iterator[TaskThread]:
    made = TaskThread("test")
    made.start()
    yield made
    assert made.stop(WAIT_S)


def test_tasks_run_in_order_on_one_thread(thread: TaskThread) -> None:
    seen: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for number in range(100):
        thread.post(lambda number=number: seen.put((number, get_ident())))  # type: ignore[misc]
    got = [seen.get(timeout=WAIT_S) for _ in range(100)]
    assert [number for number, _ in got] == list(range(100))
    assert len({ident for _, ident in got}) == 1


@pytest.mark.parametrize("fails", [lambda: int("none"), lambda: sys.exit(1)])
def test_a_failed_task_does_not_end_the_rest(thread: TaskThread, fails: Callable[[], None]) -> None:
    """With sys.exit in an assignment rule, heartbeats and commits ended without a word."""
    seen: SimpleQueue[str] = SimpleQueue()
    thread.post(fails)
    thread.post(lambda: seen.put("after"))
    assert seen.get(timeout=WAIT_S) == "after"


def test_tasks_run_in_due_order(thread: TaskThread) -> None:
    seen: SimpleQueue[str] = SimpleQueue()
    thread.later(60, lambda: seen.put("later"))
    thread.later(5, lambda: seen.put("sooner"))
    assert [seen.get(timeout=WAIT_S) for _ in range(2)] == ["sooner", "later"]


def test_a_repeated_task_continues_after_a_failure(thread: TaskThread) -> None:
    seen: SimpleQueue[int] = SimpleQueue()
    turns = iter(range(100))

    def task() -> None:
        turn = next(turns)
        seen.put(turn)
        if turn == 0:
            raise ValueError(turn)

    thread.every(1, task)
    assert [seen.get(timeout=WAIT_S) for _ in range(3)] == [0, 1, 2]


def test_no_task_runs_after_the_stop() -> None:
    thread = TaskThread("test")
    thread.start()
    assert thread.stop(WAIT_S)
    thread.post(lambda: pytest.fail("ran"))
