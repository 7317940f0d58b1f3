"""Entry of a record for the files that are derived from the commit log."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(slots=True)
class DispatchEntry:
    """Fields of one record for consume queues and other dispatch targets."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    tags_code: int
    """Tags code; due time in ms for a delayed message."""
    store_timestamp: int
    sys_flag: int
    keys: tuple[bytes, ...]
    """Index keys: UNIQ_KEY first, then the words of KEYS."""

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.record_bytes


@dataclass(slots=True)
class EntryRun:
    """Entries of one batch; its records are consecutive in log and queue."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    store_timestamp: int
    sys_flag: int
    offsets: Sequence[int]
    """Physical offset of each record; the following lists are parallel to it."""
    sizes: Sequence[int]
    codes: Sequence[int]
    keys: Sequence[tuple[bytes, ...]]

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last record."""
        return self.physical_offset + self.record_bytes

    def entries(self) -> list[DispatchEntry]:
        topic, queue_id, stored, flag = (
            self.topic,
            self.queue_id,
            self.store_timestamp,
            self.sys_flag,
        )
        numbers = range(self.queue_offset, self.queue_offset + len(self.sizes))
        return [
            DispatchEntry(topic, queue_id, number, offset, size, code, stored, flag, keys)
            for number, offset, size, code, keys in zip(
                numbers, self.offsets, self.sizes, self.codes, self.keys, strict=True
            )
        ]


Dispatched: TypeAlias = DispatchEntry | EntryRun
"""Input of a dispatch target."""


class MixedEntries(list[Dispatched]):
    """List of entries that may contain runs.

    Other lists never contain a run, so loops over single sends skip the type check. That check
    costs 0.1 µs per message on CPython.
    """


def single_entries(entries: Sequence[Dispatched]) -> Sequence[DispatchEntry]:
    if EntryRun not in map(type, entries):
        return entries  # type: ignore[return-value]
    singles: list[DispatchEntry] = []
    for entry in entries:
        if isinstance(entry, EntryRun):
            singles += entry.entries()
        else:
            singles.append(entry)
    return singles


class BitMaps(Protocol):
    """Source of the Bloom filter bits of a message; called in log order."""

    def __call__(self, entry: DispatchEntry) -> bytes | None:
        """Return the bits for the queue's extension, or None without expression filters."""
