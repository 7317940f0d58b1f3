"""Tests of FairScheduler in actors/network/limits.py: busy connections wait for quiet ones."""

from typing import Any

import pytest

from actors.network.connection import RECEIVE_BYTES, Transport
from actors.network.limits import (
    REQUESTS_OF_READ,
    REQUESTS_PER_TURN,
    ROUND_BYTES,
    FairScheduler,
)
from actors.network.messages import Peer
from actors.network.request import Service
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import QueueHeader
from protocol.stream import Event, Stream
from tests.support.brokers import SimulatedBroker
from tests.support.sockets import connection_of, frames_of, paired_lines


class Worker:
    def __init__(self, name: str, pieces: int, done: list[str]) -> None:
        self._name, self._left, self._done = name, pieces, done

    def take_turn(self) -> bool:
        self._done.append(self._name)
        self._left -= 1
        return self._left > 0


def test_turns_rotate_and_end() -> None:
    asked: list[None] = []
    done: list[str] = []
    turns = FairScheduler(lambda: asked.append(None))
    turns.wait(Worker("a", 3, done))
    turns.wait(Worker("b", 1, done))
    while asked:
        asked.pop()
        turns.next()
    assert done == ["a", "b", "a", "a"]
    turns.next()
    assert len(done) == 4


def test_the_first_connections_of_a_round_need_no_turn() -> None:
    turns = FairScheduler(lambda: None)
    long, short, longest = ROUND_BYTES, ROUND_BYTES // 3, ROUND_BYTES * 2
    asked = ((1, long), (1, short), (2, longest), (3, short), (3, long), (3, short), (3, short))
    passed = [turns.may_pass(*each) for each in asked]
    assert passed == [True, False, True, True, False, True, True]
    turns.wait(Worker("a", 1, []))
    assert not turns.may_pass(4, short)
    turns.next()
    assert turns.may_pass(5, long)


