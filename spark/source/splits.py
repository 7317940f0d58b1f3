"""Division of a read into tasks: between units, so between complete messages.

Bytes of a body may look like the start of a record, so a task begins only at a queue unit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from spark.decoding.records import Queue
from spark.decoding.store_files import GAP_FILLER_BYTES, NumpyArray
from spark.source.offsets import Bounds
from spark.source.options import Options, QueueName, broker_of
from spark.source.plan import QueueRange, pack

Units: TypeAlias = Iterator[tuple[int, NumpyArray]]
"""Queue offset of the first unit, and units; one behind the other."""


def tasks(
    units: Callable[[QueueName, Bounds], Units],
    wanted: Mapping[QueueName, Bounds],
    options: Options,
) -> list[list[QueueRange]]:
    """Return ranges of queues, one list a task; `units` returns the units of a range."""
    parts = {name: part for name, part in wanted.items() if part.first < part.end}
    bytes_max = options.max_bytes_per_partition
    if options.min_partitions is not None:
        total = sum(queue_bytes(units(name, part)) for name, part in parts.items())
        bytes_max = min(bytes_max, max(1, total // options.min_partitions))
    rows_max = options.max_records_per_partition
    ranges = [
        each
        for name, part in parts.items()
        for each in cut(name, units(name, part), part, bytes_max, rows_max)
    ]
    return at_least(list(pack(ranges, bytes_max, rows_max)), options.min_partitions or 0)


def tasks_by_rows(
    wanted: Mapping[QueueName, Bounds], options: Options, rows_max: int
) -> list[list[QueueRange]]:
    """Return tasks cut by rows, where the bytes of messages are unknown.

    `rows_max` limits a task.
    """
    total = sum(part.end - part.first for part in wanted.values())
    rows_max = options.max_records_per_partition or rows_max
    if options.min_partitions is not None:
        rows_max = min(rows_max, max(1, total // options.min_partitions))
    ranges = [
        QueueRange(name[0], name[1], first, min(first + rows_max, part.end), 0, broker_of(name))
        for name, part in wanted.items()
        for first in range(part.first, part.end, rows_max)
    ]
    return at_least(list(pack(ranges, rows_max=rows_max)), options.min_partitions or 0)


def at_least(together: list[list[QueueRange]], count: int) -> list[list[QueueRange]]:
    """Return at least `count` tasks by halving the largest ones, if there are enough messages."""
    while len(together) < count:
        largest = max(range(len(together)), key=lambda place: _rows(together[place]), default=-1)
        if largest < 0 or _rows(together[largest]) < 2:
            break  # there are not that many messages
        together[largest : largest + 1] = _halves(together[largest])
    return together


def queue_bytes(units: Units) -> int:
    """Return the total record bytes of some units."""
    return sum(int(sizes.sum()) for _, sizes in _sizes(units))


def cut(
    name: QueueName, units: Units, part: Bounds, bytes_max: int, rows_max: int | None = None
) -> Iterator[QueueRange]:
    """Yield ranges of at most `bytes_max` bytes and `rows_max` rows, with one message or more."""
    topic, queue_id, broker = name[0], name[1], broker_of(name)
    start, size = part.first, 0
    for first, sizes in _sizes(units):
        sums = np.cumsum(sizes)
        done = 0
        while True:
            room = bytes_max - size + (int(sums[done - 1]) if done else 0)
            count = int(np.searchsorted(sums, room, side="right"))
            if rows_max is not None:
                count = min(count, start + rows_max - first)
            count = max(count, start + 1 - first)
            if count >= len(sums):
                break
            size += int(sums[count - 1] - (sums[done - 1] if done else 0)) if count > done else 0
            yield QueueRange(topic, queue_id, start, first + count, size, broker)
            start, size, done = first + count, 0, count
        size += int(sums[-1] - (sums[done - 1] if done else 0))
    if start < part.end:
        yield QueueRange(topic, queue_id, start, part.end, size, broker)


def offset_at_bytes(units: Units, part: Bounds, bytes_max: int) -> int:
    """Return the offset that so many record bytes reach from the start of a part."""
    for first, sizes in _sizes(units):
        sums = np.cumsum(sizes)
        if sums[-1] > bytes_max:
            return first + int(np.searchsorted(sums, bytes_max, side="right"))
        bytes_max -= int(sums[-1])
    return part.end


def store_units(queue: Queue, part: Bounds) -> Units:
    return queue.store.queue(queue.topic, queue.queue_id).chunks(part.first, part.end)


def _sizes(units: Units) -> Iterator[tuple[int, NumpyArray]]:
    for first, part in units:
        sizes = part["record_bytes"].astype(np.int64)
        yield first, np.where((sizes > 0) & (sizes < GAP_FILLER_BYTES), sizes, 0)


def _rows(task: list[QueueRange]) -> int:
    return sum(part.end - part.first for part in task)


def _halves(task: list[QueueRange]) -> list[list[QueueRange]]:
    """Return two tasks of nearly as many rows."""
    left: list[QueueRange] = []
    right: list[QueueRange] = []
    room = _rows(task) // 2
    for part in task:
        count = min(room, part.end - part.first)
        room -= count
        share = part.record_bytes * count // (part.end - part.first)
        middle = part.first + count
        if count:
            left.append(replace(part, end=middle, record_bytes=share))
        if middle < part.end:
            rest = part.record_bytes - share
            right.append(replace(part, first=middle, record_bytes=rest))
    return [left, right]
