"""A pool of a fixed number of threads."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, current_thread
from time import monotonic

from troupemq.client.log import client_logger

log = client_logger(__name__)

Task = Callable[[], None]


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
