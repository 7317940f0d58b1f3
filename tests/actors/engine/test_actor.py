"""Tests of actors/engine/actor.py: dispatch by type, and every override of Pykka."""

import inspect
from typing import Any

import pykka
import pytest
from pykka import ActorRegistry
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from actors.engine.actor import Actor, BatchEnd, Drain, Interrupted, Stop, handles
from actors.engine.actor_address import GuardedFuture
from actors.engine.inbox import Inbox
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from tests.support.cast import Batcher, Boom, Diary, Do, Hard, Recorder, Say, boom, look, said


class Quiet(Recorder):
    """Overrides a handler without marking it again."""

    def say(self, message: Say) -> None:
        self.said.append(message.text.lower())


class Failing(Recorder):
    """Records its own failure."""

    def on_failure(self, *_: object) -> None:
        self.diary(self.remark())


def test_a_handler_is_found_by_the_exact_type_of_the_message() -> None:
    assert Recorder.handlers[Say] is Recorder.say
    assert Recorder.handlers.keys() == {Say, Do, *Actor.handlers} | {
        kind for kind in Recorder.handlers if kind.__name__ == "Look"
    }


def test_a_subclass_inherits_handlers_and_may_override_them_by_name() -> None:
    assert Quiet.handlers[Say] is Quiet.say
    assert Quiet.handlers[Do] is Recorder.do
    assert Recorder.handlers[Say] is Recorder.say


def test_only_actors_with_a_batch_end_handler_get_batch_end() -> None:
    assert Batcher.wants_batch_end
    assert not Recorder.wants_batch_end


def test_handlers_of_two_classes_stay_separate() -> None:
    class Other(Actor):
        @handles(int)
        def count(self, message: int) -> None: ...

    assert int in Other.handlers
    assert int not in Recorder.handlers
    assert {Stop, Drain, Envelope} <= Other.handlers.keys()


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_an_unknown_message_is_a_named_failure(any_system: ActorSystem, where: Any) -> None:
    diary = Diary()
    any_system.start(ChildSpec("a", lambda _: Failing(diary), where=where))
    any_system.address("a").tell(3.5)
    diary.wait_for(any_system, "TypeError: Failing does not handle float", "a started")
    assert look(any_system, "a", lambda actor: actor.incarnation) == 2


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_base_exception_in_a_handler_ends_only_that_actor(
    real_system: ActorSystem, where: Any
) -> None:
    def hard(_: Any) -> None:
        raise Hard("library code called exit")

    diary = Diary()
    real_system.start(
        ChildSpec("other", lambda _: Recorder(), where="thread"),
        ChildSpec("a", lambda _: Failing(diary), where=where),
    )
    real_system.address("a").tell(Do(hard))
    diary.wait_for(real_system, "Hard: library code called exit", "a started")
    assert look(real_system, "a", lambda actor: actor.incarnation) == 2
    assert look(real_system, "other", lambda actor: actor.incarnation) == 1


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_real_pykka_ref_can_tell_ask_and_stop(real_system: ActorSystem, where: Any) -> None:
    real_system.start(ChildSpec("a", lambda _: Recorder(), where=where, restart="temporary"))
    ref: pykka.ActorRef[Recorder] = look(real_system, "a", lambda actor: actor.actor_ref)
    assert isinstance(ref, pykka.ActorRef)
    ref.tell(Say("by ref"))
    ref.ask(Say("asked"), timeout=10)
    assert said(real_system, "a") == ["by ref", "asked"]
    assert ref.is_alive()
    assert ref.stop(timeout=10)
    assert not ref.is_alive()


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_asking_a_ref_that_fails_brings_the_exception_and_ends_the_actor(
    real_system: ActorSystem, where: Any
) -> None:
    diary = Diary()
    real_system.start(ChildSpec("a", lambda _: Recorder(diary), where=where))
    ref = look(real_system, "a", lambda actor: actor.actor_ref)
    with pytest.raises(Boom):
        ref.ask(Do(boom), timeout=10)
    diary.wait_for(real_system, "a started", "a started")
    assert look(real_system, "a", lambda actor: actor.incarnation) == 2


def test_only_actors_on_threads_are_in_pykkas_registry(real_system: ActorSystem) -> None:
    real_system.start(
        ChildSpec("on loop", lambda _: Recorder()),
        ChildSpec("on thread", lambda _: Recorder(), where="thread"),
    )
    refs = [
        look(real_system, name, lambda actor: actor.actor_ref) for name in ("on loop", "on thread")
    ]
    registered = ActorRegistry.get_all()
    assert refs[1] in registered
    assert refs[0] not in registered
    assert real_system.stop(10)
    assert refs[1] not in ActorRegistry.get_all()


