"""The table of receives that wait for messages."""

import gc
import tracemalloc

import pytest

from actors.pulling.held_pulls import HELD_OF_PEER_MAX, origin_of
from actors.receipts.held_receives import HeldReceive, WaitTable, WokenReceives, interned
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import NotificationHeader, PopMessageHeader
from tests.support.peers import RecordingPeer

PEER = RecordingPeer()
COMMAND = RemotingCommand(RequestCode.POP_MESSAGE)


def receive(
    topic: str = "T",
    group: str = "g",
    queue_id: int = -1,
    *,
    peer: RecordingPeer = PEER,
    deadline_ms: float = 1_000.0,
    notifies: bool = False,
) -> HeldReceive:
    kind = NotificationHeader if notifies else PopMessageHeader
    header = kind(consumer_group=group, topic=topic, queue_id=queue_id)
    place = interned(header)
    return HeldReceive(peer, header, place, None, deadline_ms, 1, origin_of(COMMAND), None)


def table(*receives: HeldReceive) -> WaitTable:
    made = WaitTable()
    for each in receives:
        made.add(each)
    return made


def test_message_wakes_the_first_receive_of_each_group() -> None:
    first, second, other = receive(), receive(), receive(group="h")
    made = table(first, second, other)
    assert [*made.arrived(b"T", 0)] == [first, other]
    assert [*made.arrived(b"T", 0), *made.arrived(b"U", 0)] == [second]
    assert made.count == 0


def test_message_wakes_a_receive_of_its_queue_too() -> None:
    own, wrong = receive(queue_id=1), receive(queue_id=2)
    assert [*table(own, wrong).arrived(b"T", 1)] == [own]


def test_retry_wakes_a_receive_of_each_topic_of_its_group() -> None:
    one, two, other = receive(), receive("U"), receive(group="h")
    assert [*table(one, two, other).arrived(b"%RETRY%g", 0)] == [one, two]


def test_retry_wakes_one_receive_whatever_its_queue() -> None:
    """Receives of one queue take retries as well (apache/rocketmq #6681)."""
    one, two = receive(queue_id=3), receive(queue_id=4)
    made = table(one, two)
    assert [*made.arrived(b"%RETRY%g", 0)] == [one]
    assert [*made.next_after(("g", "T"), 3, with_retries=False)] == []
    assert [*made.next_after(("g", "T"), 3, with_retries=True)] == [two]


def test_notification_does_not_use_up_a_message() -> None:
    notice, first, second = receive(notifies=True), receive(), receive()
    assert [*table(notice, first, second).arrived(b"T", 0)] == [notice, first]


def test_receives_end_at_their_deadline() -> None:
    early, late = receive(deadline_ms=500), receive(deadline_ms=600)
    made = table(late, early)
    assert made.due(499, 10) == []
    assert made.due(600, 1) == [early]
    assert made.due(600, 10) == [late]


def test_receives_of_a_connection_are_forgotten_with_it() -> None:
    peer = RecordingPeer()
    mine, of_group, other = receive(peer=peer), receive(group="h", peer=peer), receive()
    made = table(mine, of_group, other)
    assert made.of_peer(peer.peer_id, "h") == [of_group]
    assert made.of_peer(peer.peer_id) == [mine]
    assert made.all() == [other]
    assert [*made.arrived(b"T", 0)] == []


def test_receives_of_closed_connections_are_forgotten_in_steps() -> None:
    """Twenty connections with 10,000 receives each took 0.7 s when they closed."""
    one, two = RecordingPeer(), RecordingPeer()
    made = table(*(receive(peer=peer) for peer in (one, two, PEER) for _ in range(5)))
    for peer in (one, two, RecordingPeer()):
        made.forget(peer.peer_id)
    counts = []
    for _ in range(6):
        made.forget_some(3)
        counts.append(made.count)
    assert counts == [12, 9, 6, 5, 5, 5]
    assert {each.peer.peer_id for each in made.all()} == {PEER.peer_id}


def test_receives_that_end_before_they_are_forgotten_do_not_matter() -> None:
    peer = RecordingPeer()
    made = table(receive(peer=peer))
    made.forget(peer.peer_id)
    assert len(made.due(1_000, 10)) == 1
    made.forget_some(3)
    made.add(receive())
    made.forget_some(3)
    assert made.count == 1


def test_connection_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.receipts.held_receives.HELD_OF_PEER_MAX", 1)
    made = table(receive())
    assert not made.has_room(PEER.peer_id) and made.has_room(PEER.peer_id + 1)
    assert HELD_OF_PEER_MAX == 10_000


def test_waiting_receive_is_small() -> None:
    made = WaitTable()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2_000):
        made.add(receive(deadline_ms=15_000.0 + number))
    used = (tracemalloc.get_traced_memory()[0] - before) / 2_000
    tracemalloc.stop()
    assert used < 700, used


def test_searches_take_one_receive_at_a_time() -> None:
    notices = [receive(notifies=True) for _ in range(5)]
    others = [receive(group=f"group-{number}") for number in range(5)]
    made, calls = table(*notices, *others), list[int]()
    woken = WokenReceives(made, lambda: calls.append(made.count))
    woken.arrived(b"T", 0)
    assert (calls, made.count) == ([10], 10)
    assert [woken.take() for _ in range(4)] == notices[:4] and made.count == 6
    woken.arrived(b"T", 0)  # again, before the first search is over
    assert [woken.take() for _ in range(7)] == [notices[4], *others, None]
    assert not woken
    made.add(others[0])
    woken.all_first()
    woken.add(notices[0])
    assert woken.drain() == [notices[0]] and made.count == 1
