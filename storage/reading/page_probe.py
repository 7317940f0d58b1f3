"""Search for bytes outside the page cache, so that the event loop never waits for the disk.

Touching a mapped, uncached page stops the whole process until the disk has read it. Bytes appended
since the start and near the log's end count as cached. For others, the kernel is asked per block
(`DiskFile.is_cached`), and its answer is valid for a few seconds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.queue_files import UNIT_BYTES

BLOCK_BYTES = 64 << 10
"""Block size of a question; later readers of the block reuse its answer."""
_QUEUE_BLOCK_UNITS = BLOCK_BYTES // UNIT_BYTES


class ColdPart(NamedTuple):
    path: str
    position: int
    size: int


class PageProbe:
    """Probe of one store. One owner."""

    def __init__(self, log: CommitLog, recent_bytes: int) -> None:
        """Initialize the probe.

        The last `recent_bytes` of the log count as cached if they were appended after this call.
        """
        self._log = log
        self.recent_bytes = recent_bytes
        self.opened_end = log.end_offset
        self._log_blocks: set[int] = set()
        self._queue_blocks: dict[ConsumeQueue, set[int]] = {}

    def forget(self) -> None:
        """Discard all answers; call it every few seconds."""
        self._log_blocks.clear()
        self._queue_blocks.clear()

    def cold_records(self, runs: Sequence[tuple[int, int]]) -> Sequence[ColdPart]:
        """Return the uncached parts of these log ranges, each within one file.

        The result is empty if even the first range is recent.
        """
        log_end = self._log.end_offset
        cached_from = max(self.opened_end, log_end - self.recent_bytes)
        if not runs or runs[0][0] >= cached_from:
            return ()
        cold: list[ColdPart] = []
        believed = self._log_blocks
        for start, end in runs:
            if (
                start // BLOCK_BYTES in believed
                and (end - 1) // BLOCK_BYTES in believed
                and end - start <= BLOCK_BYTES  # so no block is between them
            ):
                continue
            file = self._log.queue.find(start)
            if start >= cached_from or file is None:
                continue
            base = file.first_offset
            for block in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
                if block in believed:
                    continue
                low = max(block * BLOCK_BYTES, base)
                high = min((block + 1) * BLOCK_BYTES, file.end_offset, log_end)
                exact = max(low, start), min(high, end)
                if file.file.is_cached(low - base, high - low):
                    believed.add(block)
                elif not file.file.is_cached(exact[0] - base, exact[1] - exact[0]):
                    cold.append(ColdPart(file.path, start - base, end - start))
                    break
        return cold

    def cold_units(self, queue: ConsumeQueue, first: int, count: int) -> Sequence[ColdPart]:
        """Return the uncached part of these units, up to the end of their file."""
        if first >= queue.tail_first:
            return ()
        block = first // _QUEUE_BLOCK_UNITS
        last = first + count - 1
        if last >= queue.max_offset:
            last = queue.max_offset - 1
        believed = self._queue_blocks.get(queue)
        if believed is None:
            believed = self._queue_blocks[queue] = set()
        elif block in believed and last // _QUEUE_BLOCK_UNITS in believed:
            return ()
        return self._ask_units(queue, first, last, believed)

    def _ask_units(
        self, queue: ConsumeQueue, first: int, last: int, believed: set[int]
    ) -> Sequence[ColdPart]:
        """Ask block by block; the first and last block of a file may be smaller."""
        part = queue.file_part(first, last + 1 - first)
        if part is None:
            return ()
        path, position, count = part
        file = queue.file_at(path)
        file_first = first - position // UNIT_BYTES
        file_end = file_first + queue.file_units
        for block in range(first // _QUEUE_BLOCK_UNITS, last // _QUEUE_BLOCK_UNITS + 1):
            low = max(block * _QUEUE_BLOCK_UNITS, file_first)
            high = min((block + 1) * _QUEUE_BLOCK_UNITS, file_end, queue.written_offset)
            if high <= low:
                break
            if file.is_cached((low - file_first) * UNIT_BYTES, (high - low) * UNIT_BYTES):
                believed.add(block)
                continue
            low, high = max(low, first), min(high, last + 1)
            if not file.is_cached((low - file_first) * UNIT_BYTES, (high - low) * UNIT_BYTES):
                return (ColdPart(path, position, count),)
        return ()
