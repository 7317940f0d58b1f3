"""The pending timers of one delay level by due time, in memory.

A timer costs 8 bytes: its due time within a bucket of a second or more, and its queue offset in the
level's queue. The message itself stays in the commit log. 10 million timers take 85 to 95 MiB.

    bucket of the due time -> array of  due time in the bucket (20 bits) | queue offset (44 bits)

A bucket is opened when it begins: its timers move to a heap, which gives them in order. Of a bucket
with more than OPENED_AT_ONCE timers, a part moves with each call, the first stored ones first.
"""

from array import array
from heapq import heappop, heappush

_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_BUCKET_MS_MIN = 1_000
_BUCKET_MS_MAX = (1 << 20) - 1
_BUCKETS = 86_400
"""Maximum number of buckets for the longest delay of the level, whatever that is."""

OPENED_AT_ONCE = 20_000
"""Timers that move to the heap in one call, some 4 ms; a million may have one due time."""


class TimerIndex:
    """Index of one level. One owner."""

    def __init__(self, delay_ms: int) -> None:
        """Create the index of a level with this delay."""
        self._bucket_ms = min(max(_BUCKET_MS_MIN, -(-delay_ms // _BUCKETS)), _BUCKET_MS_MAX)
        self._buckets: dict[int, array[int]] = {}
        self._begins: list[int] = []
        """Heap of the buckets' numbers."""
        self._open: list[int] = []
        """Heap of timers in open buckets: due time << _OFFSET_BITS | queue offset."""
        self._opened = -1
        """Number of the bucket that is open now; timers of it and of earlier ones are in a heap."""

    def add(self, due_ms: int, offset: int) -> None:
        number, within_ms = divmod(due_ms, self._bucket_ms)
        if number <= self._opened:
            heappush(self._open, due_ms << _OFFSET_BITS | offset)
            return
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("Q")
            heappush(self._begins, number)
        bucket.append(within_ms << _OFFSET_BITS | offset)

    def take(self, now_ms: int, count_max: int) -> list[tuple[int, int]]:
        """Remove and return the earliest due timers: due time, queue offset.

        Buckets are opened only while more is wanted, so that a clock set forward costs no pause.
        With fewer than wanted, `next_due_ms` tells whether more are due.
        """
        self._opened = now_ms // self._bucket_ms
        found: list[tuple[int, int]] = []
        waiting = self._open
        end, left = (now_ms + 1) << _OFFSET_BITS, OPENED_AT_ONCE
        while len(found) < count_max:
            if waiting and waiting[0] < end:
                timer = heappop(waiting)
                found.append((timer >> _OFFSET_BITS, timer & _OFFSET_MASK))
            elif left > 0 and self._begins and self._begins[0] <= self._opened:
                left -= self._open_next(left)
            else:
                break
        return found

    def _open_next(self, most: int) -> int:
        """Move at most so many timers of the first bucket to the heap; return their number."""
        number = self._begins[0]
        bucket, begin_ms = self._buckets[number], number * self._bucket_ms << _OFFSET_BITS
        part = bucket[:most]
        del bucket[:most]
        if not bucket:
            del self._buckets[heappop(self._begins)]
        for timer in part:
            heappush(self._open, begin_ms + timer)
        return len(part)

    @property
    def next_due_ms(self) -> int | None:
        """Earliest due time, or the beginning of its bucket; None without a timer."""
        times = []
        if self._open:
            times.append(self._open[0] >> _OFFSET_BITS)
        if self._begins:
            times.append(self._begins[0] * self._bucket_ms)
        return min(times) if times else None
