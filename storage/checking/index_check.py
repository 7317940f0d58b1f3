"""Comparison of one index file with the commit log, a slice at a time, read-only.

An index file follows from the log. It has the keys of the records in order, each entry chained to
the previous one of the same slot. So one pass over both finds every fault. Faults are an entry
without its record or key, a missing key, a wrong time, a broken chain, a wrong slot. Memory: 4
bytes for each slot, 20 MB at the default size.

Some deviations of RocketMQ are tolerated. Keys may be repeated for a record in the file before, or
for the newest record at a restart. Entries may be of deleted or damaged records.
"""

from array import array
from collections.abc import Container, Iterator

from storage.config import StoreConfig
from storage.dispatching.dispatch import INDEXED_WORDS_MAX
from storage.dispatching.followers import SLICE_RECORDS, DispatchReader
from storage.files.disk import Disk
from storage.index.index_file import IndexFile
from storage.index.index_layout import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    SECONDS_MAX,
    SLOT_BYTES,
    IndexHeader,
    fault_of,
    slots_of,
)
from storage.index.key_hash import TopicHashes
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.queues.dispatch_entry import DispatchEntry

_ENTRIES_READ = 2048
_SLOTS_COMPARED = 1 << 16
_ROLLED_BACK = 0xC
Entry = tuple[int, int, int, int]


class _AnyHash:
    def __contains__(self, key_hash: object) -> bool:
        return True


_ANY = _AnyHash()


