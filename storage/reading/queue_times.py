"""Store times of a queue's messages: offset by time, and time of the earliest message.

Damaged or inconsistent units and records are skipped.

Source: store/DefaultMessageStore.java (getOffsetInQueueByTime, getEarliestMessageTime).

The search by time finds the first message stored at or after a time. TroupeMQ's store timestamps
rise along a queue. 4.9.7 stores the wall clock, which repeats times after it was set back. A plain
binary search could then skip messages, so the search also looks back.

Source: store/ConsumeQueue.java (getOffsetInQueueByTime), which finds the nearest message.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from protocol.message import RecordError
from storage.errors import OffsetError
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import head_of
from storage.queues.consume_queue import ConsumeQueue
from storage.reading.page_probe import ColdPart, PageProbe

TimeFrom: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Queue offset and store timestamp (ms) of the first readable message of [first, end).

None if no message near `first` is readable; (end, `NEVER`) if no message at all is.
"""

NEVER: Final = 1 << 63
"""Time after every store timestamp."""


def first_at_time(
    time_from: TimeFrom, timestamp: int, first: int, end: int, near: int | None = None
) -> int:
    """Return the queue offset of the first message in [first, end) stored at `timestamp` or later.

    Without such a message, return `end`. If unreadable messages directly precede it, return the
    first of these, which may be the right one. `near` is a broker's answer to the same question:
    4.9.7 returns the nearest message, or any message of that millisecond.
    """
    if near is not None:
        first, end = _around(time_from, timestamp, near, first, end)
    found = _by_halves(time_from, timestamp, first, end)
    while (earlier := _earlier(time_from, timestamp, first, found)) is not None:
        found = _by_halves(time_from, timestamp, first, earlier)
    return found


def _around(
    time_from: TimeFrom, timestamp: int, near: int, first: int, end: int
) -> tuple[int, int]:
    """Return the range to search: the neighbors of `near`, if they bracket the time."""
    low, high = max(first, near - 1), min(end, near + 2)
    if low < high:
        before, behind = time_from(low, high), time_from(high - 1, high)
        if (low == first or (before is not None and before[1] < timestamp)) and (
            high == end or (behind is not None and behind[1] >= timestamp)
        ):
            return low, high
    return first, end


