"""Entries of records, runs of them, and lists that are cut."""

from dataclasses import replace

from storage.queues.dispatch_entry import (
    Dispatched,
    MixedEntries,
    cut_behind,
    extended,
    single_entries,
)
from tests.storage.derived import RECORD_BYTES, entry, run_of


def test_an_entry_computes_the_end_of_its_record() -> None:
    assert entry(3).end_offset == 4 * RECORD_BYTES


SINGLES = [
    replace(entry(n, tags_code=n, keys=(b"key%d" % n,)), store_timestamp=7) for n in range(3, 6)
]
RUN = run_of(SINGLES)


def test_run_is_taken_apart_into_the_entries_of_its_records() -> None:
    assert RUN.entries() == SINGLES
    assert RUN.end_offset == SINGLES[-1].end_offset
    assert single_entries([entry(2), RUN, entry(6)]) == [entry(2), *SINGLES, entry(6)]
    plain = [entry(0), entry(1)]
    assert single_entries(plain) is plain, "nothing is copied where no run is"


def test_extending_an_entry_list_with_runs_makes_a_mixed_list() -> None:
    entries: list[Dispatched] = [entry(0)]
    assert extended(entries, [entry(1)]) is entries
    mixed = extended(entries, MixedEntries([RUN]))
    assert (type(mixed), mixed) == (MixedEntries, [entry(0), entry(1), RUN])
    assert extended(mixed, [entry(9)]) is mixed


def test_an_entry_list_is_split_by_record_count_and_never_inside_a_run() -> None:
    entries = MixedEntries([entry(0), RUN, entry(6), RUN])
    pairs = [cut_behind(entries, count, 100) for count in range(1, 10)]
    assert [len(first) for first, _ in pairs] == [1, 2, 2, 2, 3, 4, 4, 4, 4]
    for first, rest in pairs:
        assert [*first, *rest] == entries and isinstance(first, MixedEntries)
    assert [len(part) for part in cut_behind(entries, 100, 4)] == [4, 0]
    assert [len(part) for part in cut_behind(entries, 100, 3)] == [2, 2]


def test_an_entry_list_without_runs_is_split_by_exact_record_count() -> None:
    entries: list[Dispatched] = [entry(number) for number in range(9)]
    assert cut_behind(entries, 8, 1) == (entries[:8], entries[8:])
    assert [len(cut_behind(entries, count, 1)[0]) for count in (1, 8, 9, 10)] == [1, 8, 9, 9]
    assert cut_behind(entries, 9, 1)[0] is entries, "nothing is copied where nothing is cut"


def test_an_entry_list_is_split_by_approximate_key_count() -> None:
    keys = tuple(b"%d" % number for number in range(129))
    entries: list[Dispatched] = [entry(number, keys=keys) for number in range(64)]
    first, rest = cut_behind(entries, 2000, 6000)
    assert len(first) == 47 and first + rest == entries
    assert cut_behind(first, 2000, 6100) == (first, [])
    assert cut_behind(entries[:1], 2000, 10) == (entries[:1], []), "a record is not cut"
