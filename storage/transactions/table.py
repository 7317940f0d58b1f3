"""The transaction state table: pending transactions, their age and producer group.

It follows the commit log behind the consume queues. Units are in `statetable/` (units), and
`redolog/` has the covered offset (redo_log). A start replays the rest of the log. Changes stay in
memory until the log is on disk up to their records. So a table on disk never knows a record that a
power cut has taken.

A table that is missing, of a wrong size, damaged or of another log is removed and rebuilt from the
whole log. A start does not read files with only settled transactions.

The official broker ignores the folder; a table left stale by it is brought up to date.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final

from protocol.message import MessageRecord
from protocol.properties import PGROUP, TRANSACTION_CHECK_TIMES
from storage.config import StoreConfig
from storage.dispatching.dispatch import property_of
from storage.dispatching.followers import not_of_this_log
from storage.errors import StoreError, store_error
from storage.files.disk import Disk
from storage.index.key_hash import java_hash
from storage.log.reader import View
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, single_entries
from storage.queues.unsynced import Unsynced, sync_files
from storage.transactions.check import ExpectedUnits
from storage.transactions.ledger import (
    Change,
    PendingTransaction,
    TransactionLedger,
    identity,
)
from storage.transactions.redo_log import Covered, TransactionRedoLog
from storage.transactions.units import (
    PENDING_STATES,
    REPLACED,
    STATE,
    UNIT,
    UNIT_BYTES,
    TransactionFiles,
    TransactionUnit,
    fault_in,
)

CHANGES_MAX: Final = 4096
"""Limit of changes in memory; at it they are written out, as far as the log is on disk."""
_MARKS_MAX, _MARK_BYTES = 4096, 64 << 10
_PAGE_BYTES: Final = 4096

_COPY_MARKS = Struct(">Ii")
"""Birth time in seconds and hash of the group, as in a unit."""
_COPY_MARKS_POSITION = 12
_UNSIGNED_MASK = 0xFFFFFFFF
_PGROUP, _CHECK_TIMES = (f"\x02{name}\x01".encode() for name in (PGROUP, TRANSACTION_CHECK_TIMES))
_COUNT_BYTES_MIN = len(_CHECK_TIMES) + 1
_GROWTH_BYTES_MAX = 128
_CANDIDATES_MAX = 1000


@dataclass(slots=True)
class UnsyncedTable:
    """One sync of the table: the files, then the offset that they cover."""

    files: Unsynced
    covered: Covered
    dirty: dict[int, int]


class TransactionTable:
    """A follower of the log (storage/dispatching/dispatch.py). One owner.

    Another thread may sync what `unsynced` returned (`sync_files`, then `save`).
    """

    name = "transaction table"

    def __init__(
        self, config: StoreConfig, disk: Disk, view: View, durable_offset: Callable[[], int]
    ) -> None:
        """Create the table; `view` reads the log, which is on disk below `durable_offset`."""
        self._disk, self._view, self._durable_offset = disk, view, durable_offset
        self._files = TransactionFiles(config, disk)
        self._redo_log = TransactionRedoLog(disk, config.root)
        self._ledger = TransactionLedger(view)
        self._covered = Covered(0)
        self._marks: deque[Covered] = deque()
        self._changes: deque[Change] = deque()
        self._states: dict[int, int] = {}
        self._written = self._synced = self._covered
        self._unsynced_units = 0
        self._min_physical = 0

    # -- start-up and end ---------------------------------------------------------------------

    def load(self, min_offset: int, end_offset: int) -> str:
        """Load the files; return why they must be rebuilt, or "".

        The log reaches from `min_offset` to `end_offset`. Raise StoreError only if invalid files
        cannot be removed.
        """
        covered, reason = self._redo_log.load()
        if covered is not None:
            reason = self._load(covered, min_offset, end_offset)
        if reason:
            self.start_anew(min_offset)
            if end_offset == min_offset:
                return ""
            # Without this, a crash before the first sync would raise doubts. A full disk is
            # acceptable.
            with suppress(StoreError):
                self._redo_log.save(self._covered)
                self._synced = self._covered
            return reason
        for path in self.trim_before(min_offset):
            with suppress(OSError):  # the next start tries again
                self._disk.unlink(path)
        return ""

    def _load(self, covered: Covered, min_offset: int, end_offset: int) -> str:
        if reason := not_of_this_log(self._view, covered, min_offset, end_offset):
            return reason
        try:
            self._files.load(covered.end_number)
            return self._load_pending(covered, min_offset)
        except OSError as error:
            return str(store_error("cannot load the transaction table", error))
        except StoreError as error:
            return str(error)

    def _load_pending(self, covered: Covered, min_offset: int) -> str:
        files, ledger = self._files, self._ledger
        ledger.start_at(covered.end_number)
        if fault := fault_in(files.file_ends(), covered.offset):
            return fault
        number = max(files.first, covered.settled_before)
        while data := files.read(number, files.file_units):
            units = list(map(TransactionUnit._make, UNIT.iter_unpack(data)))
            if fault := fault_in(units, covered.offset):
                return fault
            for unit in units:
                is_pending = unit.state in PENDING_STATES and unit.physical_offset >= min_offset
                if is_pending and not ledger.restore(number, unit):
                    return f"the log has no such half message at {unit.physical_offset}"
                number += 1
        self._covered = self._written = self._synced = covered
        return ""

    def start_anew(self, min_offset: int) -> None:
        """Remove everything: the log must be dispatched again from its beginning.

        Raise StoreError.
        """
        try:
            self._redo_log.remove()
            self._files.start_anew()
        except OSError as error:
            raise store_error("cannot remove the transaction table", error) from error
        self._ledger.start_at(0)
        self._changes.clear()
        self._marks.clear()
        self._states.clear()
        self._min_physical = min_offset
        self._covered = self._written = Covered(min_offset)
        self._synced = Covered(-1)

    def close(self) -> None:
        """Close the files; without a sync before, the log is replayed from the last one."""
        self._files.close()

    # -- following the log --------------------------------------------------------------------

    @property
    def covered_offset(self) -> int:
        return self._covered.offset

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Take records in the order of the log; skip those that are covered.

        Raise DiskFull or StoreError from writing out; the records are known even then.
        """
        covered = self._covered.offset
        if entries and entries[0].physical_offset < covered:
            entries = [
                entry for entry in single_entries(entries) if entry.physical_offset >= covered
            ]
        if not entries:
            return
        changes = self._ledger.changes_of(entries)
        self._changes += changes
        for _, number, state, _ in changes:
            self._states[number] = state
        last, marks = entries[-1], self._marks
        begin = last.physical_offset
        self._covered = Covered(begin + last.record_bytes, begin, last.store_timestamp)
        if len(marks) > 1 and (begin < marks[-2].offset + _MARK_BYTES or len(marks) > _MARKS_MAX):
            marks.pop()
        marks.append(self._covered)
        if len(self._changes) >= CHANGES_MAX:
            self.write_out()

    def write_out(self) -> None:
        """Write the changes of records that are on disk. Raise DiskFull or StoreError.

        Unwritten changes stay in memory.
        """
        marks, changes, files = self._marks, self._changes, self._files
        durable = self._durable_offset()
        mark = None
        for each in marks:
            if each.offset > durable:
                break
            mark = each
        if mark is None:
            return
        units, states, count = self._written_by(mark.offset)
        files.append(units)
        files.set_states(states)
        self._unsynced_units += len(units) // UNIT_BYTES + len(states)
        if count == len(changes):
            changes.clear()
            self._states.clear()
        else:
            for _ in range(count):
                _, number, state, _ = changes.popleft()
                if self._states.get(number) == state:
                    del self._states[number]
        while marks and marks[0].offset <= mark.offset:
            marks.popleft()
        self._written = mark._replace(
            end_number=files.end, settled_before=self._settled_before(files.end)
        )

    def _written_by(self, end: int) -> tuple[bytearray, dict[int, int], int]:
        """Return new units, states of older ones, and the number of changes, up to a log offset."""
        units, states, count = bytearray(), dict[int, int](), 0
        first = self._files.end
        for record_end, number, state, unit in self._changes:
            if record_end > end:
                break
            count += 1
            if unit:
                units += unit if number >= first else b""
            elif number >= first:
                STATE.pack_into(units, (number - first + 1) * UNIT_BYTES - STATE.size, state)
            else:
                states[number] = state
        return units, states, count

    def _settled_before(self, end: int) -> int:
        """Return the start of the first file with pending changes or transactions."""
        oldest = next(iter(self._ledger.pending.values()), None)
        numbers = [end, *(number for _, number, _, _ in self._changes)]
        if oldest is not None:
            numbers.append(oldest.number)
        return max(self._files.first, self._files.file_start(min(numbers)))

    # -- syncing, from another thread too -----------------------------------------------------

    def unsynced(self, least_pages: int = 0) -> UnsyncedTable | None:
        """Return what to sync if `least_pages` pages were written since, else None.

        0 means anything, and writes out first, with its errors. The first time anything counts, so
        that a new table soon has its redo log. Sync the `files`, then call `save`, then
        `mark_synced`.
        """
        if least_pages == 0:
            self.write_out()
        if self._written == self._synced:
            return None
        is_first = self._synced.offset < 0
        if self._unsynced_units * UNIT_BYTES < least_pages * _PAGE_BYTES and not is_first:
            return None
        files, dirty = self._files.unsynced()
        self._unsynced_units = 0
        return UnsyncedTable(files, self._written, dirty)

    def save(self, taken: UnsyncedTable) -> None:
        """Save the covered offset after the files were synced. Blocks; any one thread.

        Raise StoreError.
        """
        self._redo_log.save(taken.covered)

    def mark_synced(self, taken: UnsyncedTable) -> None:
        """Note that the result of `unsynced` is on disk."""
        self._files.mark_synced(taken.files, taken.dirty)
        self._synced = taken.covered

    def sync(self) -> None:
        """Bring everything to disk, as far as the log is. Raise StoreError."""
        taken = self.unsynced()
        if taken is not None:
            sync_files(self._disk, taken.files)
            self.save(taken)
            self.mark_synced(taken)

    # -- cleaning -----------------------------------------------------------------------------

    def trim_before(self, min_physical: int) -> list[str]:
        """Drop transactions with deleted half messages; return the files to unlink.

        The last file stays. The caller unlinks the files.
        """
        self._min_physical = max(self._min_physical, min_physical)
        self._ledger.forget_before(min_physical)
        return self._files.trim_before(min_physical)

    # -- answers ------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        return len(self._ledger.pending)

    @property
    def unit_count(self) -> int:
        """Number of all transactions in the table, settled ones included."""
        return self._ledger.next_number - self._files.first

    @property
    def unreadable_count(self) -> int:
        """Records that were unreadable when dispatched; they changed nothing."""
        return self._ledger.unreadable_count

    def pending(self, limit: int, *, after_offset: int = -1) -> list[PendingTransaction]:
        """Return up to `limit` pending transactions behind a log offset, oldest first.

        The caller must not change them. The log is not read.
        """
        pending = self._ledger.pending
        if after_offset < 0:
            return list(islice(pending.values(), limit))
        later = (each for offset, each in pending.items() if offset > after_offset)
        return list(islice(later, limit))

    def find(self, physical_offset: int) -> TransactionUnit | None:
        """Return the transaction of the half message at this offset, or None."""
        pending = self._ledger.pending.get(physical_offset)
        if pending is not None:
            return TransactionUnit._make(UNIT.unpack(pending.packed()))
        if physical_offset >= self._covered.offset:
            return None
        for _, number, _, unit in self._changes:
            if unit and UNIT.unpack(unit)[0] == physical_offset:
                found = TransactionUnit._make(UNIT.unpack(unit))
                return found._replace(state=self._states[number])
        number = self._files.search(physical_offset)
        kept = self._files.unit(number)
        if kept is None or kept.physical_offset != physical_offset:
            return None
        return kept._replace(state=self._states.get(number, kept.state))

    def get_pending(self, physical_offset: int) -> PendingTransaction | None:
        """Return the pending transaction of the half message at this offset, or None; read-only."""
        return self._ledger.pending.get(physical_offset)

    def oldest_half(self, unless: Container[int] = ()) -> PendingTransaction | None:
        """Return the first pending half message at none of these offsets, or None."""
        for offset, pending in self._ledger.pending.items():
            if pending.is_half and offset not in unless:
                return pending
        return None

    def last_copy(self, half: MessageRecord) -> TransactionUnit | None:
        """Return the newest copy of a replaced half message, or None."""
        pending = self._ledger.newest(identity(half))
        if pending is not None and pending.physical_offset > half.physical_offset:
            return TransactionUnit._make(UNIT.unpack(pending.packed()))
        in_memory = [unit for _, _, _, unit in self._changes if unit]
        for unit in _copies_behind(half, self._files, in_memory):
            record = self._ledger.read(unit.physical_offset, unit.record_bytes)
            found = self.find(unit.physical_offset)
            if record is None or found is None or found.state == REPLACED:
                continue
            if identity(record) == identity(half):
                return found
        return None

    # -- verifying ----------------------------------------------------------------------------

    def snapshot(self) -> list[TransactionUnit]:
        """Return all units of the files, with the changes that are only in memory."""
        units = list(map(TransactionUnit._make, UNIT.iter_unpack(self._files.read_all())))
        first = self._files.first
        for _, number, state, unit in self._changes:
            if unit:
                units.append(TransactionUnit._make(UNIT.unpack(unit)))
            elif number >= first:
                units[number - first] = units[number - first]._replace(state=state)
        return units

    def verify(self, entries: Iterable[DispatchEntry]) -> list[str]:
        """Return the differences of the table from all records of the log.

        The files may know later states than those at the covered offset, after a kill. After a
        difference, call `start_anew`, and dispatch the log again.
        """
        check, is_covered = ExpectedUnits(self._view), True
        for entry in entries:
            if is_covered and entry.physical_offset >= self.covered_offset:
                is_covered = False
                check.all_expected()
            check.expect((entry,))
        return check.differences(self.snapshot(), self._min_physical)


