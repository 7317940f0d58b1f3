"""The table of Spark queries' sinks: how far each is, by the log; a file shortens the reading.

A *lane* is what one task of a query sends to one topic; of each lane the last message counts
(protocol/sink.py).  The table follows the commit log behind the consume queues and lies in memory;
`<root>/troupemq/sinks.json` is a copy of it as of an offset of the log, written only when the log
is on disk up to there.  What the log has beyond is dispatched again at a start.  A file that is
missing, damaged or not of this log is not believed: then all of the log is.

    {"covered": [offset, offset of the last record, its store timestamp (ms)],
     "lanes": [[query, partition, topic, batch, sequence, chain, store timestamp (ms)
                (, owner)], ...]}

`owner` is there for the lanes of accounts. `sequence` is that of the next message; lanes stand in
the order of their last messages.

A lane is forgotten when the log is sinkProgressDays beyond its last message, and the one that was
quiet for the longest when there are more than sinkProgressMax. An account that has more than half
of them loses one of its own, so that it does not have those of others forgotten.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from protocol.message import RecordError, RecordHead
from protocol.properties import REAL_TOPIC
from protocol.sink import (
    CHAIN_BYTES,
    SINK_MARK,
    TROUPE_SINK,
    may_be_of_sink,
    parse_mark,
)
from protocol.topic_names import SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.dispatching.dispatch import property_of
from storage.dispatching.followers import not_of_this_log
from storage.errors import OffsetError
from storage.files.checked_json import ODD_VALUES, read_checked, write_checked
from storage.files.disk import Disk
from storage.log.reader import View, head_of
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, single_entries

SAVE_BYTES: Final = 64 << 20
"""Of the log: what a killed broker has to read again for this table."""
DAY_MS: Final = 86_400_000
NO_SINK_FILE: Final = "there is none"

_MARK = f"\x02{TROUPE_SINK}\x01".encode()
_REAL_TOPIC = f"\x02{REAL_TOPIC}\x01".encode()
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class Lane(NamedTuple):
    """What one task of a query sends to one topic."""

    query: str
    partition: int
    topic: str
    owner: str = ""
    """Of whose query (protocol/sink.py): another account's messages do not move it."""


class Progress(NamedTuple):
    """How far a lane is."""

    batch: int
    sequence: int
    """Of the next message of the batch."""
    chain: bytes
    """The checksum behind the last one."""
    store_timestamp: int = 0


class SinkCovered(NamedTuple):
    """How much of the log is known, and by what one can tell this log from others."""

    offset: int
    last_offset: int = -1
    last_timestamp: int = 0


class SinkCopy(NamedTuple):
    """The table as it was; for whoever writes the file."""

    covered: SinkCovered
    lanes: dict[Lane, Progress]


def marked_by(head: RecordHead) -> tuple[Lane, Progress] | None:
    """What a record says of a lane: how far it is with this message. None if it is of no sink."""
    if head.prepared_transaction_offset != SINK_MARK:
        return None
    raw = b"\x02" + head.properties
    mark = parse_mark(property_of(raw, _MARK))
    if mark is None:
        return None
    topic = property_of(raw, _REAL_TOPIC) if head.topic == _SCHEDULE_TOPIC else head.topic
    lane = Lane(mark.query, mark.partition, topic.decode("utf-8", "replace"), mark.owner)
    return lane, Progress(mark.batch, mark.sequence + 1, mark.chain, head.store_timestamp)