def test_short_work_shares_a_turn() -> None:
    done: list[str] = []
    turns = FairScheduler(lambda: None)
    for number in range(5):
        turns.wait(Worker(f"{number}", 1 + (number == 0), done), ROUND_BYTES // 3)
    sizes = []
    while done != [*"012340"]:
        turns.next()
        sizes.append(len(done))
    assert sizes == [3, 5, 6], "what the first one has left is not known: it has a round of its own"


HEAVY = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, {}, bytes(ROUND_BYTES // 8))
HEART_BEAT = RemotingCommand(RequestCode.HEART_BEAT, {}, bytes(ROUND_BYTES // 8))
LIGHT = RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())


@pytest.mark.parametrize(
    ("requests", "connections", "most"),
    [
        ([HEAVY, LIGHT], 8, 3),
        ([HEART_BEAT], 8, 7),
        ([LIGHT] * REQUESTS_OF_READ, 40, 16),
        ([LIGHT] * 4, 40, 40),
    ],
    ids=["heavy", "of members", "many", "few"],
)
def test_requests_of_many_connections_share_rounds(
    monkeypatch: pytest.MonkeyPatch,
    requests: list[RemotingCommand],
    connections: int,
    most: int,
) -> None:
    """280 connections that locked 1,400 queues each at once blocked a broker for 2.4 s."""
    in_rounds = [0]
    next_turn, pass_on = FairScheduler.next, Service.pass_on

    def next_noted(turns: FairScheduler) -> None:
        in_rounds.append(0)
        next_turn(turns)

    def noted(service: Service, command: RemotingCommand, peer: Peer, **gate: Any) -> bool:
        in_rounds[-1] += command.code == requests[0].code
        return pass_on(service, command, peer, **gate)

    monkeypatch.setattr(FairScheduler, "next", next_noted)
    monkeypatch.setattr(Service, "pass_on", noted)
    made = SimulatedBroker(1)  # the round of its loop is always the same one
    made.make_topic()
    of_connection = sum(each.code == requests[0].code for each in requests)
    with paired_lines(made, connections) as lines:
        with monkeypatch.context() as patch:
            patch.setattr(made.system, "drain", lambda: None)
            asked = [line.send(*requests) for line in lines]
        made.system.drain()
        answered = [[answer.opaque for answer in line.receive_now()] for line in lines]
    assert answered == asked, "in their order"
    assert max(in_rounds) == most * of_connection
    assert sum(in_rounds) == connections * of_connection


def test_requests_that_wait_for_a_turn_have_a_byte_quota() -> None:
    """Thousands of connections could each have 256 KiB of them in memory."""
    made = SimulatedBroker(1)
    heavy = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO, {}, bytes(ROUND_BYTES))
    with paired_lines(made, 4) as lines:
        limits = connection_of(made.system, lines[0])._limits
        limits.held._of_address_max = 2 * ROUND_BYTES + 4096
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made.system, "drain", lambda: None)
            for line in lines:
                line.send(heavy)
        made.system.drain()
        (closed,) = [line for line in lines if line.is_closed()]
        assert limits.held.total_bytes == 0
        answers = [line.receive_now() for line in lines if line is not closed]
        assert [[answer.code for answer in each] for each in answers] == [[0]] * 3


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record whether each read that brought data was in a "turn"."""
    read: list[str] = []
    within = ""
    receive, next_turn = Transport.receive, FairScheduler.next

    def receiving(transport: Transport) -> bytes | None:
        data = receive(transport)
        if data:
            read.append(within)
        return data

    def next_noted(turns: FairScheduler) -> None:
        nonlocal within
        within = "turn"
        next_turn(turns)
        within = ""

    monkeypatch.setattr(Transport, "receive", receiving)
    monkeypatch.setattr(FairScheduler, "next", next_noted)
    return read


def test_short_tls_records_also_cause_one_read_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = noted_reads(monkeypatch)
    monkeypatch.setattr(Transport, "is_laborious", True)
    made = SimulatedBroker(1)  # the round of its loop is always the same one
    made.make_topic()
    question = RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())
    with paired_lines(made, 3) as (plain, *lines):
        for line in lines:
            connection_of(made.system, line).has_tls = True
        for line in (*lines, plain):
            line.send(question)
        assert read == ["", "turn", ""], "later connections wait, plain ones never do"
        assert [len(line.receive_now()) for line in (*lines, plain)] == [1, 1, 1]


def test_a_long_frame_is_read_one_piece_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = noted_reads(monkeypatch)
    made = SimulatedBroker(1)  # the round of its loop is always the same one
    made.make_topic()
    question = RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())
    question.body = bytes(3 * RECEIVE_BYTES // 2)
    frame = frames_of([question])
    pieces = [frame[at : at + 60_000] for at in range(0, len(frame), 60_000)]
    with paired_lines(made, 3) as (*senders, other):
        for number, piece in enumerate(pieces):
            del read[:]
            for sender in senders:
                sender.send_bytes(piece)
            assert read == (["", ""], ["", "turn"], ["turn", "turn"])[min(number, 2)]
        for sender in senders:
            assert [answer.code for answer in sender.receive_now()] == [0], "nothing is lost"
        question.body = bytes(RECEIVE_BYTES // 2)
        other.send_bytes(frames_of([question]))
        assert read[-1] == "", "a short one does not wait"
        assert len(other.receive_now()) == 1


def test_all_requests_of_a_read_are_answered_before_the_next_read() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    header = QueueHeader("Topic", 0).encode()
    questions = [
        RemotingCommand(RequestCode.GET_MAX_OFFSET, header)
        for _ in range(2 * REQUESTS_OF_READ + 5 * REQUESTS_PER_TURN + 3)
    ]
    with paired_lines(made, 2) as (greedy, other):
        asked = greedy.send(*questions)
        other.send(questions[0])
        assert sorted(answer.opaque for answer in greedy.receive_now()) == [*asked]
        assert len(other.receive_now()) == 1
        greedy.send(questions[1])
        assert len(greedy.receive_now()) == 1, "it is read again"


def test_a_turn_decodes_at_most_its_share_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    more = Stream.more

    def counting(stream: Stream, most: int) -> list[Event]:
        events = more(stream, most)
        decoded.append(len(events))
        return events

    monkeypatch.setattr(Stream, "more", counting)
    made = SimulatedBroker(1)
    made.make_topic()
    question = RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())
    with paired_lines(made, 1) as (greedy,):
        asked = greedy.send(*[question] * (REQUESTS_OF_READ + 3 * REQUESTS_PER_TURN))
        assert len(greedy.receive_now()) == len(asked)
    assert decoded == [REQUESTS_PER_TURN] * 3  # the first ones came with the read
