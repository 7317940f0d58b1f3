"""Tests of actors/tables/old_places.py: a broker starts without its newest messages."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actors.tables import old_places
from actors.tables.old_places import WATCH_MS, FirstPulls
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import SimulatedBroker
from tests.support.numbering import broker, commit, committed, pulled, send_many

MISSING = {"topic": "no-such-topic", "timestamp": "1"}


@contextmanager
def with_50_lost(new_count: int, model: str = "CLUSTERING") -> Iterator[SimulatedBroker]:
    """Offset 90 is committed, messages 100 to 149 are pulled, and lost with the power.

    A group that broadcasts commits nothing.
    """
    made = broker()
    made.make_topic()
    made.subscribe(model=model)
    send_many(made, 100)
    if model == "CLUSTERING":
        commit(made, 90)
    made.system.advance(11_000)
    left = made.disk.killed()  # type: ignore[attr-defined]
    send_many(made, 50)
    assert pulled(made, 140)[2] == 150
    made.crash()
    made.disk = left
    made.start()
    made.subscribe(model=model)
    assert send_many(made, new_count) == [*range(100, 100 + new_count)]
    yield made


@pytest.mark.parametrize("new_count", [0, 10, 50, 150])
def test_a_member_skips_no_message_that_reuses_a_lost_offset(new_count: int) -> None:
    with with_50_lost(new_count) as made:
        commit(made, 150)
        assert committed(made) == {0: 90}
        assert pulled(made, 150)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 90)
        assert pulled(made, 90)[1] == [*range(90, min(100 + new_count, 122))]
        commit(made, 100)
        assert committed(made) == {0: 100}


@pytest.mark.parametrize("new_count", [0, 10, 50, 150])
def test_each_broadcasting_member_continues_behind_the_lost_messages(new_count: int) -> None:
    with with_50_lost(new_count, "BROADCASTING") as made:
        for number in range(2):
            made.client = made.new_client(2 + number)
            made.subscribe(model="BROADCASTING", client_id=f"client-{number}")
            assert pulled(made, 150)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 100)
            assert pulled(made, 100)[1] == [*range(100, min(100 + new_count, 132))]


def test_broadcasting_member_begins_at_the_offset_that_it_has_asked_for() -> None:
    with with_50_lost(150, "BROADCASTING") as made:
        assert made.offset(RequestCode.GET_MAX_OFFSET) == 250
        send_many(made, 5)
        assert pulled(made, 250)[1] == [*range(250, 255)]


def test_questions_about_missing_queues_take_no_room_from_those_about_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name of any length was kept for two minutes, for 200,000 questions."""
    monkeypatch.setattr(old_places, "SEEN_MAX", 2)
    with with_50_lost(150, "BROADCASTING") as made:
        for number in range(3):
            for code in (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
                made.ask(RemotingCommand(code, {**MISSING, "queueId": str(number)}))
        assert made.offset(RequestCode.GET_MAX_OFFSET) == 250
        send_many(made, 5)
        assert pulled(made, 250)[1] == [*range(250, 255)]


def test_broadcasting_member_skips_nothing_of_a_queue_that_lost_everything() -> None:
    made = broker()
    made.make_topic()
    made.make_topic("Other")
    made.send(topic="Other")
    made.system.advance(11_000)
    left = made.disk.killed()  # type: ignore[attr-defined]
    made.crash()
    made.disk = left
    made.start()
    send_many(made, 30)
    made.subscribe(model="BROADCASTING")
    assert pulled(made, 20)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert pulled(made, 0)[1] == [*range(30)]
    made.client = made.new_client(2)
    made.subscribe(model="BROADCASTING")
    assert pulled(made, 20)[1] == [*range(20, 30)], "it has pulled over its former connection"


@pytest.mark.parametrize("offset", [None, 90])
def test_pull_behind_messages_that_expired_since_the_start_is_not_moved(offset: int | None) -> None:
    """The answer named the same offset again and again."""
    with with_50_lost(150, "BROADCASTING" if offset is None else "CLUSTERING") as made:
        queue = made.broker.store.consume_queues.get("Topic", 0)
        assert queue is not None
        queue.min_offset = 250
        assert pulled(made, 250) == (ResponseCode.PULL_NOT_FOUND, [], 250)


def test_group_without_an_offset_continues_at_the_end_of_the_start() -> None:
    with with_50_lost(10, "BROADCASTING") as made:
        queue = made.broker.store.consume_queues.get("Topic", 0)
        assert queue is not None
        queue.min_offset = 5
        made.subscribe(group="others")
        pull = made.pull(150, consumer_group="others")
        assert (pull.fields or {})["nextBeginOffset"] == "100"


def test_offsets_queried_or_pulled_since_the_start_are_accepted() -> None:
    with with_50_lost(150) as made:
        commit(made, 200, oneway=False, group="others")  # an order
        made.subscribe(group="others")
        answer = made.pull(200, consumer_group="others")
        assert answer.code == 0
        assert pulled(made, 95)[1]
        assert pulled(made, 150)[1]
        commit(made, 182)
        assert committed(made) == {0: 182}


def test_first_pulls_are_checked_for_two_minutes() -> None:
    with with_50_lost(150) as made:
        made.system.advance(WATCH_MS)
        made.subscribe()
        assert pulled(made, 150)[1]


def test_a_pull_before_the_heartbeat_skips_no_message() -> None:
    with with_50_lost(150) as made:
        made.client = made.new_client(2)
        assert pulled(made, 150)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 90)


def test_a_client_that_pulls_before_its_heartbeat_gets_no_message_twice() -> None:
    """Java's lite pull consumer sends heartbeats every 30 s, also after a restart of the broker."""
    made = broker()
    made.make_topic()
    made.subscribe()
    send_many(made, 100)
    commit(made, 90)
    made.system.advance(11_000)
    made.restart_killed()
    assert pulled(made, 90)[2] == 100
    send_many(made, 50)
    assert pulled(made, 100)[2] == 132
    commit(made, 132)
    made.subscribe()
    assert committed(made) == {0: 132}
    assert pulled(made, 132)[::2] == (0, 150)


def test_a_limited_number_of_pulls_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull before the first heartbeat may name any group."""
    monkeypatch.setattr("actors.tables.old_places.SEEN_MAX", 2)
    pulls = FirstPulls({("T", 0): 10}, 0.0)
    for number in range(3):
        pulls.note("T", f"g{number}", 0)
    pulls.note("Other", "g", 0)
    assert [pulls.end_passed("T", f"g{each}", 0, 11) for each in range(3)] == [None, None, 10]
