"""Upper bound of consumer offsets on a master: the end of each queue.

An offset beyond the end makes a consumer skip the messages that arrive until the queue has grown up
to it. Such offsets remain when a crash or a change of masters loses the end of the log, and when a
queue has lost all messages and units.

    at the start, queue with messages       the offset moves to the end of the queue
    at the start, queue without messages    the queue begins at the highest offset
    later                                   a commit beyond the end is ignored

4.9.7 keeps such offsets, and moves a pull beyond the end to the present end.
"""

from collections.abc import Iterator
from contextlib import suppress

from actors.engine.server_log import get_logger
from storage.errors import StoreError
from storage.queues.consume_queues import ConsumeQueues
from storage.tables.committed import highest_offsets
from storage.tables.offsets import topic_of

log = get_logger(__name__)

MOVED_LINES_MAX = 50
"""Lines about moved offsets at one start; the rest is counted."""


class OffsetBounds:
    """Queue ends, read on the loop; at the start it also lets empty queues begin."""

    def __init__(self, queues: ConsumeQueues) -> None:
        self._queues = queues

    def end(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message; 0 for a missing queue."""
        return self._queues.end_of(topic, queue_id)

    def queue_ids(self, topic: str) -> range:
        """Return the ids of all queues that the topic may have had."""
        return range(self._queues.id_count(topic))

    def begin_empty(self, offsets: dict[str, dict[int, int]]) -> None:
        """Let queues without messages begin at the highest offset of any group.

        `offsets` are all offsets, by `topic@group`, then by queue.
        """
        begun: list[str] = []
        for (topic, queue_id), offset in highest_offsets(offsets).items():
            queue = self._queues.get(topic, queue_id)
            if queue is None or queue.is_empty:
                with suppress(
                    StoreError
                ):  # no directory can have that name, so there is no such queue
                    self._queues.begin_at(topic, queue_id, offset)
                    begun.append(f"{topic}:{queue_id}")
        if begun:
            log.info(
                "empty queues begin at the highest consumer offset",
                count=len(begun),
                queues=begun[:10],
            )

    def move_back(self, offsets: dict[str, dict[int, int]]) -> list[str]:
        """Move every offset beyond its queue to the end; return the keys."""
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
