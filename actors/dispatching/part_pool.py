"""Worker processes that read the commit log ahead, on all processors.

Not an actor: recovery uses a pool before actors exist, CatchUp while the index is far behind. If a
worker ends early, its caller reads the rest.
"""

import os
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from subprocess import DEVNULL, PIPE, Popen
from typing import Generic

from actors.engine.server_log import get_logger
from storage.child_python import child_command, child_environment
from storage.index.key_columns import KeyPart
from storage.log.reader import LogReader
from storage.recovery import part_worker
from storage.recovery.log_chunks import (
    ChunkSource,
    P_co,
    PartOrder,
    PartReader,
    PartsHere,
    ReadPart,
    StretchReader,
)
from storage.recovery.part_worker import KeyPartReader

log = get_logger(__name__)

HERE_BYTES = 32 << 20
"""Bytes that this process reads meanwhile, because workers take as long to start."""
WORKERS_MAX = 8
"""Number of readers that one process can keep up with."""
KEY_WORKERS_MAX = 4
"""Maximum for the index, beside the processors that serve clients."""
KEY_NICE = 5
PIPE_BYTES = 1 << 20
"""Largest unprivileged pipe; it holds a chunk, so that its worker goes on."""


def open_parts(order: PartOrder, reader: LogReader) -> ChunkSource[ReadPart]:
    """Return the readers of a recovery, on all processors that this process may use."""
    workers = min(len(os.sched_getaffinity(0)), WORKERS_MAX)
    here = PartsHere(order, reader)
    return here if workers < 2 else PartPool(order, PartReader, workers, here)


def open_key_parts(order: PartOrder, _: LogReader) -> ChunkSource[KeyPart]:
    """Return low-priority readers for the index, while the broker serves."""
    workers = min(len(os.sched_getaffinity(0)), KEY_WORKERS_MAX)
    return PartPool(order, KeyPartReader, workers, nice=KEY_NICE)


class PartPool(Generic[P_co]):
    """Stretches of the commit log, assigned to worker processes in turn."""

    def __init__(
        self,
        order: PartOrder,
        readers: type[StretchReader[P_co]],
        workers: int,
        here: ChunkSource[P_co] | None = None,
        *,
        here_bytes: int = HERE_BYTES,
        nice: int = 0,
    ) -> None:
        """Prepare a pool; workers start at the first `at`.

        `here` reads the first `here_bytes` of a log, and what workers leave unread.
        """
        self.order = order
        self._here = here
        self._readers = readers
        self._first = order.border(order.start + here_bytes) if here else order.start
        self._count, self._nice = workers, nice  # 0: workers cannot start
        self._workers: list[_Worker[P_co]] = []
        self._stretches = order.stretches(self._first)
        self._stretch = -1
        self._next_begin = next(self._stretches, order.end)

    def at(self, offset: int) -> P_co | None:
        """Return the chunk at `offset`, as ChunkSource.at; each stretch only once."""
        if offset < self._first or offset >= self.order.end:
            return self._read_here(offset)
        while self._next_begin <= offset:
            self._stretch += 1
            self._next_begin = next(self._stretches, self.order.end)
        if not self._workers:
            self._start()
        if not self._count:
            return self._read_here(offset)
        try:
            number, turn = self._stretch % self._count, self._stretch // self._count
            part = self._workers[number].part(turn)
        except (EOFError, OSError):
            return self._read_here(offset)
        return part if part is not None and part.serves(offset) else None

    def _read_here(self, offset: int) -> P_co | None:
        return None if self._here is None else self._here.at(offset)

    def _start(self) -> None:
        log.info(
            "log readers started",
            wanted=self.order.kind,
            processes=self._count,
            position=self._first,
        )
        try:
            for number in range(self._count):
                argument = part_worker.argument(
                    self.order, self._first, number, self._count, self._nice
                )
                self._workers.append(_Worker(argument, self._readers.part_type))
        except OSError as error:
            log.warning("log readers unavailable", reason=str(error))
            self.close()
            self._count = 0

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker(Generic[P_co]):
    """One worker process and its output pipe."""

    def __init__(self, argument: str, part_type: type[P_co]) -> None:
        self._part_type = part_type
        self._process = Popen(
            child_command(part_worker.__name__, argument),
            stdin=DEVNULL,
            stdout=PIPE,
            env=child_environment(os.environ),
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        with suppress(OSError):
            fcntl(self._output.fileno(), F_SETPIPE_SZ, PIPE_BYTES)
        self._taken = 0

    def part(self, turn: int) -> P_co | None:
        """Return the chunk of this worker's stretch `turn`, or None if already taken.

        Raises EOFError if the worker has ended.
        """
        if self._taken > turn:
            return None
        while self._taken < turn:
            part_worker.read_packed(self._output.read, self._part_type)
            self._taken += 1
        self._taken += 1
        return part_worker.read_packed(self._output.read, self._part_type)

    def kill(self) -> None:
        """Kill the process; its output so far stays readable."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        self._output.close()
