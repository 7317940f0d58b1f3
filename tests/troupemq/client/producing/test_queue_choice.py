"""Queue choices, and how they learn from the results of sends."""

from collections import Counter

import pytest

from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.queue_choice import (
    FaultAvoiding,
    LearningChoice,
    LowestLatency,
    RoundRobin,
    by_hash_of,
)

MESSAGE = Message("T", b"x")
QUEUES = [MessageQueue("T", name, queue_id) for name in "abc" for queue_id in range(2)]


class Clock:
    """Seconds that a test winds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def brokers(choice: LearningChoice, count: int = 12) -> set[str]:
    return {choice(QUEUES, MESSAGE).broker_name for _ in range(count)}


def test_each_queue_is_chosen_in_turn() -> None:
    choice = RoundRobin()
    assert Counter(choice(QUEUES, MESSAGE) for _ in range(18)) == dict.fromkeys(QUEUES, 3)


@pytest.mark.parametrize(
    "value, queue_count, index",
    [
        ("order-1", 8, 6),
        ("order-2", 8, 5),
        ("polygenelubricants", 5, 3),  # its hashCode is Integer.MIN_VALUE
        ("Größe", 7, 4),
        (4711, 8, 7),
        (-3, 8, 3),
        (1 << 31, 7, 2),  # a Long: its hashCode is Integer.MIN_VALUE
        (-5_000_000_000, 7, 3),
    ],
)
def test_a_key_selects_the_java_clients_queue(
    value: str | int, queue_count: int, index: int
) -> None:
    queues = [MessageQueue("T", "a", queue_id) for queue_id in range(queue_count)]
    # What a JVM says: Math.abs(value.hashCode() % queue_count).
    assert by_hash_of(value)(queues, MESSAGE).queue_id == index


def test_slow_brokers_are_excluded_for_the_tables_duration() -> None:
    clock = Clock()
    choice = FaultAvoiding(clock_s=clock)
    choice.learn("a", 549, failed=False)
    assert brokers(choice) == {"a", "b", "c"}
    choice.learn("a", 550, failed=False)
    assert brokers(choice) == {"b", "c"}
    clock.now_s += 29.9
    assert brokers(choice) == {"b", "c"}
    clock.now_s += 0.1
    assert brokers(choice) == {"a", "b", "c"}


def test_a_failure_counts_as_thirty_seconds() -> None:
    clock = Clock()
    choice = FaultAvoiding(clock_s=clock)
    choice.learn("b", 1, failed=True)
    clock.now_s += 599
    assert brokers(choice) == {"a", "c"}
    clock.now_s += 1
    assert brokers(choice) == {"a", "b", "c"}


def test_a_recovered_broker_is_used_at_once() -> None:
    choice = FaultAvoiding(clock_s=Clock())
    choice.learn("b", 1, failed=True)
    choice.learn("b", 1, failed=False)
    assert brokers(choice) == {"a", "b", "c"}


def test_if_all_brokers_are_faulty_the_better_half_is_used() -> None:
    choice = FaultAvoiding(clock_s=Clock())
    for name, latency_ms in (("a", 3000), ("b", 600), ("c", 2000)):
        choice.learn(name, latency_ms, failed=False)
    assert brokers(choice) == {"b"}
    four = [*QUEUES, MessageQueue("T", "d", 0)]
    choice.learn("d", 700, failed=False)
    assert {choice(four, MESSAGE).broker_name for _ in range(12)} == {"b", "d"}


def test_the_fastest_broker_is_preferred() -> None:
    choice = LowestLatency(clock_s=Clock())
    assert [choice(QUEUES, MESSAGE).broker_name for _ in range(3)] == ["a", "b", "c"]
    for name, latency_ms in (("a", 5.0), ("b", 2.0), ("c", 9.0)):
        choice.learn(name, latency_ms, failed=False)
    assert brokers(choice) == {"b"}
    assert {choice(QUEUES, MESSAGE).queue_id for _ in range(4)} == {0, 1}
    choice.learn("b", 30.0, failed=False)  # a mean of 7.6
    assert brokers(choice) == {"a"}


def test_slower_brokers_are_probed_with_single_messages() -> None:
    clock = Clock()
    choice = LowestLatency(again_s=10, clock_s=clock)
    for name, latency_ms in (("a", 5.0), ("b", 2.0), ("c", 9.0)):
        choice.learn(name, latency_ms, failed=False)
    clock.now_s += 9
    assert brokers(choice) == {"b"}
    clock.now_s += 1
    assert Counter(choice(QUEUES, MESSAGE).broker_name for _ in range(9)) == {
        "a": 1,
        "b": 7,
        "c": 1,
    }


def test_a_failed_broker_is_last_until_it_recovers() -> None:
    clock = Clock()
    choice = LowestLatency(again_s=10, clock_s=clock)
    for name, failed in (("a", True), ("b", False), ("c", False)):
        choice.learn(name, 1.0 if failed else 50.0, failed)
    assert "a" not in brokers(choice)
    assert choice(QUEUES[:2], MESSAGE).broker_name == "a"  # there is no other
    clock.now_s += 10
    assert "a" in brokers(choice, 3)
    choice.learn("a", 1.0, failed=False)
    assert brokers(choice) == {"a"}
