"""Search for timers among the waiting messages of a delay level, after a start.

Owns: nothing; it reads the ends of records.
Receives: ScanTimers from Schedule.
Sends: TimersFound to Schedule.

A timer's record ends with its due time (protocol/timers.py), so one small read tells it from other
delayed messages. A level has at most the messages of its own delay, so no start reads older files.
"""

from typing import ClassVar

from actors.delays.messages import ScanTimers, TimersFound
from actors.engine.actor import Actor, Where, handles
from protocol.timers import DUE_BYTES, due_of
from storage.errors import OffsetError
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import UNIT

SCAN_UNITS = 4096
"""Units of one search, some 8 ms of a thread."""


class TimerScan(Actor):
    """Actor on a thread, because it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(self, log: CommitLog) -> None:
        super().__init__()
        self._log = log

    @handles(ScanTimers)
    def on_scan(self, message: ScanTimers) -> None:
        found: list[tuple[int, int]] = []
        view = self._log.view
        for number, (start, size, _) in enumerate(UNIT.iter_unpack(message.units), message.first):
            if start < 0 or size < DUE_BYTES:
                continue
            try:
                due_ms = due_of(view(start + size - DUE_BYTES, DUE_BYTES))
            except OffsetError:
                continue  # the level's turn reports it
            if due_ms:
                found.append((due_ms, number))
        end = message.first + len(message.units) // UNIT.size
        message.reply_to.tell(TimersFound(found, end, message.run))
