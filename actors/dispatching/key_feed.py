"""Keys of the log for the index while it is far behind: other processes read and hash them.

Not an actor: the catch-up actor's.
"""

from collections.abc import Callable, Sequence

from storage.dispatching.dispatch import Follower
from storage.index.index import Index
from storage.index.key_columns import KeyPart
from storage.log.commit_log import CommitLog
from storage.log.reader import LogReader
from storage.recovery.key_parts import KEY_PART_BYTES, KEYS
from storage.recovery.log_chunks import ChunkSource, PartOrder

FAR_BYTES = 64 << 20
"""Of the log: less is read before other processes have begun."""

OpenKeyParts = Callable[[PartOrder, LogReader], ChunkSource[KeyPart]]
"""Makes a source, of the log as it is now."""


class KeyFeed:
    """One owner; closed, it may be asked again."""

    def __init__(self, log: CommitLog, open_parts: OpenKeyParts) -> None:
        self._log = log
        self._open_parts = open_parts
        self._parts: ChunkSource[KeyPart] | None = None

    def at(self, position: int, index: Index, others: Sequence[Follower]) -> KeyPart | None:
        """What the index wants next; None where records are to be read one by one.

        So they are while others want them, too. Waits for the process that reads them.
        """
        if index.has_begun_record or position >= (end := self._end(others)):
            self.close()
            return None
        if self._parts is not None and position >= self._parts.order.end:
            self.close()
        if self._parts is None:
            if end - position < FAR_BYTES:
                return None
            queue = self._log.queue
            order = PartOrder(
                directory=queue.directory,
                file_bytes=queue.file_bytes,
                start=position,
                end=end,
                check_crc=False,
                text_from=end,
                part_bytes=KEY_PART_BYTES,
                kind=KEYS,
            )
            self._parts = self._open_parts(order, self._log.reader(KEY_PART_BYTES))
        part = self._parts.at(position)
        return part if part is not None and part.end <= end else None

    def _end(self, others: Sequence[Follower]) -> int:
        """Up to where nobody but the index wants to know the log."""
        return min((each.covered_offset for each in others), default=self._log.end_offset)

    def close(self) -> None:
        """Nobody reads ahead any more."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()
