"""Tests of actors/engine/timer.py: due messages."""

from typing import Any

from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import ThreadMail
from actors.engine.timer import CANCELLED_MAX, TimerHandle, Timers


class Told:
    """An address with messages that a test can read."""

    def __init__(self) -> None:
        self.mail = ThreadMail()
        self.address = ActorAddress("timed", self.mail)
        self.mail.up()

    def timer(self, message: Any, due_ms: float, interval_ms: float = 0) -> TimerHandle:
        return TimerHandle(self.address, message, due_ms, interval_ms)

    def all(self) -> list[Any]:
        return [self.mail.get_nowait()[1] for _ in range(self.mail.qsize())]


def test_timers_fire_in_due_order() -> None:
    told, timers = Told(), Timers()
    for message, due_ms in (("c", 30), ("a", 10), ("b", 10.5), ("later", 99)):
        timers.arm(told.timer(message, due_ms))
    assert timers.next_due_ms() == 10
    assert timers.tell_due(30) == 3
    assert told.all() == ["a", "b", "c"]
    assert timers.next_due_ms() == 99


def test_timers_due_together_fire_in_the_order_of_arming() -> None:
    told, timers = Told(), Timers()
    for message in "abcd":
        timers.arm(told.timer(message, 5))
    timers.tell_due(5)
    assert told.all() == ["a", "b", "c", "d"]


def test_a_cancelled_timer_does_not_fire() -> None:
    told, timers = Told(), Timers()
    first, second = told.timer("first", 10), told.timer("second", 20)
    timers.arm(first)
    timers.arm(second)
    first.cancel()
    first.cancel()
    assert timers.next_due_ms() == 20
    assert timers.tell_due(100) == 1
    assert told.all() == ["second"]
    assert first.message is None


def test_a_timer_cancelled_before_it_reaches_the_heap_never_gets_there() -> None:
    told, timers = Told(), Timers()
    timer = told.timer("x", 10)
    timer.cancel()
    timers.arm(timer)
    assert len(timers) == 0


def test_a_repeated_timer_keeps_its_period_and_skips_missed_ticks() -> None:
    told, timers = Told(), Timers()
    timers.arm(told.timer("tick", 10, interval_ms=10))
    timers.tell_due(11)
    assert timers.next_due_ms() == 20
    timers.tell_due(57)
    assert told.all() == ["tick", "tick"]
    assert timers.next_due_ms() == 60


def test_a_timer_ends_with_the_incarnation_that_set_it() -> None:
    told, timers = Told(), Timers()
    timers.arm(told.timer("old", 10, interval_ms=10))
    told.address.incarnation += 1
    timers.tell_due(10)
    assert told.all() == []
    assert timers.next_due_ms() is None


def test_a_timer_of_a_stopped_actor_does_not_fire() -> None:
    told, timers = Told(), Timers()
    timers.arm(told.timer("x", 10))
    address = ActorAddress("down", told.mail)
    told.mail.down()
    assert timers.tell_due(10) == 0
    assert not address.is_up


def test_many_cancelled_timers_do_not_stay_in_the_heap_until_they_are_due() -> None:
    told, timers = Told(), Timers()
    timers.arm(told.timer("kept", 1e9))
    for _ in range(20 * CANCELLED_MAX):
        timer = told.timer("idle", 120_000)
        timers.arm(timer)
        timer.cancel()
    assert len(timers) < 3 * CANCELLED_MAX
    timers.tell_due(1e9)
    assert told.all() == ["kept"]
