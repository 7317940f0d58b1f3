"""Keys in memory: those of a run are the same as those of its records."""

from collections.abc import Sequence

import pytest

from storage.index.pending_keys import PendingKeys
from storage.queues.dispatch_entry import Dispatched, EntryRun, MixedEntries, single_entries
from tests.storage.derived import RECORD_BYTES, START_MS, entry


def run(
    number: int, tails: Sequence[bytes], *, head: bytes = b"head", sys_flag: int = 0
) -> EntryRun:
    first, run_bytes = number * RECORD_BYTES, len(tails) * RECORD_BYTES
    keys = (head + tails[0],)
    return EntryRun(b"T", 0, number, first, run_bytes, 0, START_MS, sys_flag, keys, tails)


def known(
    entries: Sequence[Dispatched], covered: int = 0
) -> tuple[list[int], list[int], list[int]]:
    keys = PendingKeys()
    keys.add(entries, covered)
    return keys.hashes, keys.offsets, keys.timestamps


TAILS = [b"%04X" % number for number in range(30)]
OTHER = entry(40, topic=b"Other", keys=(b"head0001", b"word"))


@pytest.mark.parametrize(
    "entries",
    [
        [run(0, TAILS)],
        [OTHER, run(50, TAILS), run(80, TAILS[:1]), entry(82, keys=(b"head0001",)), OTHER],
        [run(0, TAILS, head=b"")],
        [run(0, TAILS, head="ü".encode())],
        [run(0, [b"0001", "üü".encode()])],
        [run(0, [b"01", b"02"])],
        [run(0, TAILS, sys_flag=0xC)],
    ],
    ids=["alone", "among others", "no head", "head", "tail", "short tails", "rolled back"],
)
def test_a_run_has_the_keys_of_its_records(entries: Sequence[Dispatched]) -> None:
    entries = MixedEntries(entries)
    singles = single_entries(entries)
    assert not any(isinstance(each, EntryRun) for each in singles)
    for covered in (0, RECORD_BYTES, 55 * RECORD_BYTES, 10**6):
        assert known(entries, covered) == known(singles, covered)


def test_the_oldest_go_first() -> None:
    keys = PendingKeys()
    entries = MixedEntries([run(0, TAILS)])
    keys.add(entries, 0)
    whole = known(entries)
    keys.drop_first(4)
    assert (keys.hashes, keys.offsets, keys.timestamps) == tuple(each[4:] for each in whole)
    keys.clear()
    assert (keys.hashes, keys.offsets, keys.timestamps) == ([], [], [])
