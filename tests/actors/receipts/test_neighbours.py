"""Groups in which some members pull and others receive."""

from collections.abc import Iterator

import pytest

from actors.engine.interfaces import SnapshotRef
from actors.pulling.held_pulls import HoldTable
from actors.receipts.neighbours import PULLED_MS, RECEIVED_MS, Neighbours
from actors.statistics.counts import GroupCounts, PullStats
from actors.tables.consumer_views import ConsumerView, Member
from tests.support.peers import RecordingPeer


class Bench:
    """A group `g` with two members."""

    def __init__(self) -> None:
        self.peers = RecordingPeer(), RecordingPeer()
        members = {each.peer_id: Member(each, each.remote, 0, 407, 0.0) for each in self.peers}
        view = ConsumerView("CLUSTERING", {}, members)
        self.stats, self.held = PullStats(), HoldTable()
        self.neighbours = Neighbours(SnapshotRef({"g": view}), self.held, self.stats)

    def receive(self, number: int, now_ms: float) -> None:
        self.neighbours.note_receive("g", self.peers[number].peer_id, now_ms)

    def pull(self, offset: int) -> None:
        self.stats.by_group.setdefault(("T", "g"), GroupCounts()).pulled[0] = offset


def test_group_of_receivers_has_all_queues() -> None:
    bench = Bench()
    bench.receive(0, 0)
    bench.receive(1, 0)
    bench.pull(5)
    assert not bench.neighbours.has_pullers("g")
    assert not bench.neighbours.is_pulled("g", "T", 0)
    assert not bench.neighbours.is_pulled("unknown", "T", 0)


def test_queue_that_moves_by_pulls_belongs_to_them_for_a_while() -> None:
    bench = Bench()
    bench.pull(5)
    bench.receive(0, 1_000)
    assert not bench.neighbours.is_pulled("g", "T", 0), "the time of that pull is unknown"
    bench.pull(6)
    assert bench.neighbours.is_pulled("g", "T", 0)
    assert not bench.neighbours.is_pulled("g", "T", 1)
    bench.receive(0, 1_000 + PULLED_MS)
    assert not bench.neighbours.is_pulled("g", "T", 0)


def test_client_that_has_not_received_for_a_minute_may_pull() -> None:
    bench = Bench()
    bench.receive(0, 0)
    bench.receive(1, 0)
    bench.receive(0, RECEIVED_MS)
    bench.neighbours.forget(RECEIVED_MS)
    assert bench.neighbours.has_pullers("g")


def test_queue_that_moves_by_receives_does_not_belong_to_pulls() -> None:
    bench = Bench()
    bench.receive(0, 1_000)
    assert not bench.neighbours.is_pulled("g", "T", 0)
    bench.pull(7)
    bench.neighbours.note_handed_out("T", "g", 0, 7)
    assert not bench.neighbours.is_pulled("g", "T", 0)


def test_members_are_looked_at_once_for_all_queues() -> None:
    """A receive of 512 queues looked at each of a thousand members 512 times: 30 ms."""

    class Counted(dict[int, Member]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            Counted.looks += 1
            return super().__iter__()

    bench = Bench()
    members = Counted({each.peer_id: Member(each, "c", 0, 407, 0.0) for each in bench.peers})
    view = ConsumerView("CLUSTERING", {}, members)
    neighbours = Neighbours(SnapshotRef({"g": view}), bench.held, bench.stats)
    for number, expected in ((0, True), (1, False)):
        neighbours.note_receive("g", bench.peers[number].peer_id, 0)
        assert [neighbours.has_pullers("g") for _ in range(100)] == [expected] * 100
    assert Counted.looks <= 2
    neighbours.forget(RECEIVED_MS)
    assert neighbours.has_pullers("g")


def test_pulls_of_a_limited_number_of_queues_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive of each topic by each group had 2 KiB kept as long as the group received."""
    monkeypatch.setattr("actors.receipts.neighbours.PULLED_MAX", 1, raising=False)
    bench = Bench()
    bench.pull(5)
    bench.receive(0, 1_000)
    for queue_id in range(3):
        assert not bench.neighbours.is_pulled("g", "T", queue_id)
    assert len(bench.neighbours._pulled) == 1
    bench.pull(6)
    assert bench.neighbours.is_pulled("g", "T", 0)
