"""Tests of actors/engine/supervisor.py: order, restarts, groups, limits and deadlines."""

from threading import Event
from typing import Any

import pytest

from actors.engine import supervisor
from actors.engine.interfaces import System
from actors.engine.supervisor import BACK_OFF_FIRST_MS, FAILURES_MAX, ChildSpec
from actors.engine.system import ActorSystem, StartFailed
from storage.files.disk import RealDisk
from tests.support.actors import Arrivals
from tests.support.cast import Boom, Diary, Do, Recorder, Say, boom, look, said
from troupemq.testing.simulation import SimulatedSystem


def child(name: str, diary: Diary, **options: Any) -> ChildSpec:
    return ChildSpec(name, lambda _: Recorder(diary), **options)


class Starting(Recorder):
    """Fails to start as often as the list says."""

    def __init__(self, diary: Diary, failures: list[BaseException]) -> None:
        super().__init__(diary)
        self._failures = failures

    def on_start(self) -> None:
        if self._failures:
            raise self._failures.pop()
        super().on_start()


def test_children_start_in_order_and_stop_in_reverse(any_system: ActorSystem) -> None:
    diary = Diary()
    any_system.start(
        child("a", diary), child("b", diary, where="thread"), child("c", diary, where="loop")
    )
    assert diary.events.all() == ["a started", "b started", "c started"]
    assert any_system.stop(10)
    events = diary.events.all()
    assert [event for event in events if event.endswith("stopped")] == [
        "c stopped",
        "b stopped",
        "a stopped",
    ]
    assert sorted(event for event in events if event.endswith("drained")) == [
        "a drained",
        "b drained",
        "c drained",
    ]


def test_on_the_loop_all_actors_drain_in_reverse_before_any_stops(
    real_system: ActorSystem,
) -> None:
    diary = Diary()
    real_system.start(child("a", diary), child("b", diary))
    real_system.stop(10)
    assert diary.events.all()[2:] == ["b drained", "a drained", "b stopped", "a stopped"]


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_failed_child_is_restarted_with_clean_state_under_its_old_address(
    any_system: ActorSystem, where: Any
) -> None:
    diary = Diary()
    any_system.start(child("a", diary, where=where))
    address = any_system.address("a")
    address.tell(Say("forgotten"))
    address.tell(Do(boom))
    diary.wait_for(any_system, "a started", "a started")
    address.tell(Say("new"))
    assert said(any_system, "a") == ["new"]
    assert any_system.address("a") is address


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_the_current_message_and_all_pending_ones_are_refused(
    any_system: ActorSystem, where: Any
) -> None:
    diary = Diary()
    any_system.start(child("a", diary, where=where))
    address = any_system.address("a")
    refused = Arrivals()

    def fail_before_others(actor: Recorder) -> None:
        for _ in range(3):
            actor.address.tell(Say("waiting", refused))
        raise Boom("in the middle")

    address.tell(Do(fail_before_others))
    diary.wait_for(any_system, "a started", "a started")
    assert refused.all() == ["Boom: in the middle"] * 3
    assert said(any_system, "a") == []


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_messages_sent_while_a_child_is_down_reach_its_successor_in_order(
    simulated_system: SimulatedSystem, where: Any
) -> None:
    diary = Diary()
    simulated_system.start(child("a", diary, where=where))
    address = simulated_system.address("a")
    address.tell(Do(boom))
    simulated_system.drain()
    assert not address.is_up
    for number in range(5):
        address.tell(Say(number))
    simulated_system.advance(BACK_OFF_FIRST_MS)
    address.tell(Say(5))
    assert said(simulated_system, "a") == [0, 1, 2, 3, 4, 5]


def test_messages_sent_before_a_childs_first_start_are_delivered(any_system: ActorSystem) -> None:
    for name in ("on loop", "on thread"):
        for number in range(5):
            any_system.address(name).tell(Say(number))
    any_system.start(
        child("on loop", Diary()),
        child("on thread", Diary(), where="thread"),
    )
    assert said(any_system, "on loop") == [0, 1, 2, 3, 4]
    assert said(any_system, "on thread") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_failure_in_on_start_is_retried(any_system: ActorSystem, where: Any) -> None:
    diary = Diary()
    failures: list[BaseException] = [Boom("once"), Boom("twice")]
    any_system.start(ChildSpec("a", lambda _: Starting(diary, failures), where=where))
    assert diary.events.all() == ["a started"]
    assert look(any_system, "a", lambda actor: actor.incarnation) == 3


