"""Processes that read the log ahead at a start, so that recovery has all processors.

Not an actor: it is there before the actors are, and gone when the store is open. A short log is
read here (`HERE_BYTES`), and so is what a process leaves undone that has ended.
"""

import os
import sys
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from structlog import get_logger

from storage.log.reader import LogReader
from storage.recovery import part_worker
from storage.recovery.log_parts import PartOrder, PartsHere, PartSource, ReadPart

log = get_logger(__name__)

HERE_BYTES = 32 << 20
"""Read by this process first: to start others takes as long."""
WORKERS_MAX = 8
"""This process can put together what so many read."""
PIPE_BYTES = 1 << 20
"""What an unprivileged pipe can hold at most: a part, so that its worker goes on."""


def open_parts(order: PartOrder, reader: LogReader) -> PartSource:
    """Readers on all processors that this process may use."""
    workers = min(len(os.sched_getaffinity(0)), WORKERS_MAX)
    return PartsHere(order, reader) if workers < 2 else PartPool(order, reader, workers)


class PartPool:
    """Stretches of the log, each read by the next of some processes in turn."""

    def __init__(
        self, order: PartOrder, reader: LogReader, workers: int, here_bytes: int = HERE_BYTES
    ) -> None:
        self.order = order
        self._here = PartsHere(order, reader)
        self._first = order.border(order.start + here_bytes)
        self._count = workers
        self._workers: list[_Worker] = []
        self._stretches = order.stretches(self._first)
        self._stretch = -1
        self._next_begin = next(self._stretches, order.end)

    def at(self, offset: int) -> ReadPart | None:
        """As PartSource. The part of a stretch is given once."""
        if offset < self._first or offset >= self.order.end:
            return self._here.at(offset)
        while self._next_begin <= offset:
            self._stretch += 1
            self._next_begin = next(self._stretches, self.order.end)
        if not self._workers:
            self._start()
        try:
            number, turn = self._stretch % self._count, self._stretch // self._count
            part = self._workers[number].part(turn)
        except (EOFError, OSError):
            return self._here.at(offset)
        return part if part is not None and part.start == offset else None

    def _start(self) -> None:
        log.info("reading the log", processes=self._count, position=self._first)
        for number in range(self._count):
            argument = part_worker.argument(self.order, self._first, number, self._count)
            self._workers.append(_Worker(argument))

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker:
    """One process."""

    def __init__(self, argument: str) -> None:
        module = part_worker.__name__
        root = Path(part_worker.__file__).parents[module.count(".")]
        self._process = Popen(
            [sys.executable, "-m", module, argument],
            stdin=DEVNULL,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        with suppress(OSError):
            fcntl(self._output.fileno(), F_SETPIPE_SZ, PIPE_BYTES)
        self._taken = 0

    def part(self, turn: int) -> ReadPart | None:
        """The part of its stretch number `turn`. Raises EOFError if it cannot be had."""
        if self._taken > turn:
            return None
        while self._taken < turn:
            part_worker.read_packed(self._output.read)
            self._taken += 1
        self._taken += 1
        return part_worker.read_packed(self._output.read)

    def kill(self) -> None:
        """What it has written by then can still be read."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        self._output.close()
