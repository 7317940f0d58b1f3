"""Tests of actors/tables/old_places.py: a topic that is deleted and made again."""

import pytest
from structlog.testing import capture_logs

from actors.tables.old_places import OldPlaces
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import pull_command
from tests.support.numbering import (
    begin,
    broker,
    commit,
    committed,
    delete_topic,
    pulled,
    send_many,
    with_100_consumed,
)


def test_no_group_skips_messages_of_a_recreated_topic() -> None:
    made = broker()
    with_100_consumed(made)
    delete_topic(made)
    assert committed(made) is None
    made.make_topic()
    assert send_many(made, 30) == [*range(30)]
    assert begin(made) == 0


def test_offsets_of_a_deleted_topic_stay_deleted_after_an_immediate_crash() -> None:
    made = broker()
    with_100_consumed(made)
    made.system.advance(10_000)
    delete_topic(made)
    made.restart_killed()
    assert committed(made) is None


@pytest.mark.parametrize("oneway", [True, False], ids=["one-way", "request"])
@pytest.mark.parametrize("new_count", [None, 0, 30, 150])
def test_a_stale_commit_does_not_restore_an_offset_of_a_deleted_topic(
    new_count: int | None, oneway: bool
) -> None:
    made = broker()
    with_100_consumed(made)
    delete_topic(made)
    if new_count is not None:
        made.make_topic()
        send_many(made, new_count)
    with capture_logs() as lines:
        commit(made, 100, oneway=oneway)
        commit(made, 105, oneway=oneway)
    assert committed(made) is None
    assert [each["offset"] for each in lines if each["log_level"] == "warning"] == [100]


@pytest.mark.parametrize("new_count", [0, 30, 100, 150])
def test_a_pull_at_a_stale_offset_is_corrected_to_the_first_message(new_count: int) -> None:
    made = broker()
    with_100_consumed(made)
    delete_topic(made)
    made.make_topic()
    send_many(made, new_count)
    code, _, following = pulled(made, 100)
    assert (code, following) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    commit(made, 100)  # a Java client goes on doing so for 10 s
    commit(made, 0)
    made.subscribe()
    if new_count:
        assert pulled(made, 0)[1] == [*range(min(32, new_count))]
        commit(made, min(32, new_count))
        assert committed(made) == {0: min(32, new_count)}


def test_offsets_of_a_member_that_joined_after_the_deletion_are_accepted() -> None:
    made = broker()
    with_100_consumed(made)
    delete_topic(made)
    made.make_topic()
    send_many(made, 150)
    made.client = made.new_client(2)
    made.system.advance(10)
    made.subscribe(client_id="another")
    commit(made, 120)
    assert committed(made) == {0: 120}


def test_a_held_pull_of_a_deleted_topic_is_answered_at_once() -> None:
    made = broker()
    with_100_consumed(made)
    answers: list[RemotingCommand] = []
    made.client.start(pull_command(100, hold_ms=15_000), answers.append)
    made.system.advance(100)
    assert not answers
    delete_topic(made)
    made.system.advance(100)
    assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST]


@pytest.mark.parametrize("new_count", [30, 150])
def test_a_member_without_commits_skips_nothing_of_a_recreated_topic(
    new_count: int,
) -> None:
    made = broker()
    made.make_topic()
    made.subscribe()
    send_many(made, 100)
    delete_topic(made)
    made.make_topic()
    send_many(made, new_count)
    assert pulled(made, 100)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert pulled(made, 0)[1] == [*range(30 if new_count == 30 else 32)]
    commit(made, 30)
    assert committed(made) == {0: 30}


@pytest.mark.parametrize("new_count", [30, 150])
def test_each_broadcasting_member_starts_at_the_first_message(new_count: int) -> None:
    made = broker()
    made.make_topic()
    clients = [made.client, made.new_client(2), made.new_client(3)]
    for number, made.client in enumerate(clients):
        made.subscribe(model="BROADCASTING", client_id=f"client-{number}")
    send_many(made, 100)
    delete_topic(made)
    made.make_topic()
    send_many(made, new_count)
    for made.client in clients:
        assert pulled(made, 100)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 0)
        assert pulled(made, 0)[1] == [*range(30 if new_count == 30 else 32)]
        assert pulled(made, 25)[1], "this place is one in the new queue"


@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_a_member_that_reconnects_after_the_deletion_counts_as_stale(model: str) -> None:
    made = broker()
    made.make_topic()
    made.subscribe(model=model)
    send_many(made, 100)
    delete_topic(made)
    made.make_topic()
    made.client = made.new_client(2)
    made.system.advance(10)
    made.subscribe(model=model)
    send_many(made, 150)
    assert pulled(made, 100)[::2] == (ResponseCode.PULL_OFFSET_MOVED, 0)


def test_a_deletion_sets_a_limited_number_of_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of 65,536 queues took 45 ms for each of its groups."""
    monkeypatch.setattr("actors.tables.old_places.MARKS_MAX", 5)
    places = OldPlaces()
    for group, count in (("one", 3), ("two", 2), ("three", 0)):
        assert len([*places.noting("T", group, range(3), {}, 1.0)]) == count, "a step for each"
    assert [(group, queue) for _, group, queue in places.marks] == [
        *(("one", 0), ("one", 1), ("one", 2)),
        *(("two", 0), ("two", 1)),
    ]
    assert len([*places.noting("U", "one", [0], {0: 7}, 2.0)]) == 1
    assert ("U", "one", 0) in places.marks and len(places.marks) == 5
