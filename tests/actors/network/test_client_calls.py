"""Tests of actors/network/client_calls.py: every call ends exactly once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import Item
from actors.engine.messages import Message
from actors.engine.supervisor import ChildSpec
from actors.network import client_calls
from actors.network.client_calls import ClientCalls, Waiting
from actors.network.connection import Connection
from actors.network.messages import (
    AnswerRoom,
    CallClient,
    CallDone,
    CallEnd,
    ClientAnswer,
    PeerClosed,
)
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand, encode
from protocol.headers.client import QueueHeader
from tests.support.actors import Arrivals
from tests.support.brokers import SimulatedBroker
from tests.support.peers import RecordingPeer, Told, simulated
from tests.support.sockets import Line, connection_of, paired_lines, serving_broker
from troupemq.testing.simulation import SimulatedSystem

ASK = RequestCode.GET_CONSUMER_RUNNING_INFO


@dataclass
class Bench:
    """A broker's client calls, and their callers."""

    system: SimulatedSystem
    waiting: Waiting
    asker: Told

    def call(
        self, peer: RecordingPeer, context: object = None, timeout_ms: float = 1000
    ) -> RemotingCommand:
        """Asks; the request as the client got it."""
        command = RemotingCommand(ASK, {"clientId": "c"})
        self.tell(CallClient(peer, command, self.asker.address, context, timeout_ms))
        return command

    def tell(self, message: object) -> None:
        self.system.address("client_calls").tell(message)
        self.system.drain()

    def ends(self) -> list[tuple[object, CallEnd]]:
        return [(done.context, done.end) for done in self.asker.take()]


@contextmanager
def calls() -> Iterator[Bench]:
    with simulated() as system:
        bench = Bench(system, {}, Told("asker"))
        system.start(ChildSpec("client_calls", lambda _: ClientCalls(bench.waiting)))
        yield bench


def test_an_answer_reaches_the_caller_with_the_context() -> None:
    with calls() as bench:
        peer = RecordingPeer()
        bench.call(peer, "why I asked")
        (asked,) = peer.notices()
        assert asked.code == ASK and not asked.is_oneway and asked.fields == {"clientId": "c"}
        bench.tell(ClientAnswer(asked.answer(0, body=b"fine"), peer))
        (done,) = bench.asker.take()
        assert (done.context, done.end, done.peer) == ("why I asked", CallEnd.ANSWERED, peer)
        assert done.answer.body == b"fine"
        assert not bench.waiting
        bench.system.advance(5000)  # its timer is gone too
        bench.tell(ClientAnswer(asked.answer(), peer))  # and a second answer means nothing
        assert bench.ends() == []


def test_answers_for_a_thread_have_room_again_once_others_are_read() -> None:
    """1,400 answers of 430 KB waited to be read, and 570 MiB with them."""
    room = AnswerRoom(10)
    with calls() as bench:
        peer = RecordingPeer()
        for read_bytes, end in (
            (0, CallEnd.ANSWERED),
            (0, CallEnd.NOT_ASKED),
            (6, CallEnd.ANSWERED),
        ):
            room.read_bytes += read_bytes
            command = RemotingCommand(ASK)
            bench.tell(CallClient(peer, command, bench.asker.address, None, 1000, room))
            bench.tell(ClientAnswer(command.answer(body=b"123456"), peer))
            assert bench.ends() == [(None, end)]


