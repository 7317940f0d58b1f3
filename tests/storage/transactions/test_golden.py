"""The transaction table of stores that the original wrote, beside what its records tell."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.properties import PGROUP, parse
from storage.dispatching.dispatch import delay_levels_ms, entry_of
from storage.files.disk import RealDisk
from storage.index.key_hash import java_hash
from storage.message_store import MessageStore
from storage.transactions.units import COMMITTED, PREPARED, REPLACED, ROLLED_BACK
from tests.storage.derived import config
from tests.support.by_hand import BY_HAND
from tests.support.clock import ManualClock
from tests.support.golden import manifest, store

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_CHECKED_BACK = [COMMITTED, ROLLED_BACK, REPLACED, COMMITTED, REPLACED, PREPARED, PREPARED]
STATES = {
    "clean": [COMMITTED, ROLLED_BACK, PREPARED, COMMITTED, PREPARED],
    "slave": [COMMITTED, ROLLED_BACK, PREPARED, COMMITTED, PREPARED],
    "crashed-recovered": _CHECKED_BACK,
    "crashed": _CHECKED_BACK,
    "ext": [],
    BY_HAND: [COMMITTED, ROLLED_BACK, PREPARED],
}
"""In the order of the half messages; those that crashed had checked back once."""


def opened(root: Path) -> MessageStore:
    """The store, brought to the end of its log."""
    without_index = replace(config(str(root)), message_index_enable=False)
    made = MessageStore(without_index, RealDisk(), ManualClock())
    made.open()
    made.catch_up()
    return made


def halves_of(name: str) -> list[dict[str, Any]]:
    """Return the half messages of the manifest."""
    return [record for record in manifest(name)["rawRecords"] if record["topic"] == HALF]


@pytest.mark.parametrize("name", STATES)
def test_every_transaction_is_found_in_its_state(name: str, tmp_path: Path) -> None:
    made = opened(store(name, tmp_path))
    table = made.transaction_table
    halves = halves_of(name)
    assert [tuple(unit) for unit in table.snapshot()] == [
        (
            half["commitLogOffset"],
            half["storeSize"],
            half["bornTimestamp"] // 1000,
            java_hash(parse(half["propertiesRaw"].encode())[PGROUP].encode()),
            state,
        )
        for half, state in zip(halves, STATES[name], strict=True)
    ]
    pending = [
        half["queueOffset"]
        for half, state in zip(halves, STATES[name], strict=True)
        if state == PREPARED
    ]
    assert [each.queue_offset for each in table.pending(100)] == pending
    made.close()


def test_the_table_survives_a_restart_without_a_rebuild(tmp_path: Path) -> None:
    root = store(BY_HAND, tmp_path)
    made = opened(root)
    before = made.transaction_table.snapshot()
    made.close()
    again = MessageStore(made.config, RealDisk(), ManualClock())
    report = again.open()
    assert not report.findings
    assert not again.lagging.behind
    assert again.transaction_table.snapshot() == before
    assert again.transaction_table.pending_count == 1
    again.close()


def test_a_table_left_stale_by_an_official_broker_is_updated(tmp_path: Path) -> None:
    """Our table is from before the original's check-back, its log from after it."""
    root = store("crashed-recovered", tmp_path)
    without_index = replace(config(str(root)), message_index_enable=False)
    ours = MessageStore(without_index, RealDisk(), ManualClock())
    ours.open()
    levels = delay_levels_ms(without_index.message_delay_level)
    entries = [entry_of(head, levels) for head in ours.commit_log.walk(0)]
    check_back = halves_of("crashed-recovered")[-2]["commitLogOffset"]
    ours.transaction_table.dispatch(
        [entry for entry in entries if entry.physical_offset < check_back]
    )
    ours.transaction_table.sync()
    assert ours.transaction_table.pending_count == 2
    ours.abandon()

    again = MessageStore(without_index, RealDisk(), ManualClock())
    report = again.open()
    assert not report.findings
    assert again.transaction_table.covered_offset == check_back
    again.catch_up()
    assert [unit.state for unit in again.transaction_table.snapshot()] == _CHECKED_BACK
    assert again.transaction_table.verify(entries) == []
    again.close()