def test_a_child_with_a_failing_factory_is_retried_too(any_system: ActorSystem) -> None:
    failures = [Boom("no settings"), Boom("no settings")]

    def make(_: System) -> Recorder:
        if failures:
            raise failures.pop()
        return Recorder()

    any_system.start(ChildSpec("a", make))
    assert look(any_system, "a", lambda actor: actor.incarnation) == 3


def test_each_restart_delay_doubles(simulated_system: SimulatedSystem) -> None:
    diary = Diary()
    simulated_system.start(child("a", diary))
    waited = []
    for _ in range(FAILURES_MAX):
        simulated_system.address("a").tell(Do(boom))
        simulated_system.drain()
        began_ms = simulated_system.clock.monotonic_ms()
        simulated_system.run_until(lambda: simulated_system.address("a").is_up)
        waited.append(simulated_system.clock.monotonic_ms() - began_ms)
    assert waited == [10, 20, 40, 80, 160]


def test_the_restart_delay_is_reset_after_a_quiet_period(simulated_system: SimulatedSystem) -> None:
    simulated_system.start(child("a", Diary()))
    for _ in range(3 * FAILURES_MAX):
        simulated_system.address("a").tell(Do(boom))
        simulated_system.drain()
        simulated_system.advance(BACK_OFF_FIRST_MS)
        assert simulated_system.address("a").is_up
        simulated_system.advance(10_001)
    assert simulated_system.gave_up is None


def test_the_supervisor_gives_up_after_too_many_failures() -> None:
    reasons: list[str] = []
    system = SimulatedSystem(1, RealDisk(), on_give_up=reasons.append)
    diary = Diary()
    system.start(child("a", diary), child("b", diary))
    for number in range(FAILURES_MAX + 1):
        system.address("ab"[number % 2]).tell(Do(boom))
        system.advance(1000)
    assert reasons == ["Boom: as asked"]
    assert system.gave_up == "Boom: as asked"
    system.advance(60_000)
    assert len([event for event in diary.events.all() if "started" in event]) == 2 + FAILURES_MAX
    system.stop(10)


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_start_that_always_fails_raises_the_reason(any_system: ActorSystem, where: Any) -> None:
    failures: list[BaseException] = [Boom("port taken")] * (FAILURES_MAX + 1)
    diary = Diary()
    with pytest.raises(StartFailed, match="Boom: port taken"):
        any_system.start(
            child("first", diary),
            ChildSpec("a", lambda _: Starting(diary, failures), where=where),
            child("behind it", diary),
        )
    assert diary.events.all() == ["first started"]
    assert any_system.gave_up == "Boom: port taken"
    with pytest.raises(StartFailed, match="port taken"):
        any_system.start(child("too late", diary))


def test_a_fatal_failure_is_not_retried(any_system: ActorSystem) -> None:
    failures: list[BaseException] = [PermissionError("not writable")]
    with pytest.raises(StartFailed, match="not writable") as caught:
        any_system.start(
            ChildSpec("a", lambda _: Starting(Diary(), failures), fatal=(PermissionError,))
        )
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_group_restarts_together_after_stopping_in_reverse_order(
    any_system: ActorSystem,
) -> None:
    diary = Diary()
    any_system.start(
        child("a", diary, group="g"),
        child("outside", diary),
        child("b", diary, group="g", where="thread"),
        child("c", diary, group="g"),
    )
    diary.events.all()
    any_system.address("b").tell(Do(boom))
    events = diary.wait_for(any_system, "c started")
    assert events == ["c stopped", "a stopped", "a started", "b started", "c started"]


def test_two_failures_in_one_group_make_one_restart(real_system: ActorSystem) -> None:
    diary = Diary()
    real_system.start(
        child("a", diary, group="g"), child("b", diary, group="g"), child("teller", diary)
    )
    diary.events.all()

    def fail_both(_: Recorder) -> None:  # in one pass: both have failed before any report arrives
        real_system.address("a").tell(Do(boom))
        real_system.address("b").tell(Do(boom))

    real_system.address("teller").tell(Do(fail_both))
    assert diary.wait_for(real_system, "b started") == ["a started", "b started"]
    real_system.stop(10)
    assert not [event for event in diary.events.all() if event.endswith("started")]