class SinkTable:
    """A follower of the log (dispatch.py). One owner.

    Another thread may `save` what `unsynced` gave.
    """

    name = "sink table"

    def __init__(
        self, config: StoreConfig, disk: Disk, view: View, durable_offset: Callable[[], int]
    ) -> None:
        """`view` reads the log; below `durable_offset` the log is on disk."""
        self._disk, self._view, self._durable_offset = disk, view, durable_offset
        self._path = config.sinks_path
        self._days_ms = config.sink_progress_days * DAY_MS
        self._lanes_max = config.sink_progress_max
        self._lanes: dict[Lane, Progress] = {}
        self._counts: Counter[str] = Counter()
        """Lanes by owner."""
        self._covered = SinkCovered(0)
        self._saved = SinkCovered(-1)
        self._copy: SinkCopy | None = None
        self.unreadable_count = 0
        """Records that could not be read when they were dispatched; they changed nothing."""
        self.evicted_count = 0
        """Lanes that had to leave because there were too many."""

    # -- start-up -------------------------------------------------------------------------------

    def load(self, min_offset: int, end_offset: int) -> str:
        """Takes what is on disk; returns why the whole log has to be read instead, or nothing.

        The log reaches from `min_offset` to `end_offset`.
        """
        self._lanes, self._copy, self._counts = {}, None, Counter()
        self._covered, self._saved = SinkCovered(min_offset), SinkCovered(-1)
        if not self._disk.exists(self._path):
            return NO_SINK_FILE if end_offset > min_offset else ""
        try:
            found = read_checked(self._disk, self._path)
            covered = SinkCovered(*map(int, found["covered"]))
            lanes = dict(map(_lane_of, found["lanes"]))
        except ODD_VALUES:
            return "it is damaged"
        if reason := not_of_this_log(self._view, covered, min_offset, end_offset):
            return reason
        self._lanes, self._covered, self._saved = lanes, covered, covered
        self._counts = Counter(lane.owner for lane in lanes)
        self._forget_old()
        return ""

    # -- following the log ----------------------------------------------------------------------

    @property
    def covered_offset(self) -> int:
        """Records that begin below it are known."""
        return self._covered.offset

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Takes records in the order of the log; what is covered is skipped."""
        covered = self._covered.offset
        if entries and entries[0].physical_offset < covered:
            entries = [
                entry for entry in single_entries(entries) if entry.physical_offset >= covered
            ]
        if not entries:
            return
        for entry in entries:
            # No message of a batch is of a sink: their prepared transaction offset is 0.
            if isinstance(entry, DispatchEntry) and entry.keys and may_be_of_sink(entry.keys[0]):
                self._take(entry)
        last = entries[-1]
        begin = last.physical_offset
        self._covered = SinkCovered(begin + last.record_bytes, begin, last.store_timestamp)

    def _take(self, entry: DispatchEntry) -> None:
        try:
            data = self._view(entry.physical_offset, entry.record_bytes)
            found = marked_by(head_of(data, entry.physical_offset))
        except (OffsetError, RecordError):
            self.unreadable_count += 1
            return
        if found is None:
            return
        lane, progress = found
        known = self._lanes.pop(lane, None)
        if known is not None and (known.batch, known.sequence) > (
            progress.batch,
            progress.sequence,
        ):
            progress = known
        self._lanes[lane] = progress
        if known is None:
            self._counts[lane.owner] += 1
        if len(self._lanes) > self._lanes_max:
            self._evict(lane.owner)

    def _evict(self, owner: str) -> None:
        has_most = 2 * self._counts[owner] > self._lanes_max
        victim = next(each for each in self._lanes if not has_most or each.owner == owner)
        self._drop(victim)
        self.evicted_count += 1

    def _drop(self, lane: Lane) -> None:
        del self._lanes[lane]
        self._counts[lane.owner] -= 1

    def write_out(self) -> None:
        """Nothing waits in memory for more than the file."""

    def trim_before(self, min_physical: int) -> list[str]:
        """What is known of records that are gone stays known. No files."""
        return []

    def start_anew(self, min_offset: int) -> None:
        """Forgets everything: the log has to be dispatched again from its beginning."""
        self._lanes, self._copy, self._counts = {}, None, Counter()
        self._covered, self._saved = SinkCovered(min_offset), SinkCovered(-1)

    def _forget_old(self) -> None:
        oldest_ms = self._covered.last_timestamp - self._days_ms
        while self._lanes:
            lane, progress = next(iter(self._lanes.items()))
            if progress.store_timestamp >= oldest_ms:
                return
            self._drop(lane)

    # -- the file, written by another thread too ------------------------------------------------

    def unsynced(self, *, at_once: bool = False) -> SinkCopy | None:
        """What to save now, if it is time; None if it is not.

        It is when the log has grown by SAVE_BYTES since, or with `at_once` at all; and the copy is
        given only when the log is on disk as far as it reaches: ask again.
        """
        grown = self._covered.offset - self._saved.offset
        if self._copy is None and (self._saved.offset < 0 or grown >= SAVE_BYTES or at_once):
            if self._covered == self._saved:
                return None
            self._forget_old()
            self._copy = SinkCopy(self._covered, dict(self._lanes))
        copy = self._copy
        return copy if copy is not None and copy.covered.offset <= self._durable_offset() else None

    def save(self, copy: SinkCopy) -> None:
        """Puts it on disk. Blocks; any one thread. Raises StoreError."""
        lanes = [
            [*lane[:3], *each[:2], each.chain.hex(), each[3], *([lane.owner] if lane.owner else ())]
            for lane, each in copy.lanes.items()
        ]
        write_checked(self._disk, self._path, {"covered": copy.covered, "lanes": lanes})

    def mark_synced(self, copy: SinkCopy) -> None:
        """Notes that what `unsynced` gave is on disk now."""
        self._saved = copy.covered
        if self._copy is copy:
            self._copy = None

    def sync(self) -> None:
        """Brings the table to disk as far as the log is. Raises StoreError."""
        if self._copy is not None and self._copy.covered.offset > self._durable_offset():
            self._copy = None  # an older one would do, but there is none
        copy = self.unsynced(at_once=True)
        if copy is not None:
            self.save(copy)
            self.mark_synced(copy)

    # -- answers --------------------------------------------------------------------------------

    def find(self, lane: Lane) -> Progress | None:
        """How far a lane is; None if nothing is known of it (any more)."""
        progress = self._lanes.get(lane)
        if progress is None:
            return None
        is_old = progress.store_timestamp < self._covered.last_timestamp - self._days_ms
        return None if is_old else progress

    def lanes(self) -> dict[Lane, Progress]:
        """All of them, the one that was quiet for the longest first. Not to be changed."""
        return self._lanes


def _lane_of(found: Sequence[Any]) -> tuple[Lane, Progress]:
    """An entry of the file. Raises ValueError or TypeError."""
    query, partition, topic, batch, sequence, chain, timestamp, *owner = found
    digest = bytes.fromhex(chain)
    if len(digest) != CHAIN_BYTES:
        raise ValueError(chain)
    progress = Progress(int(batch), int(sequence), digest, int(timestamp))
    return Lane(str(query), int(partition), str(topic), *map(str, owner)), progress
