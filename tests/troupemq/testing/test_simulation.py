"""Tests of troupemq/testing/simulation.py: a seed fixes the order of events."""

from select import EPOLLIN, EPOLLOUT
from socket import socketpair
from typing import Any

import pytest

from actors.engine.actor import Actor
from actors.engine.supervisor import ChildSpec
from storage.files.disk import RealDisk
from tests.support.actors import Arrivals
from tests.support.cast import Batcher, Boom, Diary, Do, Hard, Recorder, Say, boom, look, said
from troupemq.testing import simulation
from troupemq.testing.simulation import SimulatedClock, SimulatedSystem


def run(seed: int, senders: int = 3, messages: int = 5) -> list[Any]:
    """Some senders tell one receiver; gives what it heard."""
    system = SimulatedSystem(seed, RealDisk())
    system.start(
        ChildSpec("receiver", lambda _: Batcher(), where="thread"),
        *(ChildSpec(f"s{n}", lambda _: Recorder()) for n in range(senders)),
    )
    receiver = system.address("receiver")

    def tell_all(actor: Recorder) -> None:
        for number in range(messages):
            receiver.tell(Say((actor.name, number)))

    for n in range(senders):
        system.address(f"s{n}").tell(Do(tell_all))
    system.drain()
    heard = said(system, "receiver")
    system.stop(10)
    return heard


def test_one_seed_always_gives_the_same_run() -> None:
    assert run(42) == run(42)


def test_other_seeds_give_other_orders_and_other_batches() -> None:
    runs = {repr(run(seed)) for seed in range(20)}
    assert len(runs) > 15


@pytest.mark.parametrize("seed", range(20))
def test_messages_from_one_actor_to_another_arrive_in_order(seed: int) -> None:
    heard = [entry for entry in run(seed) if entry != "|"]
    for sender in ("s0", "s1", "s2"):
        assert [number for name, number in heard if name == sender] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_every_batch_ends(seed: int) -> None:
    heard = run(seed)
    assert heard[-1] == "|"
    assert "||" not in "".join(entry if entry == "|" else "." for entry in heard)


@pytest.mark.parametrize("seed", range(20))
def test_message_order_holds_during_on_start_and_while_the_receiver_is_down(seed: int) -> None:
    system = SimulatedSystem(seed, RealDisk())
    receiver = system.address("receiver")

    class Sender(Recorder):
        def on_start(self) -> None:
            receiver.tell(Say((self.name, 0)))
            self.address.tell(Do(lambda actor: receiver.tell(Say((actor.name, 1)))))

    system.start(ChildSpec("receiver", lambda _: Recorder()))
    receiver.tell(Do(boom))
    system.drain()
    for number in range(5):
        receiver.tell(Say(("test", number)))
    system.start(ChildSpec("sender", lambda _: Sender()))
    for number in range(5, 10):
        receiver.tell(Say(("test", number)))
    system.advance(1000)
    heard = said(system, "receiver")
    assert [what for who, what in heard if who == "test"] == list(range(10))
    assert [what for who, what in heard if who == "sender"] == [0, 1]
    system.stop(10)


def test_time_passes_only_when_the_test_advances_it(simulated_system: SimulatedSystem) -> None:
    diary = Diary()
    clock = simulated_system.clock
    simulated_system.start(ChildSpec("a", lambda _: Recorder(diary)))
    wall_ms, began_ms = clock.now_ms(), clock.monotonic_ms()

    def note(actor: Actor) -> None:
        diary(clock.monotonic_ms() - began_ms)

    look(simulated_system, "a", lambda a: (a.every(1000, Do(note)), a.after(2500, Do(note))))
    diary.events.all()
    simulated_system.drain()
    assert diary.events.all() == []
    simulated_system.advance(3600)
    assert diary.events.all() == [1000, 2000, 2500, 3000]
    assert clock.monotonic_ms() - began_ms == 3600
    assert clock.now_ms() - wall_ms == 3600


