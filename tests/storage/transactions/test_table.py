"""The transaction table: what is pending, what is kept of it, and no doubt survives a start."""

from dataclasses import replace

import pytest

from protocol.codes import TRANSACTION_COMMIT
from protocol.host import pack_host
from storage.errors import StoreError
from storage.index.key_hash import java_hash
from storage.queues.unsynced import sync_files
from storage.transactions.table import TransactionTable
from storage.transactions.units import (
    COMMITTED,
    COMMITTING,
    PREPARED,
    REPLACED,
    ROLLED_BACK,
    UNIT,
    UNIT_BYTES,
)
from tests.support.transactions import (
    FILE_UNITS,
    GROUP,
    STATE_TABLE,
    TransactionLog,
    reopened,
    saved,
    states,
    table_of,
)


def test_a_half_message_is_pending_with_its_group_and_time(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    table.dispatch([half])
    (pending,) = table.pending(10)
    assert (pending.physical_offset, pending.record_bytes) == (
        half.physical_offset,
        half.record_bytes,
    )
    assert pending.timestamp_s == 1_600_000_000  # born, not stored
    assert pending.group_hash == java_hash(GROUP.encode())
    assert (pending.queue_id, pending.queue_offset) == (0, half.queue_offset)
    assert (table.pending_count, table.unit_count) == (1, 1)


def test_an_operation_after_a_commit_commits_and_alone_rolls_back(
    log: TransactionLog, table: TransactionTable
) -> None:
    first, second, third = (log.half(key) for key in "abc")
    table.dispatch([first, second, third, log.commit(second)])
    assert states(table) == [PREPARED, COMMITTING, PREPARED]
    assert table.pending_count == 3
    table.dispatch([log.op(second), log.op(first), log.plain()])
    assert states(table) == [ROLLED_BACK, COMMITTED, PREPARED]
    assert [each.physical_offset for each in table.pending(10)] == [third.physical_offset]


def test_a_commit_of_an_ipv6_broker_is_distinguished_from_a_rollback(
    log: TransactionLog, table: TransactionTable
) -> None:
    log.log.store_host = pack_host("::1", 10911)
    log.plain()
    half = log.half("a")
    commit = log.commit(half)
    put_now = replace(commit, sys_flag=TRANSACTION_COMMIT)  # the value that an append gives
    table.dispatch([half, put_now, log.op(half)])
    assert states(table) == [COMMITTED]


def test_pending_half_messages_are_listed_oldest_first_in_pages(
    log: TransactionLog, table: TransactionTable
) -> None:
    halves = [log.half(str(number)) for number in range(7)]
    table.dispatch([*halves, log.op(halves[2])])
    page = table.pending(3)
    assert [each.queue_offset for each in page] == [0, 1, 3]
    rest = table.pending(10, after_offset=page[-1].physical_offset)
    assert [each.queue_offset for each in rest] == [4, 5, 6]


def test_a_check_back_replaces_the_older_half_message(
    log: TransactionLog, table: TransactionTable
) -> None:
    first, other = log.half("a"), log.half("b")
    again = log.checked("a")
    table.dispatch([first, other, again])
    assert states(table) == [REPLACED, PREPARED, PREPARED]
    table.dispatch([log.op(again), log.discard("b")])
    assert table.pending_count == 0
    assert states(table) == [REPLACED, 20, ROLLED_BACK]


def test_an_operation_on_the_first_immune_half_message_settles_the_last(
    log: TransactionLog, table: TransactionTable
) -> None:
    first = log.half("a")
    again = log.half("a", more=f"\x02TRAN_PREPARED_QUEUE_OFFSET\x01{first.queue_offset}")
    table.dispatch([first, again, log.op(first)])
    assert states(table) == [REPLACED, ROLLED_BACK]


def test_two_half_messages_of_one_key_are_two_transactions(
    log: TransactionLog, table: TransactionTable
) -> None:
    first, second = log.half("a"), log.half("a")
    table.dispatch([first, second, log.op(first)])
    assert states(table) == [ROLLED_BACK, PREPARED]


def test_a_copy_of_a_committed_message_commits_nothing(
    log: TransactionLog, table: TransactionTable
) -> None:
    half, other = log.half("a"), log.half("b")
    assert half.physical_offset == 0
    copy = log.commit(replace(other, physical_offset=0))  # a delayed delivery names offset 0
    table.dispatch([half, other, copy, log.op(half)])
    assert states(table) == [ROLLED_BACK, PREPARED]


def test_an_operation_without_tag_or_valid_crc_settles_nothing(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    op = log.op(half)
    table.dispatch([half, replace(op, tags_code=7)])
    assert table.pending_count == 1
    damaged = log.op(half)
    log.log.queue.files[0].write(
        b"1", damaged.physical_offset + 88
    )  # another queue offset in the body
    table.dispatch([damaged])
    assert (table.pending_count, table.unreadable_count) == (1, 1)


def test_prepared_records_of_older_brokers_are_settled_by_commit_and_rollback(
    log: TransactionLog, table: TransactionTable
) -> None:
    log.plain()
    first, second, third = log.prepared(), log.prepared(), log.prepared()
    entries = [first, second, third, log.ended(first, 8), log.ended(second, 12)]
    table.dispatch(entries)
    assert states(table) == [COMMITTED, ROLLED_BACK, PREPARED]
    assert [each.is_half for each in table.pending(10)] == [False]
    saved(log, table)
    assert states(reopened(log)) == [COMMITTED, ROLLED_BACK, PREPARED]


def test_covered_records_are_not_applied_twice(
    log: TransactionLog, table: TransactionTable
) -> None:
    entries = [log.half("a"), log.half("b")]
    table.dispatch(entries)
    table.dispatch([*entries, log.half("c")])
    assert table.unit_count == 3
    assert table.covered_offset == log.log.end_offset


def test_units_and_states_are_laid_out_as_documented(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    table.dispatch([half, log.op(half)])
    table.dispatch([log.half(str(number)) for number in range(FILE_UNITS)])
    saved(log, table)
    names = log.disk.listdir(STATE_TABLE)
    assert names == [f"{number * UNIT_BYTES:020d}" for number in (0, FILE_UNITS)]
    data = log.disk.read_bytes(f"{STATE_TABLE}/{names[0]}")
    group_hash = java_hash(GROUP.encode())
    assert UNIT.unpack_from(data) == (
        half.physical_offset,
        half.record_bytes,
        1_600_000_000,
        group_hash,
        ROLLED_BACK,
    )
    assert len(data) == FILE_UNITS * UNIT_BYTES


def test_units_of_unsynced_records_are_not_written(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    table.dispatch([half])
    log.log.sync(log.log.end_offset)
    table.dispatch([log.op(half), log.half("b")])
    table.write_out()
    data = log.disk.read_bytes(f"{STATE_TABLE}/{0:020d}")
    assert UNIT.unpack_from(data)[4] == PREPARED
    assert not any(data[UNIT_BYTES:])
    assert states(table) == [ROLLED_BACK, PREPARED]
    assert table.find(half.physical_offset) == table.snapshot()[0]


@pytest.mark.parametrize("count", [0, 1, FILE_UNITS, 3 * FILE_UNITS + 2])
def test_a_reopened_table_continues_at_its_last_offset(
    log: TransactionLog, table: TransactionTable, count: int
) -> None:
    log.plain()
    halves = [log.half(str(number)) for number in range(count)]
    table.dispatch(log.entries())
    table.dispatch([log.op(half) for half in halves[:-2]])
    saved(log, table)
    again = reopened(log)
    assert again.covered_offset == table.covered_offset
    assert again.pending(100) == table.pending(100)
    assert again.snapshot() == table.snapshot()
    again.dispatch([log.op(half) for half in halves[-2:]])
    assert again.pending_count == 0
    assert again.verify(log.entries()) == []


def test_a_transaction_being_committed_keeps_its_state_over_a_restart(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    table.dispatch([half, log.commit(half)])
    saved(log, table)
    again = reopened(log)
    again.dispatch([log.op(half)])
    assert states(again) == [COMMITTED]


def test_records_after_the_last_sync_are_replayed_once(
    log: TransactionLog, table: TransactionTable
) -> None:
    halves = [log.half(str(number)) for number in range(4)]
    table.dispatch(halves)
    saved(log, table)
    table.dispatch([log.commit(halves[0]), log.op(halves[0]), log.half("x"), log.op(halves[1])])
    log.log.sync(log.log.end_offset)
    table.write_out()  # in the files, but the redo log does not say so yet
    wanted = table.snapshot()
    again = reopened(log)
    stale = log.disk.read_bytes(f"{STATE_TABLE}/{0:020d}")[4 * UNIT_BYTES :]
    assert not any(stale)  # the unit of x, which is made again
    assert again.covered_offset < log.log.end_offset
    again.dispatch(
        [entry for entry in log.entries() if entry.physical_offset >= again.covered_offset]
    )
    assert again.snapshot() == wanted
    assert again.verify(log.entries()) == []


def test_a_file_counts_as_settled_only_if_it_is_on_disk(
    log: TransactionLog, table: TransactionTable
) -> None:
    halves = [log.half(str(number)) for number in range(FILE_UNITS + 1)]
    table.dispatch([*halves, log.plain()])
    log.log.sync(log.log.end_offset)
    table.dispatch([log.op(half) for half in halves])  # not on disk in the log
    table.sync()
    log.log.sync(log.log.end_offset)
    again = reopened(log)
    assert again.pending_count == FILE_UNITS + 1
    again.dispatch(log.entries())
    assert again.pending_count == 0
    assert again.verify(log.entries()) == []


def test_fully_settled_files_are_not_read_again(
    log: TransactionLog, table: TransactionTable
) -> None:
    halves = [log.half(str(number)) for number in range(3 * FILE_UNITS)]
    table.dispatch(halves)
    table.dispatch([log.op(half) for half in halves[: 2 * FILE_UNITS]])
    saved(log, table)
    file = log.disk.open(f"{STATE_TABLE}/{0:020d}")
    file.pwrite(b"\xff" * UNIT_BYTES, UNIT_BYTES)  # a start does not read it
    assert reopened(log).pending_count == FILE_UNITS


def test_files_below_the_logs_min_offset_are_deleted_with_their_transactions(
    log: TransactionLog, table: TransactionTable
) -> None:
    halves = [log.half(str(number)) for number in range(2 * FILE_UNITS + 2)]
    table.dispatch([*halves, log.op(halves[-1])])
    saved(log, table)
    min_physical = halves[FILE_UNITS + 1].physical_offset
    second = f"{STATE_TABLE}/{FILE_UNITS * UNIT_BYTES:020d}"
    assert table.trim_before(min_physical) == [f"{STATE_TABLE}/{0:020d}"]
    assert table.pending(1)[0].physical_offset == min_physical
    assert table.trim_before(log.log.end_offset) == [second]
    assert (table.pending_count, table.unit_count) == (0, 2)
    assert len(log.disk.listdir(STATE_TABLE)) == 3
    table.dispatch([log.half("new")])
    saved(log, table)
    again = table_of(log)
    assert again.load(halves[-1].physical_offset, log.log.end_offset) == ""
    assert [each.queue_offset for each in again.pending(10)] == [len(halves)]
    assert len(log.disk.listdir(STATE_TABLE)) == 1


def test_a_table_that_ends_below_the_logs_min_offset_restarts_there(
    log: TransactionLog, table: TransactionTable
) -> None:
    table.dispatch([log.half("a")])
    saved(log, table)
    rest = log.half("b")
    again = table_of(log)
    assert "from" in again.load(rest.physical_offset + 1, log.log.end_offset)
    assert again.covered_offset == rest.physical_offset + 1


def test_a_full_disk_loses_no_change(log: TransactionLog, table: TransactionTable) -> None:
    half = log.half("a")
    table.dispatch([half, log.half("b")])
    saved(log, table)
    table.dispatch([log.op(half), *(log.half(str(number)) for number in range(2 * FILE_UNITS))])
    log.log.sync(log.log.end_offset)
    wanted = table.snapshot()
    for operation in ("pwrite", "set_size", "open"):
        log.disk.fail_next(operation, OSError(28, "no space"))
        with pytest.raises(StoreError):
            table.write_out()
    table.sync()
    assert table.snapshot() == wanted
    assert reopened(log).snapshot() == wanted


def test_a_failure_between_units_and_states_adds_no_unit_twice(
    log: TransactionLog, table: TransactionTable
) -> None:
    half = log.half("a")
    table.dispatch([half])
    saved(log, table)
    table.dispatch([log.half("b"), log.op(half)])
    log.log.sync(log.log.end_offset)
    wanted = table.snapshot()
    real_write, calls = table._files._files.write, []

    def failing(path: str, data: bytes, position: int) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(5, "input/output error")
        real_write(path, data, position)

    table._files._files.write = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreError):
        table.write_out()
    table.sync()
    assert table.snapshot() == wanted
    assert reopened(log).snapshot() == wanted


def test_a_sync_on_another_thread_covers_the_units_it_was_given(
    log: TransactionLog, table: TransactionTable
) -> None:
    saved(log, table)
    half = log.half("a")
    table.dispatch([half])
    log.log.sync(log.log.end_offset)
    taken = table.unsynced()
    assert taken is not None
    assert table.unsynced(least_pages=2) is None
    table.dispatch([log.op(half)])
    log.log.sync(log.log.end_offset)
    table.write_out()
    sync_files(log.disk, taken.files)
    table.save(taken)
    table.mark_synced(taken)
    later = table.unsynced()
    assert later is not None
    assert later.files.paths == [f"{STATE_TABLE}/{0:020d}"]
    assert later.covered.offset == log.log.end_offset
    table.sync()
    assert table.unsynced() is None
