"""The check of the transaction table against a second one, built from the commit log.

In a store in use, the table on disk follows the log at its own pace. A unit may have any of its
states since the offset in the redo log. Where the log is damaged, the table may know more than the
log.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from storage.config import StoreConfig
from storage.dispatching.followers import SLICE_RECORDS, DispatchReader
from storage.files.disk import Disk
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import View
from storage.queues.dispatch_entry import DispatchEntry
from storage.transactions.ledger import TransactionLedger
from storage.transactions.redo_log import Covered, TransactionRedoLog
from storage.transactions.units import STATES, UNIT, UNIT_BYTES, TransactionFiles, TransactionUnit

_PROBLEMS_MAX = 100
_COMPARED_AT_ONCE = 1000


class ExpectedUnits:
    """Units that follow from the records of a log, passed in order from the first one on."""

    def __init__(self, view: View) -> None:
        self._ledger = TransactionLedger(view)
        self._units: list[TransactionUnit] = []
        self._later: dict[int, set[int]] | None = None
        self._lost: tuple[tuple[int, int, str], ...] = ()

    def expect(self, entries: Sequence[DispatchEntry]) -> None:
        for _, number, state, unit in self._ledger.changes_of(entries):
            if self._later is not None:
                self._later.setdefault(number, set()).add(state)
            elif unit:
                self._units.append(TransactionUnit._make(UNIT.unpack(unit)))
            else:
                self._units[number] = self._units[number]._replace(state=state)

    def all_expected(self) -> None:
        """Mark the end of the required records; the table may or may not know later ones."""
        self._later = {}

    def forgive(self, damage: Damage) -> None:
        """Accept what the table knows about damaged ranges of the log."""
        self._lost = damage.ranges

    def differences(self, found: Sequence[TransactionUnit], min_physical: int) -> list[str]:
        """Return the faults of these units as text; expired half messages do not count."""
        problems = (problem for problem in self.compare(found, min_physical) if problem)
        return list(islice(problems, _PROBLEMS_MAX))

    def compare(self, found: Sequence[TransactionUnit], min_physical: int) -> Iterator[str]:
        """Yield the faults one by one, and an empty text after each _COMPARED_AT_ONCE units."""
        units, later, number = self._units, self._later or {}, 0
        for count, unit in enumerate(found, 1):
            offset = unit.physical_offset
            if offset < min_physical:
                continue
            while number < len(units) and units[number].physical_offset < offset:
                yield self._missing(number, min_physical)
                number += 1
            if number == len(units) or units[number].physical_offset != offset:
                if not any(start <= offset < end for start, end, _ in self._lost):
                    yield f"the log has no half message at {offset}"
                continue
            wanted = units[number]
            if unit != wanted and not self._may_be(unit, wanted, later.get(number, ())):
                yield f"{unit} should be {wanted}"
            number += 1
            if count % _COMPARED_AT_ONCE == 0:
                yield ""
        for left in range(number, len(units)):
            yield self._missing(left, min_physical)

    def _may_be(
        self, unit: TransactionUnit, wanted: TransactionUnit, later: Collection[int]
    ) -> bool:
        """Return whether the unit is right except for its state, which may be a later one."""
        is_known = unit.state in later or (bool(self._lost) and unit.state in STATES)
        return is_known and unit[:-1] == wanted[:-1]

    def _missing(self, number: int, min_physical: int) -> str:
        offset = self._units[number].physical_offset
        return f"the half message at {offset} is missing" if offset >= min_physical else ""


class TableScrub:
    """Compares the files of a table in use with the log, through its own descriptors.

    Call `step` until it returns True; then `reason` has the fault, or is empty.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        reader: DispatchReader,
        damage: Damage,
    ) -> None:
        """Create a check; `damage` has the known damage of the log."""
        self.reason = ""
        self._log, self._reader, self._damage = log, reader, damage
        self._redo_log = TransactionRedoLog(disk, config.root)
        self._files = TransactionFiles(config, disk)
        self._steps = self._check()

    def step(self) -> bool:
        """Check some more records or units; return True at the end. Raise OSError."""
        return self.reason != "" or next(self._steps, True)

    def close(self) -> None:
        self._files.close()

    def _check(self) -> Iterator[bool]:
        covered, _ = self._redo_log.load()
        if covered is None:
            return  # not synced yet: the next start would rebuild it
        expected = ExpectedUnits(self._log.view)
        start = self._log.min_offset()
        for _ in self._walk(expected, start, covered.offset):
            yield False
        expected.all_expected()
        found: list[TransactionUnit] = []
        for _ in self._read(covered, start, found):
            yield False
        for _ in self._walk(expected, covered.offset, self._log.end_offset):
            yield False
        expected.forgive(self._damage)
        for problem in expected.compare(found, max(start, self._log.min_offset())):
            self.reason = self.reason or problem
            yield False

    def _walk(self, expected: ExpectedUnits, position: int, end: int) -> Iterator[None]:
        """Feed the records that begin in [position, end); yield between slices."""
        while position < end:
            part = self._reader.read(position, SLICE_RECORDS)
            expected.expect([entry for entry in part.entries if entry.physical_offset < end])
            position = part.next_offset
            yield

    def _read(self, covered: Covered, start: int, found: list[TransactionUnit]) -> Iterator[None]:
        """Read the units from the first half message on that the log still has."""
        data = self._files.peek(covered.end_number)
        step = _COMPARED_AT_ONCE * UNIT_BYTES
        for position in range(0, len(data), step):
            part = data[position : position + step]
            units = map(TransactionUnit._make, UNIT.iter_unpack(part))
            found += [unit for unit in units if unit.physical_offset >= start]
            yield