class IndexCheck:
    """One pass over one file: `step` until it returns True, then `reason`; `close` in any case.

    Any thread, beside the writer: entries that are put meanwhile are ignored.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        damage: Damage,
        reader: DispatchReader,
        file: IndexFile,
        before: IndexFile | None,
    ) -> None:
        """Open the file; `before` is its predecessor, None for the first. Raise OSError."""
        self.path = file.path
        self.reason = ""
        self._log, self._damage, self._reader = log, damage, reader
        self._slot_count, self._entry_count = config.max_hash_slots, config.max_index_entries
        self._entries_start = HEADER_BYTES + self._slot_count * SLOT_BYTES
        self._hashes = TopicHashes()
        self._position, self._begun = before.last_of_record() if before else (0, 0)
        self._before_end, self._before_ms = self._position, before.end_timestamp if before else None
        self._end = file.next_entry
        self._is_full = file.is_full
        self._file = disk.open(file.path, read_only=True)
        self._header = IndexHeader.of(self._file.pread(HEADER_BYTES, 0))
        self._number = 1
        self._chunk: list[Entry] = []
        self._chunk_start = 1
        self._last_hashes: tuple[int, Container[int]] = (-1, frozenset())
        self._heads = array("I", bytes(self._slot_count * SLOT_BYTES))
        self._slots_seen = 0

    def close(self) -> None:
        self._file.close()

    def step(self) -> bool:
        """Compare a few hundred records or some thousand slots; return True at the end.

        Raise OSError if the file or the log cannot be read.
        """
        if self._is_full and not self._chunk:
            self.reason = fault_of(self._file, self._header, self._slot_count, self._entry_count)
        if not self.reason and self._number < self._end:
            self.reason = self._compare_records()
        elif not self.reason and self._slots_seen < self._slot_count:
            self.reason = self._compare_slots()
        is_through = self._number >= self._end and self._slots_seen >= self._slot_count
        return bool(self.reason) or is_through

    # -- entries --------------------------------------------------------------------------------

    def _compare_records(self) -> str:
        if self._position >= self._log.end_offset:
            entry = self._entry()
            return f"entry {self._number} names offset {entry[1]}, behind the end of the log"
        part = self._reader.read(self._position, SLICE_RECORDS)
        for record in part.entries:
            if reason := self._compare(record):
                return reason
            if self._number >= self._end:
                return ""
        self._position = part.next_offset
        return self._skip_below(part.next_offset)

    def _compare(self, record: DispatchEntry) -> str:
        """Compare the entries up to and including those of one record."""
        offset = record.physical_offset
        if reason := self._skip_below(offset):
            return reason
        keys = () if record.sys_flag & _ROLLED_BACK == _ROLLED_BACK else record.keys
        hashes = [self._hashes.index_hash(record.topic, key) for key in keys]
        # Earlier versions and 4.9.7 index all words of KEYS; only the first ones are known here.
        known = frozenset(hashes) if len(keys) < INDEXED_WORDS_MAX else _ANY
        first = self._begun if offset == self._before_end else 0
        for key_hash in hashes[first:]:
            while self._number < self._end:
                entry = self._entry()
                if entry[:2] == (key_hash, offset):
                    break
                if not self._is_repeated(entry, offset, known):
                    if self._damage.overlaps(offset, record.end_offset):
                        return ""
                    return f"a key of the record at {offset} is not in entry {self._number}"
                if reason := self._take(entry, None):
                    return reason
            if self._number >= self._end:
                return ""
            if reason := self._take(entry, record.store_timestamp):
                return reason
        while self._number < self._end and self._is_repeated(self._entry(), offset, known):
            if reason := self._take(self._entry(), None):
                return reason
        self._last_hashes = offset, known
        return ""

    def _is_repeated(self, entry: Entry, offset: int, known: Container[int]) -> bool:
        """Return whether the entry repeats a key of this record or of the last with keys."""
        if entry[1] == offset:
            return entry[0] in known
        return entry[1] == self._last_hashes[0] and entry[0] in self._last_hashes[1]

    def _skip_below(self, offset: int) -> str:
        """Skip entries of records before `offset` that are deleted, damaged or repeated."""
        while self._number < self._end:
            entry = self._entry()
            if entry[1] >= offset:
                return ""
            gone = entry[1] < self._log.min_offset()
            excused = gone or self._damage.overlaps(entry[1], entry[1] + 1)
            if not excused and not self._is_repeated(entry, -1, frozenset()):
                return f"entry {self._number} names offset {entry[1]}, but no record has its key"
            if reason := self._take(entry, None):
                return reason
        return ""

    def _take(self, entry: Entry, timestamp: int | None) -> str:
        """Check chain and time of the next entry and advance; None means any time."""
        key_hash, _, seconds, previous = entry
        number = self._number
        self._number += 1
        if key_hash < 0:
            return f"entry {number} has the hash {key_hash}"
        slot = key_hash % self._slot_count
        if previous != self._heads[slot]:
            return f"entry {number} is chained to {previous} instead of {self._heads[slot]}"
        self._heads[slot] = number
        if timestamp is None or seconds == self._seconds(timestamp):
            return ""
        if number == 1 and self._may_be_first(seconds, timestamp):
            return ""
        return f"entry {number} says {seconds} seconds, its record was stored at another time"

    def _seconds(self, timestamp: int) -> int:
        begin = self._header.begin_timestamp
        if begin <= 0:
            return 0
        return min(max((timestamp - begin) // 1000, 0), SECONDS_MAX)

    def _may_be_first(self, seconds: int, timestamp: int) -> bool:
        """Return whether the time fits the first entry of a file.

        It counts from the end of the file before, which may be deleted.
        """
        if self._before_ms is None:
            return seconds >= 0
        return seconds == min(max((timestamp - self._before_ms) // 1000, 0), SECONDS_MAX)

    def _entry(self) -> Entry:
        place = self._number - self._chunk_start
        if place >= len(self._chunk):
            self._chunk_start, place = self._number, 0
            count = min(_ENTRIES_READ, self._end - self._number)
            position = self._entries_start + self._number * ENTRY_BYTES
            data = self._file.pread(count * ENTRY_BYTES, position).ljust(count * ENTRY_BYTES, b"\0")
            self._chunk = list(_unpacked(data))
        return self._chunk[place]

    # -- slots ----------------------------------------------------------------------------------

    def _compare_slots(self) -> str:
        first = self._slots_seen
        count = min(_SLOTS_COMPARED, self._slot_count - first)
        data = self._file.pread(count * SLOT_BYTES, HEADER_BYTES + first * SLOT_BYTES)
        self._slots_seen += count
        found, wanted = slots_of(data), self._heads[first : first + count]
        if found == wanted:
            return ""
        for place, (there, here) in enumerate(zip(found, wanted, strict=True)):
            if there != here and there < self._end:
                return f"slot {first + place} leads to entry {there} instead of {here}"
        return ""


def _unpacked(data: bytes) -> Iterator[Entry]:
    yield from ENTRY.iter_unpack(data)


def checks_of(
    config: StoreConfig,
    disk: Disk,
    log: CommitLog,
    damage: Damage,
    reader: DispatchReader,
    files: tuple[IndexFile, ...],
) -> Iterator[IndexCheck]:
    """Yield a check for each file (`Index.files`), oldest first; skip deleted ones."""
    before: IndexFile | None = None
    for file in files:
        if file.next_entry <= 1:
            continue
        try:
            yield IndexCheck(config, disk, log, damage, reader, file, before)
        except FileNotFoundError:
            before = None
            continue
        before = file
