"""Reads what is not in memory, so that nobody on the loop waits for the disk.

Owns: nothing; it opens the files it is told for itself.
Told by: PullMessage, QueueOffsets, Schedule, Transactions (`ReadCold`).
Tells: them (`then`, when all is in memory).

Whoever reads the log far behind its end goes on to read what follows, so more than asked is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.engine.actor import Actor, Refusable, Where, handles
from actors.engine.address import Address
from storage.reading.page_probe import ColdPart

log = get_logger(__name__)

AHEAD_BYTES = 256 << 10
"""Read from the first byte of a part on, at least."""
CHUNK_BYTES = 1 << 20
SLOW_READ_MS = 500.0


@dataclass(slots=True)
class ReadCold:
    """Read these parts of files, then tell `reply_to` `then`; refuse `then` if that cannot be."""

    parts: Sequence[ColdPart]
    then: Refusable
    reply_to: Address

    def refuse(self, remark: str) -> None:
        """The reader died with it."""
        self.then.refuse(remark)


class ColdRead(Actor):
    """Runs on a thread: a read lets the interpreter go, but takes its time."""

    where: ClassVar[Where] = "thread"

    @handles(ReadCold)
    def on_read(self, message: ReadCold) -> None:
        """Reads; the page cache keeps it."""
        started_ms = self.system.clock.monotonic_ms()
        read_to: dict[str, int] = {}
        try:
            for path, position, count in sorted(message.parts):
                start = max(position, read_to.get(path, 0))
                end = position + count
                if start < end:
                    read_to[path] = self._read(path, start, max(end, start + AHEAD_BYTES))
        except OSError as error:
            # Touching what cannot be read in a map would kill the process.
            log.error("cannot read from the store", file=error.filename, reason=str(error))
            message.then.refuse(f"the disk cannot be read: {error.strerror}")
            return
        took_ms = self.system.clock.monotonic_ms() - started_ms
        if took_ms > SLOW_READ_MS:
            log.warning("slow read from the store", ms=round(took_ms), parts=len(message.parts))
        message.reply_to.tell(message.then)

    def _read(self, path: str, start: int, end: int) -> int:
        """Reads and forgets [start, end); returns how far. A file that is gone needs no reading."""
        try:
            file = self.system.disk.open(path, read_only=True)
        except FileNotFoundError:
            return end
        try:
            while start < end:
                data = file.pread(min(CHUNK_BYTES, end - start), start)
                if not data:
                    break
                start += len(data)
        finally:
            file.close()
        return end