def _copies_behind(
    half: MessageRecord, files: TransactionFiles, in_memory: Sequence[bytes]
) -> Iterator[TransactionUnit]:
    """Yield units that may be later copies of `half`, newest first; their states may be old.

    Every check-back appends the half message to the log again. All copies share birth time and
    producer group, and the length except for the properties that count checks. The log is not read.
    `in_memory` has the units behind those of the files, in order.
    """
    raw = b"\x02" + half.properties
    marks = _COPY_MARKS.pack(
        half.born_timestamp // 1000 & _UNSIGNED_MASK, java_hash(property_of(raw, _PGROUP))
    )
    least = 0 if property_of(raw, _CHECK_TIMES) else _COUNT_BYTES_MIN
    sizes = range(half.record_bytes + least, half.record_bytes + _GROWTH_BYTES_MAX)
    found: list[TransactionUnit] = []
    for data in _newest_first(half.physical_offset, files, b"".join(in_memory)):
        position = len(data)
        while (position := data.rfind(marks, 0, position + _COPY_MARKS.size - 1)) >= 0:
            start = position - _COPY_MARKS_POSITION
            if start >= 0 and start % UNIT_BYTES == 0:
                unit = TransactionUnit._make(UNIT.unpack_from(data, start))
                if unit.physical_offset > half.physical_offset and unit.record_bytes in sizes:
                    found.append(unit)
                    yield unit
            if len(found) >= _CANDIDATES_MAX:
                return


def _newest_first(
    physical_offset: int, files: TransactionFiles, in_memory: bytes
) -> Iterator[bytes]:
    """Yield the units behind a log offset, a file at a time, newest first."""
    yield in_memory
    first = files.search(physical_offset)
    end = files.end
    while end > first:
        start = max(first, files.file_start(end - 1))
        yield files.read(start, end - start)
        end = start
