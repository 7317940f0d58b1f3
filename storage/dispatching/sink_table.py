"""The progress of Spark queries' sinks, derived from the commit log and saved in a file.

A *lane* is what one task of a query sends to one topic; the last message of each lane counts
(protocol/sink.py). The table follows the commit log behind the consume queues and lives in memory.
`<root>/troupemq/sinks.json` is a copy for one offset of the log, written only when the log is on
disk up to there. A start dispatches the log behind that offset again. If the file is missing,
damaged or of another log, a start dispatches the whole log.

    {"covered": [offset, offset of the last record, its store timestamp (ms)],
     "lanes": [[query, partition, topic, batch, sequence, chain, store timestamp (ms)
                (, owner)], ...]}

`owner` exists for the lanes of accounts. `sequence` is that of the next message. Lanes are in the
order of their last messages.

A lane is dropped when the log is sinkProgressDays past its last message. If there are more than
sinkProgressMax, the lane that was idle longest is dropped. An account that has more than half of
them loses one of its own, so that it does not displace those of others.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
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
"""Growth of the log between saves: what a killed broker reads again for this table."""
DAY_MS: Final = 86_400_000
NO_SINK_FILE: Final = "its file is missing"

_MARK = f"\x02{TROUPE_SINK}\x01".encode()
_REAL_TOPIC = f"\x02{REAL_TOPIC}\x01".encode()
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class Lane(NamedTuple):
    """The messages of one query task to one topic."""

    query: str
    partition: int
    topic: str
    owner: str = ""
    """Account of the query (protocol/sink.py): messages of other accounts do not move the lane."""


class Progress(NamedTuple):
    batch: int
    sequence: int
    """Sequence number of the next message of the batch."""
    chain: bytes
    """Checksum after the last message."""
    store_timestamp: int = 0


class SinkCovered(NamedTuple):
    """Range of the log that is known, with marks that identify the log."""

    offset: int
    last_offset: int = -1
    last_timestamp: int = 0


class SinkCopy(NamedTuple):
    """A copy of the table, for the writer of the file."""

    covered: SinkCovered
    lanes: dict[Lane, Progress]


def marked_by(head: RecordHead) -> tuple[Lane, Progress] | None:
    """Return the lane of a record and its progress with this message, or None without a sink."""
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
    """Progress of Spark's sink by lane: its last stored batch, taken from the dispatched records.

    One thread owns it. Another thread may `save` what `unsynced` returned.
    """

    name = "sink table"

    def __init__(
        self, config: StoreConfig, disk: Disk, view: View, durable_offset: Callable[[], int]
    ) -> None:
        """Create the table; `view` reads the log, which is on disk below `durable_offset`."""
        self._disk, self._view, self._durable_offset = disk, view, durable_offset
        self._path = config.sinks_path
        self._days_ms = config.sink_progress_days * DAY_MS
        self._lanes_max = config.sink_progress_max
        self._lanes: dict[Lane, Progress] = {}
        self._counts: Counter[str] = Counter()
        self._covered = SinkCovered(0)
        self._saved = SinkCovered(-1)
        self._copy: SinkCopy | None = None
        self.unreadable_count = 0
        """Records that were unreadable when dispatched; they changed nothing."""
        self.evicted_count = 0
        """Lanes dropped because of the limit."""

    # -- start-up -------------------------------------------------------------------------------

    def load(self, min_offset: int, end_offset: int) -> str:
        """Load the file; return why the whole log must be read instead, or "".

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
        return self._covered.offset

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Take records in the order of the log; skip those that are covered."""
        covered = self._covered.offset
        if entries and entries[0].physical_offset < covered:
            entries = [
                entry for entry in single_entries(entries) if entry.physical_offset >= covered
            ]
        if not entries:
            return
        for entry in entries:
            # Messages of a batch are never of a sink: their prepared transaction offset is 0.
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
        """Do nothing: all changes are in memory until `save`."""

    def trim_before(self, min_physical: int) -> list[str]:
        """Return no files; progress outlives the deleted records."""
        return []

    def start_anew(self, min_offset: int) -> None:
        """Drop everything: the log must be dispatched again from its beginning."""
        self._lanes, self._copy, self._counts = {}, None, Counter()
        self._covered, self._saved = SinkCovered(min_offset), SinkCovered(-1)

    def _forget_old(self) -> None:
        oldest_ms = self._covered.last_timestamp - self._days_ms
        # The first of a dict is found slowly behind many deleted ones.
        items = takewhile(lambda item: item[1].store_timestamp < oldest_ms, self._lanes.items())
        for lane, _ in [*items]:
            self._drop(lane)

    # -- the file, written by another thread too ------------------------------------------------

    def unsynced(self, *, at_once: bool = False) -> SinkCopy | None:
        """Return the copy to save now, or None.

        A save is due when the log has grown by SAVE_BYTES, or with `at_once` by anything. The copy
        is only returned once the log is on disk that far: ask again.
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
        """Write the copy to disk. Blocks; any one thread. Raise StoreError."""
        lanes = [
            [*lane[:3], *each[:2], each.chain.hex(), each[3], *([lane.owner] if lane.owner else ())]
            for lane, each in copy.lanes.items()
        ]
        write_checked(self._disk, self._path, {"covered": copy.covered, "lanes": lanes})

    def mark_synced(self, copy: SinkCopy) -> None:
        """Note that the copy from `unsynced` is on disk."""
        self._saved = copy.covered
        if self._copy is copy:
            self._copy = None

    def sync(self) -> None:
        """Save the table as far as the log is on disk. Raise StoreError."""
        if self._copy is not None and self._copy.covered.offset > self._durable_offset():
            self._copy = None  # an older one would do, but there is no older one
        copy = self.unsynced(at_once=True)
        if copy is not None:
            self.save(copy)
            self.mark_synced(copy)

    # -- answers --------------------------------------------------------------------------------

    def find(self, lane: Lane) -> Progress | None:
        """Return the progress of a lane; None if it is unknown or expired."""
        progress = self._lanes.get(lane)
        if progress is None:
            return None
        is_old = progress.store_timestamp < self._covered.last_timestamp - self._days_ms
        return None if is_old else progress

    def lanes(self) -> dict[Lane, Progress]:
        """Return all lanes, the longest idle first; the caller must not change them."""
        return self._lanes


def _lane_of(found: Sequence[Any]) -> tuple[Lane, Progress]:
    """Return an entry of the file. Raise ValueError or TypeError."""
    query, partition, topic, batch, sequence, chain, timestamp, *owner = found
    digest = bytes.fromhex(chain)
    if len(digest) != CHAIN_BYTES:
        raise ValueError(chain)
    progress = Progress(int(batch), int(sequence), digest, int(timestamp))
    return Lane(str(query), int(partition), str(topic), *map(str, owner)), progress
