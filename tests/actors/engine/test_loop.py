"""Tests of actors/engine/loop.py: rounds, sockets, timers, and the order of messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from select import EPOLLIN, EPOLLOUT
from socket import socket, socketpair
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.engine.actor import Actor, Exited, Started, Stop, handles
from actors.engine.actor_address import Future, MessageRefused
from actors.engine.loop import Loop
from actors.engine.supervisor import ChildSpec, Shut
from actors.engine.system import ActorSystem, StartFailed
from storage.files.disk import RealDisk
from tests.support.actors import WAIT_S, Arrivals, addresses
from tests.support.cast import Batcher, Boom, Diary, Do, Recorder, Say, boom, look, said


@contextmanager
def sockets() -> Iterator[tuple[socket, socket]]:
    """A non-blocking end for an actor and a plain one for the test."""
    ours, theirs = socketpair()
    ours.setblocking(False)
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


class Listener(Recorder):
    """Watches a socket."""

    def __init__(self, diary: Diary, sock: socket, events: int = EPOLLIN) -> None:
        super().__init__(diary)
        self.sock = sock
        self.events = events

    def on_start(self) -> None:
        self.system.loop.watch(self.sock, self.events, self)

    def on_readable(self) -> None:
        data = self.sock.recv(100)
        if not data:
            self.system.loop.unwatch(self.sock)
        elif data == b"boom":
            self.diary("about to fail")
            raise Boom("in a socket handler")
        self.diary(data)

    def on_writable(self) -> None:
        self.system.loop.modify(self.sock, EPOLLIN)
        self.diary("writable")


def loop_of(system: ActorSystem) -> Loop:
    assert isinstance(system.loop, Loop)
    return system.loop


def test_a_ready_socket_calls_its_handler_until_it_is_unwatched(real_system: ActorSystem) -> None:
    diary = Diary()
    with sockets() as (ours, theirs):
        real_system.start(ChildSpec("a", lambda _: Listener(diary, ours)))
        theirs.send(b"one")
        assert diary.events.take() == b"one"
        theirs.send(b"two")
        assert diary.events.take() == b"two"
        theirs.shutdown(1)
        assert diary.events.take() == b""
        look(real_system, "a", id)
        assert diary.events.all() == []
        real_system.stop(10)


def test_a_handler_that_switches_to_reading_gets_one_writable_event(
    real_system: ActorSystem,
) -> None:
    diary = Diary()
    with sockets() as (ours, theirs):
        real_system.start(ChildSpec("a", lambda _: Listener(diary, ours, EPOLLIN | EPOLLOUT)))
        assert diary.events.take() == "writable"
        theirs.send(b"x")
        assert diary.events.take() == b"x"
        real_system.stop(10)


def test_an_exception_in_a_socket_handler_is_a_failure_of_its_actor(
    real_system: ActorSystem,
) -> None:
    diary = Diary()
    with sockets() as (ours, theirs):
        real_system.start(
            ChildSpec("a", lambda _: Listener(diary, ours)), ChildSpec("b", lambda _: Recorder())
        )
        theirs.send(b"boom")
        assert diary.events.take() == "about to fail"
        theirs.send(b"next")
        assert diary.events.take() == b"next"  # read by the one that took its place
        assert look(real_system, "a", lambda actor: actor.incarnation) == 2
        assert look(real_system, "b", lambda actor: actor.incarnation) == 1
        real_system.stop(10)


def test_failures_of_an_actors_socket_helper_count_for_the_actor(real_system: ActorSystem) -> None:
    diary = Diary()

    class Part:
        def on_readable(self) -> None:
            raise Boom("in a part")

        def on_writable(self) -> None: ...

    with sockets() as (ours, theirs):
        real_system.start(ChildSpec("a", lambda _: Recorder(diary)))
        look(
            real_system,
            "a",
            lambda actor: actor.system.loop.watch(ours, EPOLLIN, Part(), owner=actor),
        )
        theirs.send(b"x")
        diary.wait_for(real_system, "a started", "a started")


def test_a_watch_ends_with_its_actor(real_system: ActorSystem) -> None:
    with sockets() as (ours, theirs):
        real_system.start(
            ChildSpec("a", lambda _: Listener(Diary(), ours), restart="temporary"),
            ChildSpec("b", lambda _: Recorder()),
        )
        assert look(real_system, "a", lambda actor: actor.watched) == (ours.fileno(),)
        actor = look(real_system, "a", lambda actor: actor)
        theirs.send(b"boom")
        while look(real_system, "b", lambda b: actor in b.system.live):
            pass
        assert look(real_system, "b", lambda b: ours.fileno() in b.system.loop._watches) is False
        theirs.send(b"nobody reads this")


def test_a_stopped_actor_does_not_unwatch_a_reused_descriptor(
    real_system: ActorSystem,
) -> None:
    diary = Diary()
    with sockets() as (ours, theirs):
        real_system.start(
            ChildSpec("first", lambda _: Listener(Diary(), ours), restart="temporary"),
            ChildSpec("second", lambda _: Listener(diary, ours)),
        )
        real_system.address("first").tell(Do(boom))
        look(real_system, "second", id)
        theirs.send(b"x")
        assert diary.events.take() == b"x"
        real_system.stop(10)


def test_batch_end_follows_all_pending_messages(real_system: ActorSystem) -> None:
    real_system.start(
        ChildSpec("teller", lambda _: Recorder()), ChildSpec("batcher", lambda _: Batcher())
    )
    batcher = real_system.address("batcher")

    def tell_three(_: Recorder) -> None:
        for number in range(3):
            batcher.tell(Say(number))

    for _ in range(2):
        look(real_system, "teller", tell_three)
        look(real_system, "teller", id)
    assert said(real_system, "batcher") == [0, 1, 2, "|", 0, 1, 2, "|"]


def test_messages_are_handled_breadth_first(real_system: ActorSystem) -> None:
    diary = Diary()
    real_system.start(ChildSpec("a", lambda _: Recorder(diary)))

    def branch(label: str, depth: int) -> Do:
        def note_and_go_on(actor: Recorder) -> None:
            diary(label)
            if depth:
                actor.address.tell(branch(label + "l", depth - 1))
                actor.address.tell(branch(label + "r", depth - 1))

        return Do(note_and_go_on)

    diary.events.all()
    real_system.address("a").tell(branch("", 2))
    assert diary.events.take_until("rr") == ["", "l", "r", "ll", "lr", "rl", "rr"]


def test_an_endless_message_exchange_does_not_starve_sockets_and_timers(
    real_system: ActorSystem,
) -> None:
    diary = Diary()

    def chase(actor: Recorder) -> None:
        if not actor.stopping:
            actor.address.tell(Do(chase))

    with sockets() as (ours, theirs):
        real_system.start(
            ChildSpec("chaser", lambda _: Recorder()),
            ChildSpec("a", lambda _: Listener(diary, ours)),
        )
        real_system.address("chaser").tell(Do(chase))
        theirs.send(b"served")
        assert diary.events.take() == b"served"
        look(real_system, "a", lambda a: a.after(1, Do(lambda _: diary("told"))))
        assert diary.events.take() == "told"
        real_system.stop(10)


def test_messages_of_many_threads_arrive_in_each_threads_order(
    real_system: ActorSystem,
) -> None:
    real_system.start(ChildSpec("a", lambda _: Recorder()))
    address = real_system.address("a")

    def tell_all(teller: int) -> None:
        for number in range(2000):
            address.tell(Say((teller, number)))

    threads = [Thread(target=tell_all, args=(teller,)) for teller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = said(real_system, "a")
    for teller in range(4):
        assert [n for who, n in everything if who == teller] == list(range(2000))


def test_a_sleeping_loop_wakes_for_messages_and_timers_from_threads(
    real_system: ActorSystem,
) -> None:
    diary = Diary()
    real_system.start(
        ChildSpec("a", lambda _: Recorder(diary), where="thread"),
        ChildSpec("b", lambda _: Recorder()),
    )
    diary.events.all()
    for _ in range(20):
        look(real_system, "a", lambda a: a.after(0, Do(lambda actor: diary("due"))))
        assert diary.events.take() == "due"
        look(real_system, "b", id)


def test_a_repeated_timer_ends_when_it_is_cancelled(real_system: ActorSystem) -> None:
    diary = Diary()
    real_system.start(ChildSpec("a", lambda _: Recorder(diary)))
    diary.events.all()

    def tick_thrice(actor: Recorder) -> None:
        actor.said.append("tick")
        if len(actor.said) == 3:
            timer.cancel()
            actor.after(5, Do(lambda a: diary(list(a.said))))

    timer = look(real_system, "a", lambda a: a.every(1, Do(tick_thrice)))
    assert diary.events.take() == ["tick"] * 3


def test_a_slow_handler_is_logged_and_counted(real_system: ActorSystem) -> None:
    loop = loop_of(real_system)
    loop.slow_handler_ms = 0.0
    real_system.start(ChildSpec("a", lambda _: Recorder()))
    with capture_logs() as logs:
        look(real_system, "a", id)
        look(real_system, "a", id)
    assert {"slow handler"} == {line["event"] for line in logs}
    assert ("a", "Look") in {(line["actor"], line["message"]) for line in logs}
    assert loop.slow_handler_count >= 2
    assert loop.longest.ms > 0
    assert loop.longest.actor


class Parent(Actor):
    """Spawns, and records what it is told of its children."""

    def __init__(self, news: Arrivals) -> None:
        super().__init__()
        self.news = news

    @handles(Started)
    def started(self, message: Started) -> None:
        self.news("started " + message.address.name)

    @handles(Exited)
    def exited(self, message: Exited) -> None:
        self.news((message.name, message.failure, message.message_type))

    @handles(Do)
    def do(self, message: Do) -> None:
        message.action(self)


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_spawned_actor_reports_to_its_parent_and_is_not_restarted(
    real_system: ActorSystem, where: Any
) -> None:
    news, refused = Arrivals(), Arrivals()
    real_system.start(ChildSpec("parent", lambda _: Parent(news)))

    def spawn(parent: Parent) -> None:
        child = parent.system.spawn(Recorder(), "child", where=where, parent=parent.address)
        child.tell(Say("kept until it has started"))
        news(child)

    real_system.address("parent").tell(Do(spawn))
    child = news.take()
    assert news.take() == "started child"
    child.tell(Do(lambda actor: news(actor.said)))
    assert news.take() == ["kept until it has started"]
    child.tell(Do(boom))
    name, failure, message_type = news.take()
    assert (name, str(failure), message_type) == ("child", "as asked", Do)
    child.tell(Say("x", refused))
    assert refused.take() == "Boom: as asked"


@pytest.mark.heavy
def test_ten_thousand_spawned_actors_leave_nothing_behind(real_system: ActorSystem) -> None:
    news = Arrivals()
    real_system.start(ChildSpec("parent", lambda _: Parent(news)))

    def spawn_many(parent: Parent) -> None:
        for number in range(10_000):
            child = parent.system.spawn(Recorder(), f"child-{number}")
            child.tell(Do(lambda actor: actor.stop()))
        parent.address.tell(Do(lambda _: news("spawned")))

    before = len(real_system.live)
    real_system.address("parent").tell(Do(spawn_many))
    news.take()
    while len(real_system.live) > before:
        real_system.address("parent").tell(Do(lambda _: news("a round later")))
        news.take()
    assert [address.name for address in addresses(real_system)] == ["supervisor", "parent"]


def test_actors_that_were_not_stopped_end_with_the_loop(real_system: ActorSystem) -> None:
    diary = Diary()
    real_system.start(ChildSpec("parent", lambda _: Parent(Arrivals()), restart="temporary"))
    real_system.address("parent").tell(
        Do(lambda parent: parent.system.spawn(Recorder(diary), "orphan"))
    )
    diary.wait_for(real_system, "orphan started")
    real_system.stop(10)
    assert diary.events.all() == ["orphan stopped"]


def test_a_round_continues_after_a_handler_removed_messages(
    real_system: ActorSystem,
) -> None:
    news = Arrivals()
    real_system.start(ChildSpec("parent", lambda _: Parent(news)))
    late = real_system.address("late")

    def begin(parent: Parent) -> None:
        for number in range(3):
            late.tell(Say(number))
        parent.system.launch(Recorder(), late, "thread", parent=parent.address)

    def tell_before_it_is_there(parent: Parent) -> None:
        parent.address.tell(Do(begin))
        for number in range(3):
            late.tell(Say(number))  # in the same pass as `begin`

    real_system.address("parent").tell(Do(tell_before_it_is_there))
    assert news.take() == "started late"
    assert said(real_system, "late") == [0, 1, 2, 0, 1, 2]
    assert real_system.why_not_alive(10) == ""
    late.tell(Stop())
    assert news.take() == ("late", None, None)


def test_pending_starts_and_stops_fail_at_once_if_the_loop_fails() -> None:
    stops: list[Future[Any]] = []
    system = ActorSystem.real(
        disk=RealDisk(), on_give_up=lambda _: stops.append(system.ask(system.supervisor, Shut))
    )
    loop = loop_of(system)

    def fail() -> float:
        raise Boom("in the loop")

    class LastOne(Recorder):
        def on_start(self) -> None:
            loop._tell_due = fail  # type: ignore[method-assign]
            self.system.address("nobody").tell(Say("another round"))
            loop._thread.join(WAIT_S)

    with pytest.raises(StartFailed, match="the loop has ended"):
        system.start(ChildSpec("last", lambda _: LastOne(), where="thread"), timeout_s=2 * WAIT_S)
    assert system.gave_up == "the loop failed: Boom: in the loop"
    with pytest.raises(MessageRefused, match="supervisor has stopped"):
        stops[0].result(WAIT_S)
    assert system.stop(WAIT_S) is False
    system.address("last").tell(Stop())
