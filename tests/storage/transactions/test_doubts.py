"""An untrusted transaction table is detected, and rebuilt from the commit log."""

from collections.abc import Callable

import pytest

from storage.dispatching.followers import DispatchReader
from storage.log.damage import Damage
from storage.transactions.check import TableScrub
from storage.transactions.redo_log import NO_REDO_LOG
from storage.transactions.table import TransactionTable
from storage.transactions.units import UNIT_BYTES
from tests.support.transactions import (
    CONFIG,
    FILE_UNITS,
    REDO_LOG,
    STATE_TABLE,
    TransactionLog,
    reopened,
    saved,
    table_of,
)
from troupemq.testing.fake_disk import FakeDisk


def _cut_crc(disk: FakeDisk) -> None:
    disk.open(REDO_LOG).pwrite(b"\x01", 12)


def _remove_redo_log(disk: FakeDisk) -> None:
    disk.unlink(REDO_LOG)


def _empty_redo_log(disk: FakeDisk) -> None:
    disk.open(REDO_LOG).set_size(0)


def _remove_file(disk: FakeDisk) -> None:
    disk.unlink(f"{STATE_TABLE}/{FILE_UNITS * UNIT_BYTES:020d}")


def _remove_last_file(disk: FakeDisk) -> None:
    disk.unlink(f"{STATE_TABLE}/{2 * FILE_UNITS * UNIT_BYTES:020d}")


def _cut_file(disk: FakeDisk) -> None:
    disk.open(f"{STATE_TABLE}/{FILE_UNITS * UNIT_BYTES:020d}").set_size(30)


def _change_offset(disk: FakeDisk) -> None:
    disk.open(f"{STATE_TABLE}/{0:020d}").pwrite(bytes(8), UNIT_BYTES)


def _change_size(disk: FakeDisk) -> None:
    disk.open(f"{STATE_TABLE}/{0:020d}").pwrite(b"\x7f", 8)


def _change_group(disk: FakeDisk) -> None:
    disk.open(f"{STATE_TABLE}/{0:020d}").pwrite(b"\x7f", 16)


def _change_state(disk: FakeDisk) -> None:
    disk.open(f"{STATE_TABLE}/{0:020d}").pwrite(b"\x07", 23)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_cut_crc, "damaged"),
        (_remove_redo_log, NO_REDO_LOG),
        (_empty_redo_log, "cut off"),
        (_remove_file, "does not follow"),
        (_remove_last_file, "is missing"),
        (_cut_file, "has 30 bytes"),
        (_change_offset, "a unit names"),
        (_change_size, "a unit names"),
        (_change_group, "no such half message"),
        (_change_state, "has state 7"),
    ],
)
def test_a_doubtful_transaction_table_is_rebuilt_from_the_log(
    log: TransactionLog,
    table: TransactionTable,
    spoil: Callable[[FakeDisk], None],
    reason: str,
) -> None:
    log.plain()
    halves = [log.half(str(number)) for number in range(2 * FILE_UNITS + 1)]
    log.op(halves[3])
    table.dispatch(log.entries())
    saved(log, table)
    wanted = table.snapshot()
    table.close()
    spoil(log.disk)
    again = reopened(log, reason)
    assert (again.covered_offset, again.unit_count) == (0, 0)
    again.dispatch(log.entries())
    assert again.snapshot() == wanted
    saved(log, again)
    assert reopened(log).snapshot() == wanted


