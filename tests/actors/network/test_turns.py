"""Tests of actors/network/turns.py: who has brought much waits for others, and they for a piece."""

import pytest

from actors.network.turns import REQUESTS_OF_READ, REQUESTS_PER_TURN, Turns
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.offset import QueueHeader
from protocol.stream import Event, Stream
from tests.support.brokers import SimulatedBroker
from tests.support.sockets import paired_lines


class Worker:
    def __init__(self, name: str, pieces: int, done: list[str]) -> None:
        self._name, self._left, self._done = name, pieces, done

    def take_turn(self) -> bool:
        self._done.append(self._name)
        self._left -= 1
        return self._left > 0


def test_turns_go_round_and_end() -> None:
    asked: list[None] = []
    done: list[str] = []
    turns = Turns(lambda: asked.append(None))
    turns.wait(Worker("a", 3, done))
    turns.wait(Worker("b", 1, done))
    while asked:
        asked.pop()
        turns.next()
    assert done == ["a", "b", "a", "a"]
    turns.next()
    assert len(done) == 4


def test_a_read_of_many_requests_is_answered_whole_and_then_the_next() -> None:
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


def test_of_a_read_no_turn_decodes_more_than_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
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
