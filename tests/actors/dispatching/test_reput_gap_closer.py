"""Followers change owners: each has exactly one, and is fed without a gap, despite failures."""

from collections.abc import Sequence

import pytest

from actors.dispatching.reput import GapCloser
from storage.dispatching.dispatch import Dispatcher, entry_of
from storage.dispatching.followers import DispatchReader, Lagging
from storage.errors import StoreError
from storage.queues.dispatch_entry import Dispatched, DispatchEntry
from tests.support.store import SmallStore
from troupemq.testing.fake_disk import FakeDisk

COUNT = 40


class Refusing:
    """A follower that may be told to refuse."""

    def __init__(self, name: str, covered_offset: int = 0) -> None:
        self.name = name
        self.covered_offset = covered_offset
        self.offsets: list[int] = []
        self.refuses = False

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        if self.refuses:
            raise StoreError("as asked")
        new = [
            entry.physical_offset
            for entry in entries
            if entry.physical_offset >= self.covered_offset
        ]
        self.offsets += new
        self.covered_offset = max(self.covered_offset, entries[-1].end_offset)

    def write_out(self) -> None:
        """Has nothing in memory."""

    def trim_before(self, min_physical: int) -> list[str]:
        return []


class Made:
    """A store with messages, two followers that know nothing, and Reput's part of them."""

    def __init__(self, *, behind: bool) -> None:
        self.small = SmallStore(FakeDisk())
        self.small.send(COUNT)
        self.entries = self.new_entries(0)
        self.one, self.two = Refusing("one"), Refusing("two")
        self.dispatcher = Dispatcher(self.small.store.consume_queues)
        self.dispatcher.dispatched_offset = self.small.log.end_offset
        reader = DispatchReader(self.small.log, ())
        self.lagging = Lagging([self.one, self.two], reader, self.dispatcher)
        if behind:
            self.lagging.start_at(self.small.log.end_offset)
        self.gap = GapCloser(self.lagging, self.dispatcher)
        self.gap.begin()

    def new_entries(self, start: int) -> list[DispatchEntry]:
        return [entry_of(head, ()) for head in self.small.log.walk(start)]

    def append(self, count: int = 5) -> list[DispatchEntry]:
        start = self.small.log.end_offset
        self.small.send(count, dispatch=False)
        self.entries += (new := self.new_entries(start))
        return new

    def close_gap(self) -> int:
        steps = 0
        while self.gap:
            self.gap.step()
            steps += 1
        return steps


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.dispatching.reput.SLICE_RECORDS", 8)


def offsets(entries: Sequence[DispatchEntry]) -> list[int]:
    return [entry.physical_offset for entry in entries]


def test_a_lagging_target_is_not_fed_by_reput() -> None:
    made = Made(behind=True)
    assert not made.gap and not made.gap.owns(made.one)
    made.gap.adopt(made.one, made.small.log.end_offset)
    assert not made.dispatcher.followers
    made.lagging.behind.discard("one")
    made.gap.adopt(made.one, made.small.log.end_offset)
    assert made.gap.owns(made.one)
    assert [*made.dispatcher.followers] == [made.one]


def test_a_gap_is_closed_in_steps_while_messages_come() -> None:
    made = Made(behind=False)
    assert not made.dispatcher.followers
    made.gap.step()
    made.dispatcher.dispatch(made.append())
    assert made.one.offsets == offsets(made.entries[:8])
    assert made.close_gap() >= COUNT // 8
    made.dispatcher.dispatch(made.append())
    assert made.one.offsets == made.two.offsets == offsets(made.entries)


def test_a_target_that_is_ahead_waits_for_the_other() -> None:
    made = Made(behind=False)
    made.two.dispatch(made.entries[:20])
    made.gap.begin()
    made.close_gap()
    assert made.one.offsets == made.two.offsets == offsets(made.entries)


def test_a_refusing_target_is_skipped_and_fed_later() -> None:
    made = Made(behind=False)
    made.close_gap()
    made.one.refuses = True
    end = made.append()[-1]
    with pytest.raises(StoreError, match="as asked"):
        made.dispatcher.dispatch(made.entries[COUNT:])
    made.gap.part_with_those_behind(made.dispatcher.dispatched_offset)
    assert made.dispatcher.dispatched_offset == end.end_offset
    assert [*made.dispatcher.followers] == [made.two]
    made.one.refuses = False
    made.dispatcher.dispatch(made.append())
    assert made.two.offsets == offsets(made.entries) != made.one.offsets
    made.close_gap()
    assert made.one.offsets == offsets(made.entries)


def test_a_failed_step_can_be_retried() -> None:
    made = Made(behind=False)
    made.two.refuses = True
    with pytest.raises(StoreError):
        made.gap.step()
    made.two.refuses = False
    made.close_gap()
    assert made.one.offsets == made.two.offsets == offsets(made.entries)


def test_a_target_handed_over_is_not_fed_until_it_is_returned() -> None:
    made = Made(behind=False)
    made.close_gap()
    made.gap.give_away(made.one)
    assert made.lagging.late() == (made.one,) and not made.gap.owns(made.one)
    made.dispatcher.dispatch(made.append())
    assert made.one.offsets != made.two.offsets
    made.lagging.behind.discard("one")
    made.gap.adopt(made.one, made.entries[COUNT].physical_offset)
    made.close_gap()
    assert made.one.offsets == made.two.offsets == offsets(made.entries)
