"""Tests of actors/consumers/queue_locks.py: locks, renewals and limits."""

import pytest

from actors.consumers import queue_locks
from actors.consumers.queue_locks import LOCK_LIVES_MS, QueueLocks
from protocol.bodies import MessageQueue

Q0, Q1 = (MessageQueue("T", "broker-a", number) for number in range(2))


def test_a_queue_belongs_to_one_client_at_a_time() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "a", [Q0], 0) == [Q0]
    assert locks.lock("G", "b", [Q0, Q1, Q1], 0) == [Q1]
    assert locks.lock("G", "a", [Q0], 0) == [Q0], "its own it may have again"
    assert locks.lock("H", "b", [Q0], 0) == [Q0], "other groups do not care"


def test_a_lock_lives_for_a_minute_after_its_renewal() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [Q0], 0)
    locks.lock("G", "a", [Q0], 20_000)
    assert locks.lock("G", "b", [Q0], 20_000 + LOCK_LIVES_MS) == []
    assert locks.lock("G", "b", [Q0], 20_001 + LOCK_LIVES_MS) == [Q0]


def test_only_the_holder_can_unlock_a_queue() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [Q0], 0)
    locks.unlock("G", "b", [Q0, Q1])
    locks.unlock("unknown", "b", [Q0])
    assert locks.lock("G", "b", [Q0], 0) == []
    locks.unlock("G", "a", [Q0])
    assert locks.lock("G", "b", [Q0], 0) == [Q0]


def test_locks_that_are_not_renewed_expire() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", [Q0], 0)
    locks.lock("G", "a", [Q1], LOCK_LIVES_MS)
    locks.expire(LOCK_LIVES_MS + 1)
    assert locks.lock("G", "b", [Q0, Q1], LOCK_LIVES_MS + 1) == [Q0]


def test_the_number_of_locks_is_limited_and_expired_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 3)
    locks = QueueLocks()
    many = [MessageQueue("T", "broker-a", number) for number in range(5)]
    assert locks.lock("G", "a", many, 0) == many[:3]
    assert locks.is_full
    assert locks.lock("H", "b", [Q0], 1000) == []
    assert locks.lock("G", "a", [Q0, Q1], 50_000) == [Q0, Q1], "renewed all the same"
    assert locks.lock("H", "b", [Q0, Q1], LOCK_LIVES_MS + 1) == [Q0], "one has expired"
    locks.unlock("G", "a", [Q0])
    assert locks.lock("H", "b", [Q1], LOCK_LIVES_MS + 2) == [Q1], "and one is given back"
    assert locks.lock("G", "a", [Q0], LOCK_LIVES_MS + 3) == []


def test_groups_without_locks_are_removed() -> None:
    locks = QueueLocks()
    for number in range(10):
        locks.lock(f"made-up-{number}", "a", [], 0)
    assert not locks._locks
