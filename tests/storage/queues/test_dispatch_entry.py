"""A run of entries says the same as the entries of its records."""

from storage.queues.dispatch_entry import (
    Dispatched,
    DispatchEntry,
    EntryRun,
    MixedEntries,
    cut_behind,
    extended,
    single_entries,
)
from tests.storage.derived import RECORD_BYTES, START_MS, entry

RUN = EntryRun(
    b"T", 2, 5, 300, 3 * RECORD_BYTES, 77, START_MS, 0x10, (b"key0",), (b"y0", b"y1", b"y2")
)
SINGLES: list[DispatchEntry] = [
    (b"T", 2, 5 + n, 300 + n * RECORD_BYTES, RECORD_BYTES, 77, START_MS, 0x10, (b"key%d" % n,))
    for n in range(3)
]


def may_hold_runs(entries: list[Dispatched]) -> bool:
    return isinstance(entries, MixedEntries)


def test_a_run_is_taken_apart_into_the_entries_of_its_records() -> None:
    assert RUN.entries() == SINGLES
    assert single_entries([entry(2), RUN, entry(6)]) == [entry(2), *SINGLES, entry(6)]
    mixed = MixedEntries([entry(2), RUN, entry(6)])
    assert may_hold_runs(mixed) and may_hold_runs(cut_behind(mixed, 1)[0])


def test_a_run_has_in_the_places_of_an_entry_what_all_have_in_common_and_where_it_ends() -> None:
    first, last = SINGLES[0], SINGLES[-1]
    assert RUN[:4] == first[:4] and RUN[5:9] == first[5:9]
    assert RUN[3] + RUN[4] == last[3] + last[4]


def test_without_runs_nothing_is_copied() -> None:
    entries: list[Dispatched] = [entry(0), entry(1)]
    assert single_entries(entries) is entries
    assert not may_hold_runs(entries)
    assert cut_behind(entries, 2)[0] is entries


def test_a_list_with_runs_behind_it_may_hold_runs() -> None:
    entries: list[Dispatched] = [entry(0)]
    assert extended(entries, [entry(1)]) is entries
    mixed = extended(entries, MixedEntries([RUN]))
    assert (mixed, may_hold_runs(mixed)) == ([entry(0), entry(1), RUN], True)
    assert extended(mixed, [entry(9)]) is mixed


def test_a_list_is_cut_behind_about_so_many_records_and_never_in_a_run() -> None:
    entries = MixedEntries([entry(0), RUN, entry(6), RUN])
    pairs = [cut_behind(entries, count) for count in range(1, 10)]
    assert [len(first) for first, _ in pairs] == [1, 2, 2, 2, 3, 4, 4, 4, 4]
    for first, rest in pairs:
        assert [*first, *rest] == entries
        assert (may_hold_runs(first), may_hold_runs(rest)) == (True, bool(rest))
    singles: list[Dispatched] = [entry(n) for n in range(9)]
    assert cut_behind(singles, 8) == (singles[:8], singles[8:])
    assert not may_hold_runs(cut_behind(singles, 8)[1])
    assert [len(cut_behind(singles, count)[0]) for count in (1, 8, 9, 10)] == [1, 8, 9, 9]


def test_a_list_is_cut_behind_about_so_many_keys_whatever_its_records_have() -> None:
    keys = tuple(b"%d" % number for number in range(129))
    plain: list[Dispatched] = [
        (b"Topic", 0, number, number * 100, 100, 0, 1, 0, keys) for number in range(64)
    ]
    first, rest = cut_behind(plain, 2000, 6000)
    assert len(first) == 47 and first + rest == plain
    assert cut_behind(first, 2000, 6100) == (first, [])
    assert cut_behind(plain[:1], 2000, 10) == (plain[:1], []), "a record is not cut"
    mixed = MixedEntries(plain)
    assert [len(part) for part in cut_behind(mixed, 2000, 6000)] == [47, 17]