def test_an_actor_can_stop_itself(any_system: ActorSystem) -> None:
    diary = Diary()
    any_system.start(ChildSpec("a", lambda _: Recorder(diary), restart="transient"))
    any_system.address("a").tell(Do(lambda actor: actor.stop()))
    assert diary.wait_for(any_system, "a stopped") == ["a started", "a stopped"]


# --- Pykka's seams: each of these fails when an upgrade moves what we override


def test_seam_the_inbox_is_made_by_create_actor_inbox() -> None:
    actor = Recorder()
    assert isinstance(actor.actor_inbox, Inbox)
    assert actor.actor_ref.actor_inbox is actor.actor_inbox


def test_seam_futures_are_made_by_create_future() -> None:
    actor = Recorder()
    told: list[object] = []
    actor.actor_inbox.bind(told.append)
    future = actor.actor_ref.ask("question", block=False)
    assert isinstance(future, GuardedFuture)
    (envelope,) = told
    assert isinstance(envelope, Envelope)
    assert envelope.reply_to is future


def test_seam_a_ref_stops_an_actor_by_an_enveloped_actor_stop() -> None:
    actor = Recorder()
    told: list[Any] = []
    actor.actor_inbox.bind(told.append)
    actor.actor_ref.stop(block=False)
    assert isinstance(told[0].message, _ActorStop)


def test_seam_the_class_starts_an_actor_through_start_actor_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Actor] = []
    monkeypatch.setattr(Recorder, "_start_actor_loop", lambda actor: started.append(actor))
    ref = Recorder.start()
    ActorRegistry.unregister(ref)
    assert [actor.actor_ref for actor in started] == [ref]


def test_seam_the_loop_is_setup_running_teardown_in_pykkas_order() -> None:
    calls: list[str] = []

    class Traced(pykka.ThreadingActor):
        def _actor_loop_setup(self) -> None:
            calls.append("setup")

        def _actor_loop_running(self) -> None:
            calls.append("running")

        def _actor_loop_teardown(self) -> None:
            calls.append("teardown")

    Traced()._actor_loop()
    assert calls == ["setup", "running", "teardown"]


def test_seam_every_failure_path_of_pykka_goes_through_handle_failure() -> None:
    class Fragile(pykka.ThreadingActor):
        failures = 0

        def on_start(self) -> None:
            raise Boom

        on_stop = on_start

        def on_receive(self, message: Any) -> Any:
            raise Boom

        def _handle_failure(self, *_: Any) -> None:
            self.failures += 1
            self.actor_stopped.set()

    starting, handling, stopping = Fragile(), Fragile(), Fragile()
    starting._actor_loop_setup()
    handling.actor_inbox.put(Envelope("message"))
    handling._actor_loop_running()
    stopping._stop()
    assert [actor.failures for actor in (starting, handling, stopping)] == [1, 1, 1]


def test_seam_the_loop_reads_the_inbox_with_get_and_hands_on_to_handle_receive() -> None:
    class Reading(pykka.ThreadingActor):
        def _handle_receive(self, message: Any) -> Any:
            self.actor_stopped.set()
            return [message]

    actor = Reading()
    reply: pykka.ThreadingFuture[Any] = pykka.ThreadingFuture()
    actor.actor_inbox.put(Envelope("message", reply_to=reply))
    actor._actor_loop_running()
    assert reply.get(timeout=1) == ["message"]


def test_seam_pykka_would_end_everything_for_a_base_exception_hence_interrupted() -> None:
    source = inspect.getsource(pykka.Actor._actor_loop_running)
    assert "except BaseException" in source
    assert "ActorRegistry.stop_all()" in source
    assert issubclass(Interrupted, Exception)


def test_seam_stop_unregisters_sets_the_flag_and_calls_on_stop() -> None:
    diary = Diary()

    class Stopped(pykka.ThreadingActor):
        def on_stop(self) -> None:
            diary("on_stop")

    actor = Stopped()
    actor._stop()
    assert actor.actor_stopped.is_set()
    assert diary.events.all() == ["on_stop"]


def test_batch_end_is_a_single_value_without_fields() -> None:
    assert BatchEnd() == BatchEnd()
