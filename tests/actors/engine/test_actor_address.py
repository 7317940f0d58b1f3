"""Tests of actors/engine/actor_address.py: receivers of messages across restarts."""

from actors.engine.actor_address import ActorAddress, DownReceiver
from actors.engine.inbox import KEPT_MAX, Item
from tests.support.actors import Arrivals
from tests.support.cast import Recorder, Say


class Straight:
    """Mail that is handled at once, as the loop would later."""

    asleep = False

    def append(self, item: Item) -> None:
        address, message = item
        address.receiver.handlers[type(message)](address.receiver, message)
        address.handled += 1

    def wake(self) -> None: ...


def test_messages_are_kept_while_the_actor_is_down_and_handed_over_in_order() -> None:
    address = ActorAddress("a", Straight())
    messages = [Say(number) for number in range(3)]
    for message in messages:
        address.tell(message)
    assert address.handled == 0
    actor = Recorder()
    assert address.go_up(actor) == messages
    assert address.is_up
    address.tell(Say("x"))
    assert actor.said == ["x"]
    assert address.handled == 1
    address.go_down([messages[0]])
    assert not address.is_up
    address.tell(messages[1])
    assert address.go_up(actor) == messages[:2]


def test_messages_over_the_limit_are_refused_and_the_rest_kept() -> None:
    address = ActorAddress("a", Straight())
    refused = Arrivals()
    for number in range(KEPT_MAX + 3):
        address.tell(Say(number, refused))
    assert refused.all() == [f"more than {KEPT_MAX} messages wait for a"] * 3
    kept = address.go_up(Recorder())
    assert len(kept) == KEPT_MAX


def test_a_closed_address_refuses_kept_and_new_messages() -> None:
    address = ActorAddress("a", Straight())
    refused = Arrivals()
    address.tell(Say("kept", refused))
    address.close("the first reason")
    address.close("another")
    address.tell(Say("late", refused))
    assert refused.all() == ["the first reason"] * 2


def test_closing_an_address_replaces_its_receiver() -> None:
    address = ActorAddress("a", Straight())
    address.go_up(Recorder())
    address.close("gone")
    assert isinstance(address.receiver, DownReceiver)


def test_an_address_moved_to_a_thread_keeps_its_messages_in_order() -> None:
    address = ActorAddress("a", Straight())
    address.tell("kept")
    mail = address.move_to_thread(["waiting on the loop"])
    address.tell("told since")
    late: Item = (address, "sent with the loop's queue looked up before")
    Straight().append(late)
    assert [mail.get()[1] for _ in range(mail.qsize())] == [
        "kept",
        "waiting on the loop",
        "told since",
        "sent with the loop's queue looked up before",
    ]
    assert address.move_to_thread([]) is mail
    assert address.own_queue() is mail