def test_run_until_stops_at_the_step_that_makes_it_true(simulated_system: SimulatedSystem) -> None:
    simulated_system.start(ChildSpec("a", lambda _: Recorder()))
    actor = look(
        simulated_system, "a", lambda a: (a.every(10, Do(lambda a: a.said.append(1))), a)[1]
    )
    simulated_system.run_until(lambda: len(actor.said) == 7)
    assert simulated_system.clock.monotonic_ms() == 70
    with pytest.raises(TimeoutError, match=f"seed={simulated_system.loop.seed}"):
        simulated_system.run_until(lambda: False, limit_ms=25)
    assert simulated_system.clock.monotonic_ms() == 95


def test_the_wall_clock_can_jump_without_the_monotonic_clock() -> None:
    clock = SimulatedClock(5_000)
    clock.wind_to(10)
    clock.set_wall(1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 10)
    clock.wind_to(30)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_020, 30)


def test_after_a_crash_nothing_runs_and_nothing_is_answered(
    simulated_system: SimulatedSystem,
) -> None:
    diary, refused = Diary(), Arrivals()
    simulated_system.start(ChildSpec("a", lambda _: Recorder(diary)))
    address = simulated_system.address("a")
    look(simulated_system, "a", lambda a: a.every(10, Do(lambda a: diary("tick"))))
    address.tell(Say("waiting", refused))
    diary.events.all()
    simulated_system.crash()
    address.tell(Say("late", refused))
    simulated_system.advance(1000)
    assert diary.events.all() == []
    assert refused.all() == []
    assert not simulated_system.live


def test_a_handler_cannot_wait_for_an_answer(simulated_system: SimulatedSystem) -> None:
    diary = Diary()

    def wait(actor: Actor) -> None:
        try:
            look(simulated_system, "a", id)
        except RuntimeError as error:
            diary(str(error))

    simulated_system.start(ChildSpec("a", lambda _: Recorder(diary)))
    diary.events.all()
    simulated_system.address("a").tell(Do(wait))
    simulated_system.drain()
    assert diary.events.all() == ["an actor on the loop must not wait for an answer"]


def test_a_base_exception_reaches_the_test(simulated_system: SimulatedSystem) -> None:
    def interrupt(_: Any) -> None:
        raise Hard("the user wants to leave")

    simulated_system.start(ChildSpec("a", lambda _: Recorder()))
    simulated_system.address("a").tell(Do(interrupt))
    with pytest.raises(Hard):
        simulated_system.drain()


def test_an_endless_message_exchange_fails_the_test(
    simulated_system: SimulatedSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "STEPS_MAX", 1000)

    def chase(actor: Actor) -> None:
        actor.address.tell(Do(chase))

    simulated_system.start(ChildSpec("a", lambda _: Recorder(), restart="temporary"))
    simulated_system.address("a").tell(Do(chase))
    with pytest.raises(RuntimeError, match="no end"):
        simulated_system.drain()
    simulated_system.crash()


class Watcher(Recorder):
    """Watches a socket that is never read."""

    def __init__(self, diary: Diary, sock: Any) -> None:
        super().__init__(diary)
        self.sock = sock

    def on_start(self) -> None:
        self.system.loop.watch(self.sock, EPOLLIN, self)

    def on_readable(self) -> None:
        self.diary("readable")
        self.system.loop.modify(self.sock, EPOLLOUT)

    def on_writable(self) -> None:
        self.diary("writable")
        raise Boom("in a socket handler")


def test_sockets_are_ready_when_the_test_says_so(simulated_system: SimulatedSystem) -> None:
    ours, theirs = socketpair()
    with ours, theirs:
        diary = Diary()
        simulated_system.start(ChildSpec("a", lambda _: Watcher(diary, ours), restart="temporary"))
        simulated_system.loop.make_ready(ours, EPOLLOUT)
        simulated_system.drain()
        assert diary.events.all() == []
        simulated_system.loop.make_ready(ours, EPOLLIN)
        simulated_system.drain()
        assert diary.events.all() == ["readable", "writable"]
        assert not simulated_system.address("a").is_up
