"""Keys of records as the index takes them: hash, offset and time of each, in three columns.

The broker fills them with what it appends (index.py); where much of the log has to be indexed
again, processes fill them with a stretch each (storage/recovery/key_parts.py).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from storage.index.key_hash import (
    FAST_BYTES_MAX,
    HIGH,
    LOW,
    MASK,
    POWERS,
    SIGN,
    TAIL_BYTES,
    TopicHashes,
    extend_hash,
    head_of,
    tail_hashes,
)
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, EntryRun, MixedEntries

HEADS_FROM = 8
"""Records at a time of which it pays to hash what several keys begin with once."""
_ROLLED_BACK = 0xC
"""Both transaction bits: such records are not indexed."""


class KeyPart(NamedTuple):
    """The keys of whole records behind each other. See Part (storage/recovery/log_parts.py)."""

    start: int
    end: int
    """Offsets of the log."""
    record_count: int
    hashes: bytes
    """32 bits each, as this machine has them; the other two 64 bits."""
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
        """There are none."""
        self.drop(len(self.hashes))

    def drop(self, count: int) -> None:
        """The first ones are somewhere else now."""
        del self.hashes[:count], self.offsets[:count], self.timestamps[:count]

    def add_part(self, part: KeyPart, covered: int) -> None:
        """Adds those of records that begin at `covered` or behind."""
        offsets = array("Q", part.offsets)
        first = bisect_left(offsets, covered)
        self.hashes += array("I", part.hashes)[first:]
        self.offsets += offsets[first:]
        self.timestamps += array("q", part.timestamps)[first:]

    def part(self, start: int, end: int, record_count: int) -> KeyPart:
        """All of them, which are those of the records between two offsets."""
        hashes, offsets = array("I", self.hashes).tobytes(), array("Q", self.offsets).tobytes()
        times = array("q", self.timestamps).tobytes()
        return KeyPart(start, end, record_count, hashes, offsets, times)

    def add(self, entries: Sequence[Dispatched], covered: int) -> None:
        """Adds those of records that begin at `covered` or behind; rolled back ones have none."""
        if not isinstance(entries, MixedEntries):
            self._add_singles(entries, covered)  # type: ignore[arg-type]
            return
        singles: list[DispatchEntry] = []
        for entry in entries:
            if not isinstance(entry, EntryRun):
                singles.append(entry)
            elif entry.physical_offset < covered:
                singles += entry.entries()
            else:
                self._add_singles(singles, covered)
                singles = []
                self._add_run(entry)
        self._add_singles(singles, covered)

    def _add_run(self, run: EntryRun) -> None:
        topic, _, _, offset, run_bytes, _, timestamp, sys_flag, (key,), tails = run
        if sys_flag & _ROLLED_BACK == _ROLLED_BACK:
            return
        count = len(tails)
        head, head_hash = head_of(self._topic_hashes.of(topic), key)
        hashes = None if head is None else tail_hashes(head_hash, tails)
        if hashes is None:
            self._add_singles(run.entries(), 0)
            return
        self.hashes += hashes
        self.offsets += range(offset, offset + run_bytes, run_bytes // count)
        self.timestamps += repeat(timestamp, count)

    def _add_singles(self, entries: Sequence[DispatchEntry], covered: int) -> None:
        hashes, offsets, timestamps = self.hashes, self.offsets, self.timestamps
        last_topic, topic_hash, own_hash, head_hash = b"", 0, 0, 0
        has_heads, is_other = len(entries) >= HEADS_FROM, False
        head: bytes | None = None
        for topic, _, _, physical_offset, _, _, timestamp, sys_flag, keys in entries:
            if not keys or physical_offset < covered or sys_flag & _ROLLED_BACK == _ROLLED_BACK:
                continue
            if topic != last_topic:
                last_topic, topic_hash, is_other = topic, self._topic_hashes.of(topic), True
            is_first = has_heads
            for key in keys:
                # TopicHashes.index_hash, unrolled; of UNIQ_KEYs the tails: 0.63 → 0.36 µs.
                if is_first and key[:-TAIL_BYTES] != head:
                    is_long = len(key) > FAST_BYTES_MAX
                    head, own_hash = (None, 0) if is_long else head_of(0, key)
                    is_other = True
                if is_first and is_other and head is not None:  # another topic, or another head
                    head_hash = (topic_hash * POWERS[len(key)] + own_hash) & MASK
                    is_other = False
                if is_first and head is not None and key.isascii():
                    value = (
                        head_hash + key[-4] * 29_791 + key[-3] * 961 + key[-2] * 31 + key[-1]
                    ) & MASK
                elif (length := len(key)) <= FAST_BYTES_MAX and key.isascii():
                    value = (
                        topic_hash * POWERS[length]
                        + 31 * int(key.translate(HIGH), 31)
                        + int(key.translate(LOW), 31)
                    ) & MASK
                else:
                    value = extend_hash(topic_hash, key)
                is_first = False
                hashes.append((-value & SIGN) if value > SIGN else value)
                offsets.append(physical_offset)
                timestamps.append(timestamp)
