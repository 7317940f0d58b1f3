"""Consumer offsets of CID_RMQ_SYS_TRANS, the group for which 4.9.7 checks transactions.

This broker uses the transaction table and never reads these offsets. A RocketMQ broker that takes
over the store begins at them.

    half messages   the first pending one: all before it are settled, replaced or discarded
    operations      the first one behind that in the log: earlier ones settle older half messages
"""

from typing import NamedTuple

from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.transactions.table import TransactionTable

_QUEUE_ID = 0
"""Queue id of half messages and of operations."""


class TransactionProgress(NamedTuple):
    """Queue offsets, valid once the log is synced up to `log_end`."""

    half_offset: int
    op_offset: int
    log_end: int


def progress_of(
    store: MessageStore, table: TransactionTable, unreadable: set[int], op_offset: int = 0
) -> TransactionProgress | None:
    """Return the progress from table and queues; None if there has never been a half message.

    `op_offset` is the previous result, where the search begins.
    """
    halves = store.consume_queues.get(HALF_TOPIC, _QUEUE_ID)
    if halves is None:
        return None
    ops = store.consume_queues.get(OP_HALF_TOPIC, _QUEUE_ID)
    oldest = table.oldest_half(unreadable)
    log_end = table.covered_offset
    if oldest is None:
        return TransactionProgress(halves.max_offset, 0 if ops is None else ops.max_offset, log_end)
    if ops is None:
        return TransactionProgress(oldest.queue_offset, 0, log_end)
    low = min(max(op_offset, ops.min_offset), ops.max_offset)
    first = _first_behind(ops, low, oldest.physical_offset)
    return TransactionProgress(oldest.queue_offset, first, log_end)


def _first_behind(queue: ConsumeQueue, low: int, physical_offset: int) -> int:
    """Return the first message of a queue, from `low` on, behind a physical offset."""
    high = queue.max_offset
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None or unit[0] < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
