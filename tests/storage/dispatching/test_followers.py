"""The log is read for those that follow behind it: in slices, past damage, without a hole."""

import errno
from collections.abc import Sequence

import pytest

from protocol.message import BLANK_MAGIC
from storage.dispatching.dispatch import Dispatcher, entry_of
from storage.dispatching.followers import SLICE_RECORDS, DispatchReader, Lagging
from storage.queues.dispatch_entry import Dispatched, DispatchEntry
from tests.support.store import SmallStore
from troupemq.testing.fake_disk import FakeDisk


class Noting:
    """A follower that remembers what it was told."""

    def __init__(self, name: str = "noting", covered_offset: int = 0) -> None:
        self.name = name
        self.covered_offset = covered_offset
        self.offsets: list[int] = []

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        for entry in entries:
            if entry.physical_offset >= self.covered_offset:
                self.offsets.append(entry.physical_offset)
                self.covered_offset = entry.end_offset

    def write_out(self) -> None:
        """Has nothing in memory."""

    def trim_before(self, min_physical: int) -> list[str]:
        """Has no files."""
        return []


def a_store(count: int = 200) -> tuple[SmallStore, list[DispatchEntry]]:
    """With several log files, and what its records are."""
    small = SmallStore(FakeDisk())
    small.send(count)
    assert count < 100 or len(small.log.queue.files) > 2
    return small, [entry_of(head, ()) for head in small.log.walk(0)]


def everything(reader: DispatchReader, small: SmallStore, count_max: int) -> list[DispatchEntry]:
    found: list[DispatchEntry] = []
    position = 0
    while position < small.log.end_offset:
        part = reader.read(position, count_max)
        assert part.next_offset > position
        found += part.entries
        position = part.next_offset
    return found


@pytest.mark.parametrize("count_max", [1, 7, 1000])
def test_slices_cover_the_whole_log(count_max: int) -> None:
    small, entries = a_store()
    assert everything(DispatchReader(small.log, ()), small, count_max) == entries


def test_a_slice_of_long_records_is_read_whole() -> None:
    """A record that is longer than what is read at a time."""
    small, _ = a_store(10)
    reader = DispatchReader(small.log, ())
    reader.window_bytes = 64
    assert len(everything(reader, small, 1000)) == 10


@pytest.mark.parametrize("position", [0, 4, 28, 84], ids=["size", "magic", "offset", "body size"])
def test_an_unreadable_record_is_skipped(position: int) -> None:
    small, entries = a_store()
    lost = entries[50]
    file = small.log.queue.find(lost.physical_offset)
    assert file is not None
    file.write(b"\x13\x57", lost.physical_offset - file.first_offset + position)
    found = everything(DispatchReader(small.log, ()), small, 7)
    assert [each for each in entries if each not in found] == [lost]


def test_a_blank_with_a_damaged_magic_still_ends_the_file() -> None:
    small, entries = a_store()
    file = small.log.queue.files[0]
    at = file.view.obj.find(BLANK_MAGIC.to_bytes(4))  # type: ignore[attr-defined]
    last = max(entry.end_offset for entry in entries if entry.physical_offset < file.end_offset)
    assert at == last + 4
    file.write(b"\0", at)
    assert everything(DispatchReader(small.log, ()), small, 7) == entries


def test_reading_continues_at_the_min_offset_after_files_were_deleted() -> None:
    small, entries = a_store()
    small.log.queue.drop_below(small.log.queue.files[1].first_offset)
    part = DispatchReader(small.log, ()).read(0, 3)
    first = small.log.min_offset()
    assert part.entries == [entry for entry in entries if entry.physical_offset >= first][:3]


def test_a_file_deleted_during_the_read_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, _ = a_store()
    first, second = small.log.queue.files[:2]

    def deleted(count: int, position: int) -> bytes:
        small.log.queue.drop_below(second.first_offset)
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(first.file, "pread", deleted)
    part = DispatchReader(small.log, ()).read(0, 3)
    assert (part.entries, part.next_offset) == ([], second.first_offset)


def test_an_unreadable_log_file_is_a_disk_error(monkeypatch: pytest.MonkeyPatch) -> None:
    small, _ = a_store(10)

    def broken(count: int, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(small.log.queue.files[0].file, "pread", broken)
    with pytest.raises(OSError, match="Input/output error"):
        DispatchReader(small.log, ()).read(0, 3)


def test_a_lagging_target_gets_no_new_records_until_it_has_caught_up() -> None:
    small, entries = a_store(20)
    end = small.log.end_offset
    late, early = Noting("late", entries[5].physical_offset), Noting("early", end)
    dispatcher = Dispatcher(small.store.consume_queues)
    lagging = Lagging([late, early], DispatchReader(small.log, ()), dispatcher)
    lagging.start_at(end)
    assert lagging.behind == {"late"}
    assert (lagging.late(), lagging.in_time()) == ((late,), (early,))
    small.send(5, dispatch=False)
    new = [entry_of(head, ()) for head in small.log.walk(end)]
    dispatcher.dispatch(new)
    assert (late.offsets, early.offsets) == ([], [entry.physical_offset for entry in new])
    lagging.catch_up(small.log.end_offset)
    assert late.offsets == [entry.physical_offset for entry in entries[5:] + new]
    assert early.offsets == [entry.physical_offset for entry in new]
    assert dispatcher.followers == (late, early) and not lagging.behind


def test_catch_up_can_be_stopped_between_two_slices() -> None:
    small, _ = a_store(SLICE_RECORDS * 3)
    late = Noting()
    dispatcher = Dispatcher(small.store.consume_queues)
    lagging = Lagging([late], DispatchReader(small.log, ()), dispatcher)
    lagging.start_at(small.log.end_offset)
    answers = iter((True, True, False))
    lagging.catch_up(small.log.end_offset, lambda: next(answers))
    assert 0 < late.covered_offset < small.log.end_offset
    assert lagging.behind == {"noting"} and dispatcher.followers == ()


def test_catch_up_takes_as_many_slices_as_it_needs() -> None:
    small, _ = a_store(SLICE_RECORDS * 2 + 3)
    late = Noting()
    dispatcher = Dispatcher(small.store.consume_queues)
    Lagging([late], DispatchReader(small.log, ()), dispatcher).catch_up(small.log.end_offset)
    assert len(late.offsets) == SLICE_RECORDS * 2 + 3
