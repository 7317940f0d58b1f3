"""The newest copy of a half message that was replaced, found in memory and in the files."""

import pytest

from protocol.message import MessageRecord, decode_record
from storage.queues.dispatch_entry import DispatchEntry
from storage.transactions.units import COMMITTED, DISCARDED, PREPARED, ROLLED_BACK
from tests.support.transactions import CONFIG, TransactionLog, saved, table_of
from troupemq.testing.fake_disk import FakeDisk


def record_of(log: TransactionLog, entry: DispatchEntry) -> MessageRecord:
    return decode_record(log.log.view(entry.physical_offset, entry.record_bytes))


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("end", [COMMITTED, ROLLED_BACK, DISCARDED, PREPARED])
def test_the_last_copy_is_found_among_others_of_its_group_and_second(
    end: int, is_written: bool
) -> None:
    log = TransactionLog(FakeDisk(), CONFIG)
    table = table_of(log)
    first = log.half("wanted")
    entries = [first, log.half("other")]
    for times in (1, 2, 10):
        copy = log.checked("wanted", times)
        entries += [copy, other := log.checked("other", times)]
    if end == COMMITTED:
        entries.append(log.commit(copy))
    if end in (COMMITTED, ROLLED_BACK):
        entries.append(log.op(copy))
    if end == DISCARDED:
        entries.append(log.discard("wanted"))
    entries += [log.op(other), log.half("newer")]
    table.dispatch(entries)
    if is_written:
        saved(log, table)
    found = table.last_copy(record_of(log, first))
    assert found is not None
    assert (found.physical_offset, found.state) == (copy.physical_offset, end)
    assert table.last_copy(record_of(log, copy)) is None
    table.close()


def test_a_half_message_put_once_has_no_copy() -> None:
    log = TransactionLog(FakeDisk(), CONFIG)
    table = table_of(log)
    half = log.half("wanted")
    table.dispatch([half, log.op(half), log.half("other"), log.checked("other")])
    assert table.last_copy(record_of(log, half)) is None
    table.close()
