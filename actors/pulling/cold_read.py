"""Reads what is not in memory, so that nobody on the loop waits for the disk.

Owns: nothing; it opens the files it is told for itself.
Told by: PullMessage, QueueOffsets, Schedule, Transactions (`ReadCold`).
Tells: them (`then`, when all is in memory).

Whoever reads the log far behind its end goes on to read what follows, and so do the readers of the
queues beside: the kernel is told to bring more than was asked for, and nobody waits for the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from structlog import get_logger

from actors.engine.actor import Actor, Refusable, Where, handles
from actors.engine.actor_address import ActorAddress
from storage.reading.page_probe import ColdPart

log = get_logger(__name__)

AHEAD_BYTES = 1 << 20
"""Brought into memory from the first byte of a part on, at least."""
CHUNK_BYTES = 1 << 20
SLOW_READ_MS = 500.0


@dataclass(slots=True)
class ReadCold:
    """Read these parts of files, then tell `reply_to` `then`; refuse `then` if that cannot be."""

    parts: Sequence[ColdPart]
    then: Refusable
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """The reader died with it."""
        self.then.refuse(remark)


class ColdRead(Actor):
    """Runs on a thread: a read lets the interpreter go, but takes its time."""

    where: ClassVar[Where] = "thread"

    @handles(ReadCold, reads_only=True)
    def on_read(self, message: ReadCold) -> None:
        """Reads; the page cache keeps it."""
        started_ms = self.system.clock.monotonic_ms()
        try:
            for path, parts in groupby(sorted(message.parts), itemgetter(0)):
                self._read(path, [*parts])
        except OSError as error:
            # Touching what cannot be read in a map would kill the process.
            log.error("cannot read from the store", file=error.filename, reason=str(error))
            message.then.refuse(f"the disk cannot be read: {error.strerror}")
            return
        took_ms = self.system.clock.monotonic_ms() - started_ms
        if took_ms > SLOW_READ_MS:
            log.warning("slow read from the store", ms=round(took_ms), parts=len(message.parts))
        message.reply_to.tell(message.then)

    def _read(self, path: str, parts: Sequence[ColdPart]) -> None:
        """Reads and forgets these parts of a file. One that is gone needs no reading."""
        try:
            file = self.system.disk.open(path, read_only=True)
        except FileNotFoundError:
            return
        ahead_to = 0
        try:
            for _, position, size in parts:
                end = position + size
                if end > ahead_to:
                    ahead_to = max(end, position + AHEAD_BYTES)
                    file.read_ahead(position, ahead_to - position)
                while position < end:
                    data = file.pread(min(CHUNK_BYTES, end - position), position)
                    if not data:
                        break
                    position += len(data)
        finally:
            file.close()
