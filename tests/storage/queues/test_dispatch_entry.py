"""Entries of records, and runs of them."""

from dataclasses import replace

from storage.queues.dispatch_entry import (
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
