"""The check of the transaction table: it is made a second time from the log and compared.

While a store is in use the table on disk follows the log at its own pace: a unit may be in any of
the states that it has had since the offset that the redo log names. Where the log is damaged the
table may know more than is left of it.
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
    """The units that the records of a log make, given in its order from the first one on."""

    def __init__(self, view: View) -> None:
        self._ledger = TransactionLedger(view)
        self._units: list[TransactionUnit] = []
        self._later: dict[int, set[int]] | None = None
        self._lost: tuple[tuple[int, int, str], ...] = ()

    def expect(self, entries: Sequence[DispatchEntry]) -> None:
        """The next records."""
        for _, number, state, unit in self._ledger.changes_of(entries):
            if self._later is not None:
                self._later.setdefault(number, set()).add(state)
            elif unit:
                self._units.append(TransactionUnit._make(UNIT.unpack(unit)))
            else:
                self._units[number] = self._units[number]._replace(state=state)

    def all_expected(self) -> None:
        """What follows may be known to the table, or not yet."""
        self._later = {}

    def forgive(self, damage: Damage) -> None:
        """Takes note of what of the log is lost: what the table alone knows of it may be true."""
        self._lost = damage.ranges

    def differences(self, found: Sequence[TransactionUnit], min_physical: int) -> list[str]:
        """What is wrong with these units, in words; half messages that are gone do not count."""
        problems = (problem for problem in self.compare(found, min_physical) if problem)
        return list(islice(problems, _PROBLEMS_MAX))

    def compare(self, found: Sequence[TransactionUnit], min_physical: int) -> Iterator[str]:
        """The same one by one, an empty text after each so many units that are right."""
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
                    yield f"there is no half message at {offset}"
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
        """Whether it is right in everything but its state, and may be ahead in that."""
        is_known = unit.state in later or (bool(self._lost) and unit.state in STATES)
        return is_known and unit[:-1] == wanted[:-1]

    def _missing(self, number: int, min_physical: int) -> str:
        offset = self._units[number].physical_offset
        return f"the half message at {offset} is missing" if offset >= min_physical else ""


class TableScrub:
    """Compares the table's files with the log while both are in use, through its own descriptors.

    Call `step` until it says that it is through; then `reason` says what is wrong, or nothing.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        reader: DispatchReader,
        damage: Damage,
    ) -> None:
        """`damage` is what is known of the log."""
        self.reason = ""
        self._log, self._reader, self._damage = log, reader, damage
        self._redo_log = TransactionRedoLog(disk, config.root)
        self._files = TransactionFiles(config, disk)
        self._steps = self._check()

    def step(self) -> bool:
        """Some more records or units; True when that was all. Raises OSError."""
        return self.reason != "" or next(self._steps, True)

    def close(self) -> None:
        """Closes the files it has open."""
        self._files.close()

    def _check(self) -> Iterator[bool]:
        covered, _ = self._redo_log.load()
        if covered is None:
            return  # not synced yet: the next start would make it anew
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
        """Feeds the records that begin from `position` on, below `end`; yields now and then."""
        while position < end:
            part = self._reader.read(position, SLICE_RECORDS)
            expected.expect([entry for entry in part.entries if entry.physical_offset < end])
            position = part.next_offset
            yield

    def _read(self, covered: Covered, start: int, found: list[TransactionUnit]) -> Iterator[None]:
        """What the files say, from the first half message on that the log still has."""
        data = self._files.peek(covered.end_number)
        step = _COMPARED_AT_ONCE * UNIT_BYTES
        for position in range(0, len(data), step):
            part = data[position : position + step]
            units = map(TransactionUnit._make, UNIT.iter_unpack(part))
            found += [unit for unit in units if unit.physical_offset >= start]
            yield
