"""The entry of a record for the files that are derived of the log; a run of them for a batch."""

from collections.abc import Sequence
from sys import maxsize
from typing import NamedTuple, Protocol, TypeAlias

DispatchEntry: TypeAlias = tuple[
    bytes,  # topic
    int,  # queue_id
    int,  # queue_offset
    int,  # physical_offset
    int,  # record_bytes
    int,  # tags_code, or the due time (ms) of a delayed message
    int,  # store_timestamp, ms
    int,  # sys_flag
    tuple[bytes, ...],  # index keys: UNIQ_KEY first, then the words of KEYS
]
"""What a consume queue and the index want to know of one record."""


class EntryRun(NamedTuple):
    """The entries of records of one length that lie behind each other, in the log as in their
    queue, and have the rest in common but for the tail of one key.

    Its fields lie where an entry has them, so that whoever asks only where it ends, or for what
    all have in common, may take it for an entry.
    """

    topic: bytes
    queue_id: int
    queue_offset: int
    """Of the first."""
    physical_offset: int
    """Of the first."""
    record_bytes: int
    """Of all together."""
    tags_code: int
    store_timestamp: int
    sys_flag: int
    first_keys: tuple[bytes]
    """The key of the first record."""
    tails: Sequence[bytes]
    """The last bytes of each record's key, as many in each; what is before them is the same."""

    def entries(self) -> list[DispatchEntry]:
        """One for each record."""
        topic, queue_id, number, offset, run_bytes, code, stored, sys_flag, (key,), tails = self
        head, size = key[: -len(tails[0])], run_bytes // len(tails)
        return [
            (topic, queue_id, number + n, offset + n * size, size, code, stored, sys_flag,
             (head + tail,))
            for n, tail in enumerate(tails)
        ]  # fmt: skip


Dispatched: TypeAlias = DispatchEntry | EntryRun
"""What follows the log is told."""


class MixedEntries(list[Dispatched]):
    """Entries with runs among them. In no other list are any, so that nobody has to look for them:
    that would cost each single send 0.1 to 0.2 µs."""


def single_entries(entries: Sequence[Dispatched]) -> Sequence[DispatchEntry]:
    """The same with an entry for each record."""
    if EntryRun not in map(type, entries):
        return entries  # type: ignore[return-value]
    singles: list[DispatchEntry] = []
    for entry in entries:
        if isinstance(entry, EntryRun):
            singles += entry.entries()
        else:
            singles.append(entry)
    return singles


def cut_behind(
    entries: list[Dispatched], count: int, keys_max: int = maxsize
) -> tuple[list[Dispatched], list[Dispatched]]:
    """The first of them, of about `count` records and `keys_max` keys, and the rest.

    A run is not cut.
    """
    is_mixed = isinstance(entries, MixedEntries)
    is_short = not is_mixed and len(entries) <= count
    if is_short and (len(entries) == 1 or sum(len(each[8]) for each in entries) <= keys_max):
        return entries, []
    records = keys = 0
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, EntryRun):
            records += len(entry.tails)
            keys += len(entry.tails)
        else:
            records += 1
            keys += len(entry[8])
        if (records >= count or keys >= keys_max) and number < len(entries):
            kind = MixedEntries if is_mixed else list
            return kind(entries[:number]), kind(entries[number:])
    return entries, []


def extended(entries: list[Dispatched], more: Sequence[Dispatched]) -> list[Dispatched]:
    """The entries, with more behind them: the same list, or one that may hold runs."""
    if isinstance(more, MixedEntries) and not isinstance(entries, MixedEntries):
        entries = MixedEntries(entries)
    entries.extend(more)
    return entries


class BitMaps(Protocol):
    """Says which subscriptions' expressions are true for a message; asked in log order."""

    def __call__(self, entry: DispatchEntry) -> bytes | None:
        """The bits for the queue's extension; None where nobody filters by an expression."""
