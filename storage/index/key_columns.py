"""Keys of records for the index, in three columns: hash, offset and time.

The broker fills them with what it appends (index.py). If much of the log must be indexed again,
processes fill them with a stretch each (storage/recovery/part_worker.py).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from storage.index.key_hash import TopicHashes, index_hashes
from storage.queues.dispatch_entry import (
    Dispatched,
    DispatchEntry,
    EntryRun,
    MixedEntries,
    single_entries,
)

_ROLLED_BACK = 0xC
"""The two transaction bits: such records are not indexed."""


class KeyPart(NamedTuple):
    """The keys of consecutive whole records; see LogChunk (storage/recovery/log_chunks.py)."""

    start: int
    end: int
    """Start and end are offsets of the log."""
    record_count: int
    hashes: bytes
    """32 bits each in native byte order; the other columns have 64 bits."""
    offsets: bytes
    timestamps: bytes

    def serves(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def fields(self) -> tuple[Any, ...]:
        return tuple(self)

    @classmethod
    def of_fields(cls, fields: Iterable[Any]) -> "KeyPart":
        return cls._make(fields)


class KeyColumns:
    """Keys in the order of the log. One owner."""

    __slots__ = ("_topic_hashes", "hashes", "offsets", "timestamps")

    def __init__(self) -> None:
        self.hashes: list[int] = []
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self._topic_hashes = TopicHashes()

    def clear(self) -> None:
        self.drop(len(self.hashes))

    def drop(self, count: int) -> None:
        """Drop the first keys, which are stored elsewhere now."""
        del self.hashes[:count], self.offsets[:count], self.timestamps[:count]

    def add_part(self, part: KeyPart, covered: int) -> None:
        """Add the keys of records that begin at `covered` or behind."""
        offsets = array("Q", part.offsets)
        first = bisect_left(offsets, covered)
        self.hashes += array("I", part.hashes)[first:]
        self.offsets += offsets[first:]
        self.timestamps += array("q", part.timestamps)[first:]

    def part(self, start: int, end: int, record_count: int) -> KeyPart:
        """Return all keys, as those of the records between two offsets."""
        hashes, offsets = array("I", self.hashes).tobytes(), array("Q", self.offsets).tobytes()
        times = array("q", self.timestamps).tobytes()
        return KeyPart(start, end, record_count, hashes, offsets, times)

    def add(self, entries: Sequence[Dispatched], covered: int) -> None:
        """Add the keys of records at `covered` or behind; rolled back ones have none."""
        if entries and entries[0].physical_offset < covered:
            entries = [
                entry for entry in single_entries(entries) if entry.physical_offset >= covered
            ]
        if not isinstance(entries, MixedEntries):
            self._add_singles(entries)  # type: ignore[arg-type]
            return
        for entry in entries:
            if isinstance(entry, EntryRun):
                self._add_run(entry)
            else:
                self._add_singles((entry,))

    def _add_run(self, run: EntryRun) -> None:
        if run.sys_flag & _ROLLED_BACK == _ROLLED_BACK or set(map(len, run.keys)) != {1}:
            self._add_singles(run.entries())
            return
        self._add_hashes(run.topic, [key for (key,) in run.keys])
        self.offsets += run.offsets
        self.timestamps += [run.store_timestamp] * len(run.keys)

    def _add_singles(self, entries: Iterable[DispatchEntry]) -> None:
        topic, keys = b"", list[bytes]()
        offsets, timestamps = self.offsets, self.timestamps
        for entry in entries:
            if not entry.keys or entry.sys_flag & _ROLLED_BACK == _ROLLED_BACK:
                continue
            if entry.topic != topic:
                if keys:
                    self._add_hashes(topic, keys)
                    keys = []
                topic = entry.topic
            for key in entry.keys:
                keys.append(key)
                offsets.append(entry.physical_offset)
                timestamps.append(entry.store_timestamp)
        self._add_hashes(topic, keys)

    def _add_hashes(self, topic: bytes, keys: Sequence[bytes]) -> None:
        if keys:
            self.hashes += index_hashes(self._topic_hashes.of(topic), keys)
