"""Tests of actors/engine/system.py and of Future: requests, views and stops from outside."""

from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.engine.actor import Actor
from actors.engine.actor_address import (
    Future,
    GuardedFuture,
    MessageRefused,
    Reply,
    enter_loop,
    leave_loop,
)
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from storage.clock import SystemClock
from storage.files.disk import RealDisk
from tests.support.actors import Arrivals
from tests.support.cast import Boom, Diary, Do, Look, Recorder, Say, boom, look, said
from tests.support.clock import ManualClock


def future() -> Future[Any]:
    return Future(lambda arrived, timeout_s: None)


def test_an_ask_waits_for_its_answer(any_system: ActorSystem) -> None:
    any_system.start(ChildSpec("a", lambda _: Recorder()))
    assert look(any_system, "a", lambda actor: actor.name) == "a"


def test_an_ask_without_an_answer_times_out(any_system: ActorSystem) -> None:
    any_system.start(ChildSpec("a", lambda _: Recorder()))
    asked = any_system.ask(any_system.address("a"), lambda reply: Do(id))
    with pytest.raises(TimeoutError):
        asked.result(0.01)


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_an_ask_is_refused_if_its_actor_fails_on_it(any_system: ActorSystem, where: Any) -> None:
    any_system.start(ChildSpec("a", lambda _: Recorder(), where=where))
    with pytest.raises(MessageRefused, match="Boom: as asked"):
        look(any_system, "a", boom)


def test_an_ask_of_a_system_that_has_stopped_is_refused(any_system: ActorSystem) -> None:
    any_system.start(
        ChildSpec("a", lambda _: Recorder()), ChildSpec("b", lambda _: Recorder(), where="thread")
    )
    any_system.stop(10)
    for name in ("a", "b", "never started"):
        with pytest.raises(MessageRefused, match=f"{name} has stopped"):
            look(any_system, name, id)


def test_blocking_calls_are_refused_on_the_loop(real_system: ActorSystem) -> None:
    real_system.start(ChildSpec("a", lambda _: Recorder()), ChildSpec("b", lambda _: Recorder()))
    ref = look(real_system, "b", lambda actor: actor.actor_ref)
    forbidden = (
        lambda actor: look(actor.system, "b", id),
        lambda actor: actor.system.stop(),
        lambda actor: actor.system.start(ChildSpec("c", lambda _: Recorder())),
        lambda actor: ref.ask(Say("x")),
        lambda actor: ref.stop(),
    )
    for call in forbidden:

        def attempt(actor: Actor, call: Any = call) -> str:
            with pytest.raises(RuntimeError, match="must not wait") as caught:
                call(actor)
            return str(caught.value)

        assert "must not wait" in look(real_system, "a", attempt)


def test_an_actor_on_a_thread_may_ask_one_on_the_loop(real_system: ActorSystem) -> None:
    real_system.start(
        ChildSpec("a", lambda _: Recorder()), ChildSpec("t", lambda _: Recorder(), where="thread")
    )
    assert look(real_system, "t", lambda t: look(t.system, "a", lambda a: a.name)) == "a"


def test_only_the_first_answer_counts() -> None:
    answered = future()
    reply = Reply(answered)
    assert not answered.done
    reply(1)
    reply(2)
    reply.refuse("too late")
    assert answered.result(0) == 1
    refused = future()
    Reply(refused).refuse("gone")
    refused.resolve(1)
    with pytest.raises(MessageRefused, match="gone"):
        refused.result(0)


def test_an_arrived_answer_can_be_read_on_any_thread() -> None:
    answered, pykkas = future(), GuardedFuture[int]()
    answered.resolve(1)
    pykkas.set(2)
    enter_loop()
    try:
        assert answered.result(0) == 1
        assert pykkas.get() == 2
        with pytest.raises(RuntimeError):
            future().result(0)
        with pytest.raises(RuntimeError):
            GuardedFuture[int]().get(timeout=0)
    finally:
        leave_loop()


def test_an_address_is_the_same_every_time(any_system: ActorSystem) -> None:
    address = any_system.address("a")
    assert any_system.address("a") is address
    assert repr(address) == "<Address a>"
    assert not address.is_up
    any_system.start(ChildSpec("a", lambda _: Recorder()))
    assert address.is_up


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_inbox_depth_and_handled_count_are_visible(real_system: ActorSystem, where: Any) -> None:
    real_system.start(ChildSpec("a", lambda _: Recorder(), where=where))
    address = real_system.address("a")
    for number in range(7):
        address.tell(Say(number))
    said(real_system, "a")
    go_on, waiting = Event(), Event()

    def wait(_: Any) -> None:
        waiting.set()
        go_on.wait(10)

    address.tell(Do(wait))
    assert waiting.wait(10)
    for number in range(5):
        address.tell(Say(number))
    queue = address.own_queue()
    depth = real_system.loop.depths()[address] if queue is None else queue.qsize()
    assert address.handled >= 8
    go_on.set()
    assert depth == 5
    assert address.incarnation == 1
    assert address.is_up


def test_the_handled_count_counts_each_message_once_even_if_buffered(
    any_system: ActorSystem,
) -> None:
    address = any_system.address("a")
    thread = any_system.address("t")
    for number in range(3):
        address.tell(Say(number))
        thread.tell(Say(number))
    any_system.start(
        ChildSpec("a", lambda _: Recorder()), ChildSpec("t", lambda _: Recorder(), where="thread")
    )
    said(any_system, "a")
    said(any_system, "t")
    look(any_system, "a", lambda _: None)
    look(any_system, "t", lambda _: None)
    assert 4 <= address.handled <= 5  # the last look may not be counted yet
    assert 4 <= thread.handled <= 5


def test_a_second_stop_returns_the_result_of_the_first(any_system: ActorSystem) -> None:
    any_system.start(ChildSpec("a", lambda _: Recorder()))
    assert any_system.stop(10)
    assert any_system.stop(10)


def test_the_supervisors_own_failure_is_reported_and_the_stop_is_unclean() -> None:
    reasons = Arrivals()
    system = ActorSystem.real(disk=RealDisk(), on_give_up=reasons)
    system.start(ChildSpec("a", lambda _: Recorder()))
    system.supervisor.tell(3.5)
    assert "the supervisor failed" in reasons.take()
    assert system.stop(1) is False
    assert not system.live


def test_an_actor_sees_the_clock_and_the_disk_of_its_system() -> None:
    disk, clock = RealDisk(), ManualClock()
    system = ActorSystem.real(disk=disk, clock=clock)
    system.start(ChildSpec("a", lambda _: Recorder()))
    assert look(system, "a", lambda a: a.system.clock) is clock
    assert look(system, "a", lambda a: a.system.disk) is disk
    system.stop(10)
    other = ActorSystem.real(disk=disk)
    assert isinstance(other.clock, SystemClock)
    other.stop(10)


def test_a_message_whose_refusal_fails_does_not_stop_the_loop(
    real_system: ActorSystem,
) -> None:
    diary = Diary()

    def broken(_: str) -> None:
        raise Boom("the requester is broken")

    real_system.start(ChildSpec("a", lambda _: Recorder(diary)))

    def fail(actor: Recorder) -> None:
        actor.address.tell(Say("x", broken))
        actor.address.tell(Look(id, print))
        raise Boom("as asked")

    with capture_logs() as lines:
        real_system.address("a").tell(Do(fail))
        diary.wait_for(real_system, "a started", "a started")
    assert "refusal failed" in {line["event"] for line in lines}