def test_only_permanent_children_are_restarted_after_stopping_themselves(
    any_system: ActorSystem,
) -> None:
    diary = Diary()
    any_system.start(
        child("permanent", diary),
        child("transient", diary, restart="transient"),
        child("temporary", diary, restart="temporary"),
    )
    diary.events.all()
    refused = Arrivals()
    for name in ("transient", "temporary", "permanent"):
        any_system.address(name).tell(Do(lambda actor: actor.stop()))
    diary.wait_for(any_system, "permanent started")
    assert look(any_system, "permanent", lambda actor: actor.incarnation) == 2
    for name in ("transient", "temporary"):
        any_system.address(name).tell(Say("x", refused))
    look(any_system, "permanent", id)
    if isinstance(any_system, SimulatedSystem):
        any_system.drain()
    assert sorted(refused.all()) == ["temporary has stopped", "transient has stopped"]


def test_a_failed_temporary_child_is_not_restarted(any_system: ActorSystem) -> None:
    diary = Diary()
    any_system.start(child("a", diary, restart="temporary"), child("b", diary))
    any_system.address("a").tell(Do(boom))
    any_system.address("b").tell(Do(boom))
    diary.wait_for(any_system, "a started", "b started", "b started")
    refused = Arrivals()
    any_system.address("a").tell(Say("x", refused))
    look(any_system, "b", id)
    if isinstance(any_system, SimulatedSystem):
        any_system.drain()
    assert refused.all() == ["a has stopped"]


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_stop_waits_until_a_child_can_stop(any_system: ActorSystem, where: Any) -> None:
    diary = Diary()
    any_system.start(child("a", diary, where=where))
    look(any_system, "a", lambda actor: setattr(actor, "is_busy", True))

    def finish_later(actor: Recorder) -> None:
        assert actor.stopping
        diary("finished")
        actor.is_busy = False

    def when_stopping(actor: Recorder) -> None:
        action = finish_later if actor.stopping else when_stopping
        actor.after(1, Do(action))

    any_system.address("a").tell(Do(when_stopping))
    assert any_system.stop(30)
    assert diary.events.all() == ["a started", "a drained", "finished", "a stopped"]


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_after_the_deadline_a_child_is_stopped_immediately(
    any_system: ActorSystem, where: Any
) -> None:
    diary = Diary()
    any_system.start(child("a", diary, where=where, stop_deadline_ms=5))
    look(any_system, "a", lambda actor: setattr(actor, "is_busy", True))
    assert any_system.stop(30)
    assert diary.events.all() == ["a started", "a drained", "a stopped"]


def test_a_hanging_thread_is_abandoned_and_makes_the_stop_unclean(
    real_system: ActorSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LAST_DEADLINE_MS", 5)
    diary = Diary()
    let_go, hanging = Event(), Event()
    real_system.start(
        child("flusher", diary), child("hangs", diary, where="thread", stop_deadline_ms=5)
    )

    def hang(_: Any) -> None:
        hanging.set()
        let_go.wait(30)

    real_system.address("hangs").tell(Do(hang))
    assert hanging.wait(10)
    assert real_system.stop(30) is False
    assert "flusher stopped" in diary.events.all()
    refused = Arrivals()
    real_system.address("hangs").tell(Say("x", refused))
    assert refused.take() == "hangs did not stop in time"
    let_go.set()


def test_a_failure_while_stopping_makes_the_stop_unclean(any_system: ActorSystem) -> None:
    class Unsaved(Recorder):
        def on_stop(self) -> None:
            raise OSError("disk full")

    any_system.start(child("a", Diary()), ChildSpec("b", lambda _: Unsaved()))
    assert any_system.stop(10) is False


def test_a_child_name_can_be_used_only_once(any_system: ActorSystem) -> None:
    any_system.start(child("a", Diary()))
    with pytest.raises(StartFailed, match="there is a child a already"):
        any_system.start(child("a", Diary()))


def test_a_stopped_system_starts_no_actor(any_system: ActorSystem) -> None:
    any_system.stop(10)
    with pytest.raises(Exception, match="stopped"):
        any_system.start(child("a", Diary()))
