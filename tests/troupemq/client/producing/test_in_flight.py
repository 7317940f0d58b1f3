"""Back-pressure: who is let in, who waits, and who has to come again."""

from threading import Event, Thread
from time import monotonic

import pytest

from troupemq.client.errors import ClientBusy
from troupemq.client.producing.in_flight import InFlight

WAIT_S = 10.0


def test_as_many_as_fit_are_let_in() -> None:
    room = InFlight(count_max=2, bytes_max=100)
    room.enter(60, monotonic())
    room.enter(40, monotonic())
    with pytest.raises(ClientBusy, match="2 sends of 100 bytes"):
        room.enter(0, monotonic())
    room.leave(60)
    with pytest.raises(ClientBusy):
        room.enter(61, monotonic())
    room.enter(60, monotonic())


def test_one_that_is_alone_may_have_any_size() -> None:
    room = InFlight(count_max=2, bytes_max=100)
    room.enter(1000, monotonic())
    with pytest.raises(ClientBusy):
        room.enter(1, monotonic())


def test_who_waits_is_let_in_when_there_is_room() -> None:
    room = InFlight(count_max=1, bytes_max=100)
    room.enter(1, monotonic())
    entered = Event()

    def wait() -> None:
        room.enter(1, monotonic() + WAIT_S)
        entered.set()

    thread = Thread(target=wait)
    thread.start()
    assert not entered.is_set()
    room.leave(1)
    assert entered.wait(WAIT_S)
    thread.join()
    assert not room.wait_empty(0)
    room.leave(1)
    assert room.wait_empty(0)


def test_a_caller_that_may_not_wait_is_refused_at_once() -> None:
    room = InFlight(1, 100)
    room.enter(1, monotonic())
    with pytest.raises(ClientBusy):
        room.enter(1, monotonic() + 1000 * WAIT_S, lambda: False)
