"""The ends of a master's queues, which no consumer offset passes.

An offset behind the end of its queue has messages skipped: those that come until the queue has
grown up to it. It is there when the end of the log was lost in a crash or a change of masters, and
when all that a queue had is gone, with its units.

    at the start, of a queue that has messages    the offset goes to the end of the queue
    at the start, of a queue that has none        the queue begins at the highest offset
    later                                         a commit behind the end is not taken

4.9.7 keeps such offsets, and moves a pull behind the end to wherever the end is by then.
"""

from collections.abc import Iterator
from contextlib import suppress

from structlog import get_logger

from storage.errors import StoreError
from storage.queues.consume_queues import ConsumeQueues
from storage.tables.committed import highest_offsets
from storage.tables.offsets import topic_of

log = get_logger(__name__)

MOVED_LINES_MAX = 50
"""Lines about moved offsets of one start; the rest is counted."""


class OffsetBounds:
    """Looks at the queues on the loop; at the start it lets empty ones begin."""

    def __init__(self, queues: ConsumeQueues) -> None:
        self._queues = queues

    def end(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message gets; 0 for a missing queue."""
        return self._queues.end_of(topic, queue_id)

    def queue_ids(self, topic: str) -> range:
        """Return the ids of all queues that the topic may have had."""
        return range(self._queues.id_count(topic))

    def begin_empty(self, offsets: dict[str, dict[int, int]]) -> None:
        """Let queues without a message begin at the highest offset of any group.

        `offsets` are by `topic@group`, then by queue, and all that there are.
        """
        begun: list[str] = []
        for (topic, queue_id), offset in highest_offsets(offsets).items():
            queue = self._queues.get(topic, queue_id)
            if queue is None or queue.is_empty:
                with suppress(StoreError):  # no directory can have that name, so no queue either
                    self._queues.begin_at(topic, queue_id, offset)
                    begun.append(f"{topic}:{queue_id}")
        if begun:
            log.info(
                "empty queues begin at the highest consumer offset",
                count=len(begun),
                queues=begun[:10],
            )

    def move_back(self, offsets: dict[str, dict[int, int]]) -> list[str]:
        """Move every offset that lies behind its queue to the end of it; return their keys."""
        moved: list[str] = []
        count = 0
        for key, queue_id, offset, end in list(self._behind(offsets)):
            offsets[key][queue_id] = end
            moved.append(key)
            count += 1
            if count <= MOVED_LINES_MAX:
                log.warning(
                    "consumer offset moved",
                    key=key,
                    queue_id=queue_id,
                    offset=offset,
                    moved_to=end,
                    reason="it was behind the end of the queue",
                )
        if count > MOVED_LINES_MAX:
            log.warning("consumer offsets moved", count=count)
        return moved

    def _behind(self, offsets: dict[str, dict[int, int]]) -> Iterator[tuple[str, int, int, int]]:
        for key, queues in offsets.items():
            topic = topic_of(key)
            for queue_id, offset in queues.items():
                if offset > 0 and offset > (end := self.end(topic, queue_id)):
                    yield key, queue_id, offset, end
