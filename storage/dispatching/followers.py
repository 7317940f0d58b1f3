"""Catch-up of the followers (index, transaction table) with the commit log, a slice at a time.

A follower that does not know the whole log *lags*. It must not get new records, which would leave a
hole. Its owner reads the log for it until nothing is missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.message import RecordError, RecordHead
from storage.dispatching.dispatch import Dispatcher, Follower, entry_of
from storage.errors import OffsetError
from storage.log.commit_log import CommitLog
from storage.log.reader import View, head_of, walk
from storage.queues.dispatch_entry import DispatchEntry

SLICE_RECORDS = 256
"""Records read and fed at a time, which takes about 2 ms."""
SLICE_KEYS = 1024
"""Index keys at a time: a record may have 129 of them."""
_WINDOW_BYTES = 128 << 10
"""Bytes read from the file at a time."""


@dataclass(slots=True)
class Slice:
    """Consecutive records, and the start of the next one."""

    entries: list[DispatchEntry] = field(default_factory=list)
    next_offset: int = 0


class DispatchReader:
    """Builds dispatch entries from the log, for one owner at a time. Damage raises no error."""

    def __init__(self, log: CommitLog, delay_levels: Sequence[int]) -> None:
        self._log = log
        self._delay_levels = delay_levels
        self.window_bytes = _WINDOW_BYTES

    def read(self, offset: int, count_max: int) -> Slice:
        """Return up to `count_max` records from `offset` on, below the end of the log.

        There may be more even after fewer: compare `next_offset` with the end of the log. Ranges
        without a record are skipped; a record with damage in its body only is not. Raise OSError
        for a disk error, but not for a file that is deleted meanwhile.
        """
        try:
            return self._read(offset, count_max)
        except OSError:
            first_offset = self._log.min_offset()
            if offset < first_offset:
                return Slice(next_offset=first_offset)
            raise

    def _read(self, offset: int, count_max: int) -> Slice:
        reader = self._log.reader(self.window_bytes)
        part, keys = Slice(next_offset=max(offset, self._log.min_offset())), 0
        for item in walk(reader, part.next_offset, reader.end_offset, check_crc=False):
            if isinstance(item, RecordHead):
                entry = entry_of(item, self._delay_levels)
                part.entries.append(entry)
                keys += len(entry.keys)
                part.next_offset = item.physical_offset + item.record_bytes
            elif item is not None:
                part.next_offset = item.end
            if len(part.entries) == count_max or keys >= SLICE_KEYS:
                return part
        first_offset = self._log.min_offset()
        is_gone = part.next_offset < first_offset  # deleted meanwhile
        part.next_offset = first_offset if is_gone else max(part.next_offset, reader.end_offset)
        return part


class CoveredRange(Protocol):
    """Range of the log that a file knows, with marks that identify the log."""

    @property
    def offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def last_timestamp(self) -> int: ...


def not_of_this_log(view: View, covered: CoveredRange, min_offset: int, end_offset: int) -> str:
    """Return why a file is of another log, or "".

    The file names its last record, which another log would not have at that offset.
    """
    offset, last_offset = covered.offset, covered.last_offset
    if not min_offset <= offset <= end_offset:
        return f"it reaches {offset}, the log from {min_offset} to {end_offset}"
    if last_offset < min_offset:
        return ""
    try:
        head = head_of(view(last_offset, offset - last_offset), last_offset)
    except (OffsetError, RecordError):
        return f"the log has no record at {last_offset}"
    if head.store_timestamp != covered.last_timestamp:
        return f"the log has another record at {last_offset}"
    return ""


class Lagging:
    """Tracks the followers of a store that lag, and thereby their owners.

    A name in `behind` belongs to the catch-up actor, all others to Reput. Only the present owner
    adds or removes its follower's name; this hands the follower over.
    """

    def __init__(
        self, followers: Sequence[Follower], reader: DispatchReader, dispatcher: Dispatcher
    ) -> None:
        """Create the tracker; `followers` may still grow until `start_at`."""
        self.behind: set[str] = set()
        self.reader = reader
        self._followers = followers
        self._dispatcher = dispatcher

    def start_at(self, end_offset: int) -> None:
        """Separate current from lagging followers; the log was recovered up to `end_offset`."""
        self.behind = {each.name for each in self._followers if each.covered_offset < end_offset}
        self._dispatcher.followers = self.in_time()

    def late(self) -> tuple[Follower, ...]:
        return tuple(each for each in self._followers if each.name in self.behind)

    def in_time(self) -> tuple[Follower, ...]:
        return tuple(each for each in self._followers if each.name not in self.behind)

    def catch_up(self, end_offset: int, go_on: Callable[[], bool] = lambda: True) -> None:
        """Bring all followers to the end at once; the caller must be the store's only user.

        Call `go_on` before each slice and stop when it returns False. Raise StoreError.
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
    """Pass a slice to followers that know the log at least up to its first record.

    Raise DiskFull or StoreError; the same slice may be fed again.
    """
    if part.entries:
        for follower in followers:
            follower.dispatch(part.entries)