def test_many_calls_are_made_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question about a group of 4,000 members blocked the loop for 85 ms."""
    monkeypatch.setattr(client_calls, "CALLED_PER_ROUND", 2)
    with calls() as bench:
        peer, later = RecordingPeer(), list[object]()
        tell = bench.system.loop.tell_in_next_round

        def note(address: ActorAddress, message: object) -> None:
            later.append(message)
            tell(address, message)

        monkeypatch.setattr(bench.system.loop, "tell_in_next_round", note)
        address = bench.system.address("client_calls")
        for number in range(7):
            command = RemotingCommand(ASK, {"clientId": str(number)})
            address.tell(CallClient(peer, command, bench.asker.address, number, 1000))
        bench.system.drain()
        asked = peer.notices()
        assert [(each.fields or {})["clientId"] for each in asked] == [*"0123456"]
        assert len(later) == 3
        for each in asked:
            bench.tell(ClientAnswer(each.answer(), peer))
        assert bench.ends() == [(number, CallEnd.ANSWERED) for number in range(7)]


def test_calls_are_distinguished_by_opaque_and_client() -> None:
    with calls() as bench:
        one, other = RecordingPeer(), RecordingPeer()
        for context, peer in (("a", one), ("b", one), ("c", other)):
            bench.call(peer, context)
        first, second = one.notices()
        (third,) = other.notices()
        assert len({first.opaque, second.opaque, third.opaque}) == 3
        bench.tell(ClientAnswer(first.answer(), other))  # a foreign opaque
        assert bench.ends() == []
        bench.tell(ClientAnswer(second.answer(), one))
        bench.tell(ClientAnswer(third.answer(), other))
        bench.tell(ClientAnswer(first.answer(1), one))
        assert bench.ends() == [(name, CallEnd.ANSWERED) for name in ("b", "c", "a")]


def test_a_call_to_a_silent_client_times_out() -> None:
    with calls() as bench:
        peer = RecordingPeer()
        bench.call(peer, "patient", 2000)
        bench.call(peer, "hasty", 500)
        bench.system.advance(499)
        assert bench.ends() == []
        bench.system.advance(1)
        assert bench.ends() == [("hasty", CallEnd.TIMED_OUT)]
        bench.system.advance(1500)
        (done,) = bench.asker.take()
        assert done.why == f"wait response on the channel <{peer.remote}> timeout, 2000(ms)"
        for late in peer.notices():
            bench.tell(ClientAnswer(late.answer(), peer))
        assert bench.ends() == []


def test_a_closed_connection_ends_only_its_own_calls() -> None:
    with calls() as bench:
        gone, there = RecordingPeer(), RecordingPeer()
        for context, peer in (("one", gone), ("two", there), ("three", gone)):
            bench.call(peer, context)
        gone.is_open = False
        bench.tell(PeerClosed(gone))
        assert bench.ends() == [("one", CallEnd.CLOSED), ("three", CallEnd.CLOSED)]
        bench.call(gone, "too late")
        assert bench.ends() == [("too late", CallEnd.CLOSED)]
        (asked,) = there.notices()
        bench.tell(ClientAnswer(asked.answer(), there))
        assert bench.ends() == [("two", CallEnd.ANSWERED)]


def test_pending_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_calls, "WAITING_MAX", 2)
    with calls() as bench:
        peer = RecordingPeer()
        for context in range(3):
            bench.call(peer, context)
        assert bench.ends() == [(2, CallEnd.NOT_ASKED)]
        bench.tell(ClientAnswer(peer.notices()[0].answer(), peer))
        bench.call(peer, 3)
        assert bench.ends() == [(0, CallEnd.ANSWERED)]


def test_a_failure_of_the_actor_ends_pending_calls() -> None:
    with calls() as bench:
        peer = RecordingPeer()
        bench.call(peer, "waits")
        bench.tell("unknown message")
        bench.system.advance(2000)  # its supervisor starts it again
        assert bench.ends() == [("waits", CallEnd.NOT_ASKED)]
        bench.call(peer, "the next one is asked again")
        asked = peer.notices()[-1]
        bench.tell(ClientAnswer(asked.answer(), peer))
        assert bench.ends() == [("the next one is asked again", CallEnd.ANSWERED)]


def test_a_stop_ends_pending_calls() -> None:
    with calls() as bench:
        bench.call(RecordingPeer(), "waits")
    assert bench.ends() == [("waits", CallEnd.NOT_ASKED)]


def test_a_context_is_refused_if_the_caller_has_stopped() -> None:
    refused: list[str] = []

    class Context(Message):
        def on_undelivered(self, remark: str) -> None:
            refused.append(remark)

    CallDone(Context(), RecordingPeer(), CallEnd.ANSWERED).on_undelivered("gone")
    CallDone("no such method", RecordingPeer(), CallEnd.ANSWERED).on_undelivered("gone")
    assert refused == ["gone"]


# --- over connections


def test_broker_and_client_may_use_the_same_opaque_at_once() -> None:
    made = SimulatedBroker(1)
    with paired_lines(made, 1) as (line,):
        (peer,) = [actor for actor in made.system.live if isinstance(actor, Connection)]
        asker = Told("asker")
        command = RemotingCommand(ASK, {})
        made.system.address("client_calls").tell(CallClient(peer, command, asker.address))
        made.system.drain()
        line.wind()
        (asked,) = line.receive_now()
        question = RemotingCommand(
            RequestCode.GET_MAX_OFFSET, QueueHeader("T", 0).encode(), opaque=asked.opaque
        )
        line.send_bytes(encode(question))
        assert asker.take() == []  # a request with that number is no answer
        (answer,) = line.receive_now()
        assert answer.is_response and answer.opaque == asked.opaque
        line.send_bytes(encode(asked.answer(0, body=b"mine")))
        (done,) = asker.take()
        assert (done.end, bytes(done.answer.body)) == (CallEnd.ANSWERED, b"mine")


class Hand:
    """Mail that is handed to a test as it comes."""

    asleep = False

    def __init__(self) -> None:
        self.arrivals = Arrivals()

    def append(self, item: Item) -> None:
        self.arrivals(item[1])

    def wake(self) -> None:
        raise AssertionError("never asleep")


def test_a_client_that_closes_its_socket_ends_the_call(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running:
        hand = Hand()
        with Line.to(running.ports.main) as line:
            line.ask(RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("T", 0).encode()))
            peer = connection_of(running.system, line)
            call = CallClient(peer, RemotingCommand(ASK, {}), ActorAddress("asker", hand))
            running.system.address("client_calls").tell(call)
            assert line.receive()[0].code == ASK
        assert hand.arrivals.take().end is CallEnd.CLOSED
