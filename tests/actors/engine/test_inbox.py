"""Tests of actors/engine/inbox.py: refusals, wake-ups, and ends of batches."""

from typing import Any

import pytest
from pykka import ActorDeadError, ThreadingFuture
from pykka._envelope import Envelope
from pykka.messages import _ActorStop
from structlog.testing import capture_logs

from actors.engine.actor_address import ActorAddress, Future, MessageRefused, Reply
from actors.engine.inbox import (
    BATCH_MAX,
    KEPT_MAX,
    Inbox,
    LoopMail,
    ThreadMail,
    refuse,
)
from actors.engine.messages import BATCH_END, Stop
from tests.support.actors import Arrivals
from tests.support.cast import Look, Say


class Nowhere:
    """Mail without a reader."""

    asleep = False

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.append = self.told.append

    def wake(self) -> None: ...


@pytest.fixture
def address() -> ActorAddress:
    return ActorAddress("receiver", Nowhere())


def inbox_of(mail: ThreadMail, *, wants_batch_end: bool = True) -> Inbox:
    inbox = Inbox()
    inbox.read_from(mail, wants_batch_end=wants_batch_end)
    return inbox


def messages_of(inbox: Inbox) -> list[Any]:
    """Return the messages that `get` returns without waiting."""
    taken = []
    while not inbox.empty():
        taken.append(inbox.get().message)
    return taken


def test_a_batch_is_all_pending_messages_and_ends_once(address: ActorAddress) -> None:
    mail = ThreadMail()
    inbox = inbox_of(mail)
    for text in "ab":
        mail.append((address, text))
    assert messages_of(inbox) == ["a", "b"]
    assert inbox.get().message is BATCH_END
    mail.append((address, "c"))
    assert inbox.get().message == "c"
    assert inbox.get().message is BATCH_END


def test_actors_without_a_batch_end_handler_get_no_batch_end(address: ActorAddress) -> None:
    mail = ThreadMail()
    inbox = inbox_of(mail, wants_batch_end=False)
    for text in "abc":
        mail.append((address, text))
    assert messages_of(inbox) == ["a", "b", "c"]


def test_a_long_batch_ends_although_more_messages_wait(address: ActorAddress) -> None:
    mail = ThreadMail()
    inbox = inbox_of(mail)
    for number in range(BATCH_MAX + 1):
        mail.append((address, number))
    taken = messages_of(inbox)
    assert taken.index(BATCH_END) == BATCH_MAX
    assert taken[-1] == BATCH_MAX


def test_the_batch_ends_before_the_actor_stops(address: ActorAddress) -> None:
    mail = ThreadMail()
    inbox = inbox_of(mail)
    mail.append((address, "a"))
    mail.append((address, Stop()))
    assert messages_of(inbox) == ["a", BATCH_END, Stop()]


def test_an_envelope_of_a_pykka_ref_passes_through_as_it_is(address: ActorAddress) -> None:
    mail = ThreadMail()
    envelope: Envelope[Any] = Envelope("asked", ThreadingFuture())
    mail.append((address, envelope))
    assert inbox_of(mail).get() is envelope


def test_a_refused_message_gets_on_undelivered() -> None:
    remarks: list[str] = []
    refuse(Say("x", remarks.append), "gone")
    assert remarks == ["gone"]


def test_refused_question_refuses_its_reply() -> None:
    asked: Future[Any] = Future(lambda *_: None)
    refuse(Look(id, Reply(asked)), "gone")
    with pytest.raises(MessageRefused, match="gone"):
        asked.result(0)


@pytest.mark.parametrize("message", [object(), Say("x"), Look(id, print)])
def test_a_message_without_a_requester_is_refused_silently(message: object) -> None:
    refuse(message, "gone")


def test_a_failing_refusal_does_not_prevent_the_others() -> None:
    def broken(_: str) -> None:
        raise ValueError("the requester is broken")

    with capture_logs() as lines:
        refuse(Say("x", broken), "gone")
    assert [line["event"] for line in lines] == ["refusal failed"]


def test_a_refused_ask_of_a_pykka_ref_says_that_the_actor_is_dead() -> None:
    future: ThreadingFuture[Any] = ThreadingFuture()
    refuse(Envelope("x", future), "a has stopped")
    with pytest.raises(ActorDeadError, match="a has stopped"):
        future.get(timeout=0)
    stop: ThreadingFuture[Any] = ThreadingFuture()
    refuse(Envelope(_ActorStop(), stop), "a has stopped")
    assert stop.get(timeout=0) is None


def test_a_thread_inbox_is_kept_up_to_a_limit_while_the_actor_is_down(
    address: ActorAddress,
) -> None:
    mail = ThreadMail()
    refused = Arrivals()
    for number in range(KEPT_MAX + 2):
        mail.append((address, Say(number, refused)))
        mail.wake()
    assert mail.qsize() == KEPT_MAX
    assert len(refused.all()) == 2


def test_a_closed_thread_inbox_refuses_messages_in_transit(address: ActorAddress) -> None:
    mail = ThreadMail()
    refused = Arrivals()
    mail.up()
    assert not mail.asleep
    mail.append((address, Say("waiting", refused)))
    mail.close("the end")
    mail.append((address, Say("on its way", refused)))  # had looked up `append` before the close
    assert mail.asleep  # so that this teller wakes, and thereby refuses
    mail.wake()
    assert refused.all() == ["the end", "the end"]


def test_the_loop_inbox_removes_one_actors_messages_and_keeps_the_order() -> None:
    mail = LoopMail()
    one, other = ActorAddress("one", mail), ActorAddress("other", mail)
    for number in range(3):
        one.tell(number)
        other.tell(number)
    assert mail.depths() == {one: 3, other: 3}
    assert mail.take(one) == [0, 1, 2]
    assert [message for _, message in mail.items] == [0, 1, 2]
    mail.put_first(one, ["a", "b"])
    assert [message for _, message in mail.items] == ["a", "b", 0, 1, 2]
    mail.close()


def test_only_the_first_sender_wakes_a_sleeping_loop() -> None:
    mail = LoopMail()
    address = ActorAddress("one", mail)
    mail.asleep = True
    for number in range(3):
        address.tell(number)
    assert mail.wake_socket.recv(10) == b"\0"
    with pytest.raises(BlockingIOError):
        mail.wake_socket.recv(10)
    mail.close()


def test_messages_to_an_ended_loop_are_refused() -> None:
    mail = LoopMail()
    refused = Arrivals()
    address = ActorAddress("one", mail)
    address.tell(Say("waiting", refused))
    mail.close()
    address.tell(Say("late", refused))
    assert refused.all() == ["one has stopped"] * 2
    assert not mail.items
