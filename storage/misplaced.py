"""A record 0 that a recovery has put at the end of a queue: the beginning of another generation.

Source: none; 4.9.7 knows no generations of a queue.
"""

from collections.abc import Callable, Sequence

from protocol.message import RECORD_MAGIC, RecordError, RecordHead, scan_head
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.consume_queues import DispatchEntry
from storage.dispatch import entry_of

FirstFinder = Callable[[ConsumeQueue], DispatchEntry | None]
"""Gives the entry of the record 0 at a queue's end, behind others; None if there is none."""


def first_finder(log: CommitLog, delay_levels: Sequence[int]) -> FirstFinder:
    """Finds it in a log whose end may not be known yet."""

    def find(queue: ConsumeQueue) -> DispatchEntry | None:
        unit = queue.unit(queue.max_offset - 1) if queue.max_offset > 1 else None
        head = None if unit is None else _head_at(log, unit[0])
        if unit is None or head is None or head.physical_offset != unit[0]:
            return None
        topic = queue.topic.encode("utf-8", "surrogateescape")
        if (head.topic, head.queue_id, head.queue_offset) != (topic, queue.queue_id, 0):
            return None
        return entry_of(head, delay_levels)

    return find


def _head_at(log: CommitLog, offset: int) -> RecordHead | None:
    file = log.queue.find(offset)
    if file is None:
        return None
    try:
        head = scan_head(file.view, offset - file.first_offset)
    except RecordError:
        return None
    return head if head.magic == RECORD_MAGIC else None