def _by_halves(time_from: TimeFrom, timestamp: int, low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        found = time_from(middle, high)
        if found is None or found[1] >= timestamp:
            high = middle
        else:
            low = found[0] + 1
    return low


def _earlier(time_from: TimeFrom, timestamp: int, first: int, end: int) -> int | None:
    """Return an earlier message stored at or after `timestamp`, or None.

    The search looks 1, 2, 4, … messages back from `end`, for stored times may go back a little.
    """
    step = 1
    while first < end:
        at = max(first, end - step)
        found = time_from(at, end)
        if found is not None and found[0] < end and found[1] >= timestamp:
            return found[0]
        if at == first:
            break
        step *= 2
    return None


StoreTime: TypeAlias = Callable[[int, int, int], int]
"""Store timestamp (ms) by physical offset, size and queue offset; negative for a missing record."""

UnitAt: TypeAlias = Callable[[int], tuple[int, int, int] | None]
"""(physical offset, record size, tags code) of a queue offset."""

PASSED_OVER_MAX: Final = 4096
"""Maximum units examined to find one readable message."""


class ColdPages(Exception):
    """Required bytes are not in memory: read `parts`, then repeat the call."""

    def __init__(self, parts: Sequence[ColdPart]) -> None:
        super().__init__(parts)
        self.parts = parts


class QueueTimes:
    """Time lookups in one store; with a `probe`, it raises ColdPages instead of blocking."""

    def __init__(self, log: CommitLog, damage: Damage, probe: PageProbe | None = None) -> None:
        self._log = log
        self._damage = damage
        self._probe = probe

    def offset_at(self, queue: ConsumeQueue | None, timestamp: int) -> int:
        """Return the offset of the first message stored at `timestamp` (ms) or later.

        Without such a message, return the queue's end; 0 for a missing queue.
        """
        if queue is None:
            return 0
        unit_at, store_time = self._unit_at(queue), self._store_time(queue)

        def time_from(first: int, end: int) -> tuple[int, int] | None:
            for offset in range(first, min(end, first + PASSED_OVER_MAX)):
                unit = unit_at(offset)
                stored = -1 if unit is None else store_time(unit[0], unit[1], offset)
                if stored >= 0:
                    return offset, stored
            return (end, NEVER) if end <= first + PASSED_OVER_MAX else None

        end = queue.max_offset
        first = _first_kept(unit_at, self._log.min_offset(), queue.min_offset, end)
        found = first_at_time(time_from, timestamp, first, end)
        readable = time_from(found, end)
        return found if readable is None else readable[0]

    def earliest(self, queue: ConsumeQueue | None) -> int:
        """Return the store timestamp of the first retained message, ms; -1 without messages."""
        if queue is None:
            return -1
        unit_at, store_time = self._unit_at(queue), self._store_time(queue)
        first = queue.min_offset
        for offset in range(first, min(queue.max_offset, first + PASSED_OVER_MAX)):
            unit = unit_at(offset)
            if unit is None:
                return -1
            stored = store_time(unit[0], unit[1], offset)
            if stored >= 0:
                return stored
        return -1

    def stored_at(self, queue: ConsumeQueue | None, offset: int) -> int:
        """Return the store timestamp of the message at a queue offset, ms; -1 for a missing one."""
        return self._placed_at(queue, offset)[1]

    def came_at(self, queue: ConsumeQueue | None, offset: int) -> int:
        """Return the wall clock at the append of a message, ms; -1 for a missing one.

        The store timestamp is later while the clock is behind that of the previous message.
        """
        place, stored = self._placed_at(queue, offset)
        return stored if stored < 0 else self._log.came_at(place, stored)

    def _placed_at(self, queue: ConsumeQueue | None, offset: int) -> tuple[int, int]:
        """Return physical offset and store timestamp; -1 for a missing message."""
        unit = None
        if queue is not None and queue.min_offset <= offset < queue.max_offset:
            unit = self._unit_at(queue)(offset)
        if queue is None or unit is None:
            return -1, -1
        return unit[0], self._store_time(queue)(unit[0], unit[1], offset)

    def _unit_at(self, queue: ConsumeQueue) -> UnitAt:
        probe = self._probe
        if probe is None:
            return queue.unit

        def unit_at(offset: int) -> tuple[int, int, int] | None:
            if cold := probe.cold_units(queue, offset, 1):
                raise ColdPages(cold)
            return queue.unit(offset)

        return unit_at

    def _store_time(self, queue: ConsumeQueue) -> StoreTime:
        log, damage, probe = self._log, self._damage, self._probe
        topic = queue.topic.encode("utf-8", "surrogateescape")

        def store_time(physical_offset: int, size: int, queue_offset: int) -> int:
            if size <= 0 or damage.overlaps(physical_offset, physical_offset + size):
                return -1
            try:
                view = log.view(physical_offset, size)
                if probe is not None:
                    run = physical_offset, physical_offset + size
                    if cold := probe.cold_records([run]):
                        raise ColdPages(cold)
                head = head_of(view, physical_offset)
            except (OffsetError, RecordError):
                return -1
            own = topic, queue.queue_id, queue_offset
            belongs = (head.topic, head.queue_id, head.queue_offset) == own
            return head.store_timestamp if belongs else -1

        return store_time


def _first_kept(unit_at: UnitAt, min_physical: int, low: int, high: int) -> int:
    """Return the first queue offset with a record inside the log, or `high`.

    A single unit that points before the log is damaged.
    """

    def is_before(offset: int) -> bool:
        unit = unit_at(offset)
        return unit is not None and unit[0] < min_physical and unit[1] > 0

    def is_gone(offset: int) -> bool:
        return is_before(offset) and (offset + 1 == high or is_before(offset + 1))

    if low < high and is_gone(low):
        low = bisect_left(range(high), 1, low + 1, key=lambda offset: not is_gone(offset))
    return low
