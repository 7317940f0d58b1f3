"""Reads of cold file parts, so that no actor on the event loop waits for the disk.

Owns: nothing; it opens the files itself.
Receives: ReadCold from PullMessage, QueueOffsets, RawRead, RecordChecker, Schedule and
Transactions.
Sends: the message `then` to the requester, when all parts are in memory.

A reader far behind the end of the log soon needs the bytes that follow, and so do readers of other
queues. The kernel is therefore asked to read ahead, without waiting for it.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.server_log import get_logger
from actors.pulling.messages import ReadCold
from storage.reading.page_probe import ColdPart

log = get_logger(__name__)

AHEAD_BYTES = 1 << 20
"""Minimum bytes brought into memory from the start of a part."""
CHUNK_BYTES = 1 << 20
SLOW_READ_MS = 500.0


class ColdRead(Actor):
    """Actor on a thread: a read releases the interpreter lock but takes long."""

    where: ClassVar[Where] = "thread"

    @handles(ReadCold, reads_only=True)
    def on_read(self, message: ReadCold) -> None:
        """Read the parts, so that the page cache holds them."""
        started_ms = self.system.clock.monotonic_ms()
        try:
            for path, parts in groupby(sorted(message.parts), itemgetter(0)):
                self._read(path, [*parts])
        except OSError as error:
            # Touching an unreadable page of a map would kill the process.
            log.error("store read failed", file=error.filename, reason=str(error))
            message.then.on_undelivered(f"the disk cannot be read: {error.strerror}")
            return
        took_ms = self.system.clock.monotonic_ms() - started_ms
        if took_ms > SLOW_READ_MS:
            log.warning("slow read from the store", ms=round(took_ms), parts=len(message.parts))
        message.reply_to.tell(message.then)

    def _read(self, path: str, parts: Sequence[ColdPart]) -> None:
        """Read these parts of a file and discard the bytes. A missing file needs no reading."""
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
