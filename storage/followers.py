"""Brings what follows the log (index, transaction table) to its end, a slice at a time.

A follower that does not know the whole log is *behind*: it must not be told of new records, or
there would be a hole in it. Whoever owns it reads the log for it until nothing is missing.

The log is read with `pread` into memory of our own: a page that is not cached then costs a wait
without the interpreter lock, where touching the map would stop every thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.message import (
    BLANK_MAGIC,
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    RecordError,
    scan_head,
)
from storage.commit_log import CommitLog
from storage.damage import Damage
from storage.dispatch import DispatchEntry, Dispatcher, Follower, entry_of
from storage.resync import next_record

SLICE_RECORDS = 256
"""Read and fed at a time, which takes about 2 ms."""
_WINDOW_BYTES = 128 << 10
"""Read from the file at a time."""


@dataclass(slots=True)
class Slice:
    """Some records behind each other, and where the next one begins."""

    entries: list[DispatchEntry] = field(default_factory=list)
    next_offset: int = 0


class LogReader:
    """Makes dispatch entries from the log, for one owner at a time. Never raises for damage."""

    def __init__(self, log: CommitLog, damage: Damage, delay_levels: Sequence[int]) -> None:
        self._log = log
        self._damage = damage
        self._delay_levels = delay_levels
        self.window_bytes = _WINDOW_BYTES

    def read(self, offset: int, count_max: int) -> Slice:
        """Up to `count_max` records from `offset` on, below the log's end.

        Fewer does not mean that there are no more: compare `next_offset` with the log's end. What
        holds no record is skipped; a record that is damaged in its body only is not.
        Raises OSError when the disk does. The file may be deleted meanwhile.
        """
        try:
            return self._read(offset, count_max)
        except OSError:
            first_offset = self._log.min_offset()
            if offset < first_offset:
                return Slice(next_offset=first_offset)
            raise

    def _read(self, offset: int, count_max: int) -> Slice:
        end = self._log.end_offset
        offset = max(offset, self._log.min_offset())
        result = Slice(next_offset=offset)
        if offset >= end:
            return result
        file = self._log.queue.find(offset)
        if file is None:  # deleted meanwhile
            result.next_offset = max(offset, self._log.min_offset())
            return result
        limit = min(end, file.end_offset)
        data = file.file.pread(min(self.window_bytes, limit - offset), offset - file.first_offset)
        if (needed := _record_bytes(data)) > len(data) and offset + needed <= limit:
            data = file.file.pread(needed, offset - file.first_offset)
        position = 0
        while len(result.entries) < count_max and offset + position < limit:
            try:
                head = scan_head(data, position)
                if head.magic != BLANK_MAGIC and head.physical_offset != offset + position:
                    raise RecordError("it says that it lies elsewhere")
            except RecordError:
                if not _goes_on(data, position, offset, limit):
                    position = self._behind_damage(offset + position, limit) - offset
                break
            if head.magic == BLANK_MAGIC:
                position = file.end_offset - offset
                break
            result.entries.append(entry_of(head, self._delay_levels))
            position += head.record_bytes
        result.next_offset = offset + position
        return result

    def _behind_damage(self, offset: int, limit: int) -> int:
        """Where to go on behind a place that holds no record: the next one, or the next file."""
        known = self._damage.end_of(offset, offset + 1)
        if known is not None:
            return known
        found = next_record(self._log.queue, offset, limit)
        return limit if found is None else found


def _record_bytes(data: bytes) -> int:
    """What the record at the beginning says of its size; 0 if that cannot be."""
    if len(data) < SIZE_AND_MAGIC.size:
        return 0
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    return int(size) if magic == RECORD_MAGIC else 0


def _goes_on(data: bytes, position: int, offset: int, limit: int) -> bool:
    """Whether what fails at `position` is only cut off by the window's end."""
    if position == 0 or len(data) >= limit - offset:
        return False
    size = _record_bytes(data[position : position + SIZE_AND_MAGIC.size])
    rest = len(data) - position
    return rest < SIZE_AND_MAGIC.size or rest < size <= limit - offset - position


class Lagging:
    """Which followers of a store are behind, and so who owns them.

    A name in `behind` belongs to the catch-up actor, all others to Reput. Only the present owner
    takes its follower's name out, or puts it in: that is how one is handed over.
    """

    def __init__(
        self, followers: Sequence[Follower], reader: LogReader, dispatcher: Dispatcher
    ) -> None:
        """`followers` may still grow until `start_at`."""
        self.behind: set[str] = set()
        self.reader = reader
        self._followers = followers
        self._dispatcher = dispatcher

    def start_at(self, end_offset: int) -> None:
        """The log has been recovered up to here: tells those that know all of it from the rest."""
        self.behind = {each.name for each in self._followers if each.covered_offset < end_offset}
        self._dispatcher.followers = self.in_time()

    def late(self) -> tuple[Follower, ...]:
        """Those that are behind."""
        return tuple(each for each in self._followers if each.name in self.behind)

    def in_time(self) -> tuple[Follower, ...]:
        """The others."""
        return tuple(each for each in self._followers if each.name not in self.behind)

    def catch_up(self, end_offset: int, go_on: Callable[[], bool] = lambda: True) -> None:
        """Brings all of them to the end at once; for whoever has the store to itself.

        Asks `go_on` before each slice; when it says no, those that are behind stay so.
        Raises StoreError.
        """
        fed = self._dispatcher.followers
        late = [each for each in self._followers if each not in fed]
        position = min((each.covered_offset for each in late), default=end_offset)
        while position < end_offset:
            if not go_on():
                return
            part = self.reader.read(position, SLICE_RECORDS)
            feed(late, part)
            position = part.next_offset
        self.behind.clear()
        self._dispatcher.followers = tuple(self._followers)


def feed(followers: Sequence[Follower], part: Slice) -> None:
    """Gives a slice to followers that know the log at least up to its first record.

    Raises DiskFull or StoreError; the same slice may be fed again.
    """
    if part.entries:
        for follower in followers:
            follower.dispatch(part.entries)