def test_a_transaction_table_of_another_log_is_rebuilt(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    table.dispatch([half, log.plain()])
    saved(log, table)
    other = TransactionLog(FakeDisk(), CONFIG)
    other.now_ms += 1  # the same records, stored at other times
    other.half("a")
    other.plain()
    assert other.log.end_offset == log.log.end_offset
    alien = TransactionTable(CONFIG, log.disk, other.log.view, lambda: 0)
    assert (
        alien.load(0, other.log.end_offset) == f"the log has another record at {half.record_bytes}"
    )


def test_a_transaction_table_beyond_the_log_end_is_rebuilt(
    log: TransactionLog, table: TransactionTable
) -> None:
    table.dispatch([log.half("a"), log.plain()])
    saved(log, table)
    again = table_of(log)
    assert again.load(0, log.log.end_offset - 1).startswith("it reaches")
    assert again.covered_offset == 0


@pytest.mark.parametrize("bit", range(8))
def test_verify_finds_a_flipped_state_bit(
    log: TransactionLog, table: TransactionTable, bit: int
) -> None:
    halves = [log.half(str(number)) for number in range(4)]
    table.dispatch([*halves, log.commit(halves[1]), log.op(halves[1]), log.op(halves[2])])
    saved(log, table)
    file = log.disk.open(f"{STATE_TABLE}/{0:020d}")
    position = UNIT_BYTES + 23
    file.pwrite(bytes((file.pread(1, position)[0] ^ 1 << bit,)), position)
    (problem,) = table.verify(log.entries())
    assert "should be" in problem
    table.start_anew(0)
    table.dispatch(log.entries())
    assert table.verify(log.entries()) == []


def test_verify_finds_missing_and_extra_units(log: TransactionLog, table: TransactionTable) -> None:
    table.dispatch([log.half("a"), log.half("b")])
    assert table.verify(log.entries()[1:]) == ["the log has no half message at 0"]
    assert table.verify(log.entries()) == []


def scrubbed(
    log: TransactionLog,
    meanwhile: Callable[[], None] = lambda: None,
    damage: Damage | None = None,
) -> str:
    """Return the finding about the table on disk; run `meanwhile` after the first step."""
    reader = DispatchReader(log.log, ())
    scrub = TableScrub(CONFIG, log.disk, log.log, reader, damage or Damage())
    is_done = scrub.step()
    meanwhile()
    while not is_done:
        is_done = scrub.step()
    scrub.close()
    return scrub.reason


@pytest.mark.parametrize("count", [0, 1, 3 * FILE_UNITS])
def test_the_scrubber_finds_nothing_wrong_with_a_table_in_use(
    log: TransactionLog, table: TransactionTable, count: int
) -> None:
    halves = [log.half(str(number)) for number in range(count)]
    log.plain()
    table.dispatch(log.entries())
    saved(log, table)
    ended = [log.commit(half) for half in halves[:2]] + [log.op(half) for half in halves[1:]]
    table.dispatch(ended)
    assert scrubbed(log) == ""

    def more() -> None:
        table.dispatch([log.half("later")])
        log.log.sync(log.log.end_offset)
        table.write_out()

    assert scrubbed(log, more) == ""
    assert scrubbed(log) == ""


@pytest.mark.parametrize("bit", range(8))
def test_the_scrubber_finds_a_flipped_state_bit_on_disk(
    log: TransactionLog, table: TransactionTable, bit: int
) -> None:
    halves = [log.half(str(number)) for number in range(FILE_UNITS + 2)]
    table.dispatch([*halves, log.commit(halves[1]), log.op(halves[1])])
    saved(log, table)
    file = log.disk.open(f"{STATE_TABLE}/{0:020d}")
    for position in (23, UNIT_BYTES + 23):
        before = file.pread(1, position)
        file.pwrite(bytes((before[0] ^ 1 << bit,)), position)
        assert "should be" in scrubbed(log)
        file.pwrite(before, position)
    assert scrubbed(log) == ""


def test_the_scrubber_finds_zeroed_units(log: TransactionLog, table: TransactionTable) -> None:
    table.dispatch([log.plain(), log.half("a")])
    saved(log, table)
    log.disk.open(f"{STATE_TABLE}/{0:020d}").pwrite(bytes(UNIT_BYTES), 0)
    assert scrubbed(log) == "the log has no half message at 0"


def test_the_scrubber_leaves_a_table_that_was_never_synced(log: TransactionLog) -> None:
    log.half("a")
    assert scrubbed(log) == ""


def test_states_whose_log_records_are_damaged_are_kept(
    log: TransactionLog, table: TransactionTable
) -> None:
    halves = [log.half(str(number)) for number in range(3)]
    commit = log.commit(halves[0])
    table.dispatch([*halves, commit, log.op(halves[0])])
    saved(log, table)
    damage = Damage()
    for record in (halves[1], commit):
        damage.add(record.physical_offset, record.end_offset, "flipped")
        log.log.queue.files[0].write(b"?", record.physical_offset + 4)
    assert scrubbed(log) != ""
    assert scrubbed(log, damage=damage) == ""
    log.disk.open(f"{STATE_TABLE}/{0:020d}").pwrite(b"?", 2 * UNIT_BYTES + 8)
    assert "should be" in scrubbed(log, damage=damage)
