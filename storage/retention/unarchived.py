"""Messages without an archive: the rule of cleaning and of the retention job.

An archive has a queue's messages up to the last one named by its newest manifest, if that message
is unchanged or deleted. It has no messages of a queue that was recreated or lost messages in a
power failure. System topics, units without a record of their own, and deleted queues are ignored,
because the archive job skips them.

Only files are read, so the owner of the queues is not involved. Data that is not yet in files lies
behind the checkpoint.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from protocol.message import RecordError
from protocol.topic_names import is_system_topic
from storage.files.disk import Disk
from storage.files.mapped_file import first_offset_of
from storage.log.reader import RECORD_BYTES_MAX, head_of
from storage.queues.queue_run import count_used
from storage.queues.queue_units import FILLER_BYTES, UNIT, UNIT_BYTES, Unit, first_behind
from storage.retention.archive_manifest import Ends, LastMessage

_UNITS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Unarchived:
    """First message of a queue that no archive has."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class LogFilesOnDisk:
    """Files of the log, by name."""

    def __init__(self, disk: Disk, directories: Iterable[str], end_offset: int | None) -> None:
        """Initialize the files; reads stop at `end_offset`, or at the end of files for None."""
        found = {
            first: f"{directory}/{name}"
            for directory in directories
            for name in disk.listdir(directory)
            if (first := first_offset_of(name)) is not None
        }
        self._disk = disk
        self._end_offset = end_offset
        self._firsts = sorted(found)
        self._paths = found
        self.min_offset = self._firsts[0] if self._firsts else 0
        self.last_file_offset = self._firsts[-1] if self._firsts else 0
        """First offset of the last file, which is never deleted."""

    def stored_at(self, topic: str, queue_id: int, queue_offset: int, unit: Unit) -> int | None:
        """Return the store timestamp of a unit's record, ms, or None for a foreign record."""
        offset, size, _ = unit
        place = bisect_right(self._firsts, offset) - 1
        if place < 0 or not 0 < size <= RECORD_BYTES_MAX:
            return None
        if self._end_offset is not None and offset + size > self._end_offset:
            return None
        first = self._firsts[place]
        try:
            data = _bytes_at(self._disk, self._paths[first], offset - first, size)
            head = head_of(data, offset)
        except (RecordError, FileNotFoundError):
            return None
        own = topic.encode(), queue_id, queue_offset
        is_own = (head.topic, head.queue_id, head.queue_offset) == own
        return head.store_timestamp if is_own else None


class QueueOnDisk:
    """Units of one queue in files, up to the first missing file."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._files: list[tuple[int, int, str]] = []
        """First unit, number of units, and path of each file."""
        self.end = 0
        """Queue offset behind the last unit."""
        for name in disk.listdir(directory):
            first = first_offset_of(name)
            if first is None:
                continue
            path = f"{directory}/{name}"
            file = disk.open(path, read_only=True)
            try:
                units = file.size() // UNIT_BYTES
                used = count_used(file, units * UNIT_BYTES) if units else 0
            finally:
                file.close()
            if not units or (self._files and sum(self._files[-1][:2]) != first // UNIT_BYTES):
                break
            self._files.append((first // UNIT_BYTES, units, path))
            if used:
                self.end = first // UNIT_BYTES + used
        self.first = self._files[0][0] if self._files else 0
        self.end = max(self.first, self.end)

    def units(self, start: int, end: int) -> Iterator[tuple[int, Unit]]:
        """Yield queue offset and unit from `start` up to `end`, both within the queue."""
        for first, count, path in self._files:
            limit = min(end, first + count)
            while first <= start < limit:
                wanted = min(_UNITS_AT_ONCE, limit - start)
                data = _bytes_at(
                    self._disk, path, (start - first) * UNIT_BYTES, wanted * UNIT_BYTES
                )
                yield from enumerate(UNIT.iter_unpack(data), start)
                if len(data) < wanted * UNIT_BYTES:
                    return
                start += wanted

    def unit(self, queue_offset: int) -> Unit | None:
        if not self.first <= queue_offset < self.end:
            return None
        return next((unit for _, unit in self.units(queue_offset, queue_offset + 1)), None)

    def first_behind(self, physical_offset: int) -> int:
        """Return the first queue offset with a unit that may be at or behind that log offset."""
        found, is_sure = first_behind(self.unit, self.first, self.end, physical_offset)
        return found if is_sure else self.first


class StoreOnDisk:
    def __init__(
        self, disk: Disk, queues_dir: str, log_dirs: Sequence[str], end_offset: int | None = None
    ) -> None:
        """Initialize the store; the log is trusted up to `end_offset`, or with None completely."""
        self._disk, self._queues_dir = disk, queues_dir
        self.log = LogFilesOnDisk(disk, log_dirs, end_offset)

    def first_unarchived(self, ends: Ends) -> list[Unarchived]:
        """Return the first unarchived message of each queue that needs archiving, in log order.

        Raises OSError if a file is unreadable.
        """
        found = []
        for topic, queue_id in self._queue_names():
            each = self._first_of(topic, queue_id, ends.get((topic, queue_id)))
            if each is not None:
                found.append(each)
        return sorted(found, key=lambda each: each.physical_offset)

    def count_between(self, each: Unarchived, begin: int, end: int) -> int:
        """Return how many unarchived messages of a queue begin in [begin, end) of the log."""
        queue = self._queue(each.topic, each.queue_id)
        first = max(each.queue_offset, queue.first_behind(begin))
        return max(0, queue.first_behind(end) - first)

    def _queue_names(self) -> Iterator[tuple[str, int]]:
        for topic in self._disk.listdir(self._queues_dir):
            directory = f"{self._queues_dir}/{topic}"
            if not is_system_topic(topic) and self._disk.is_dir(directory):
                for name in self._disk.listdir(directory):
                    if name.isdecimal():
                        yield topic, int(name)

    def _queue(self, topic: str, queue_id: int) -> QueueOnDisk:
        return QueueOnDisk(self._disk, f"{self._queues_dir}/{topic}/{queue_id}")

    def _first_of(self, topic: str, queue_id: int, last: LastMessage | None) -> Unarchived | None:
        queue, log = self._queue(topic, queue_id), self.log
        start = queue.first_behind(log.min_offset)
        if last is not None and last.physical_offset >= log.min_offset:
            unit = queue.unit(last.queue_offset)
            if unit is not None and unit[0] == last.physical_offset:
                stored_ms = log.stored_at(topic, queue_id, last.queue_offset, unit)
                if stored_ms == last.store_timestamp:
                    start = max(start, last.queue_offset + 1)
        for number, unit in queue.units(start, queue.end):
            if unit[0] < log.min_offset or unit[1] == FILLER_BYTES:
                continue
            if log.stored_at(topic, queue_id, number, unit) is not None:
                return Unarchived(topic, queue_id, number, unit[0])
        return None


def _bytes_at(disk: Disk, path: str, position: int, count: int) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.pread(count, position)
    finally:
        file.close()
