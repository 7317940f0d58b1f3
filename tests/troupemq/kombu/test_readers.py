"""Tests of kombu/readers.py: queues that live with their connection."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

pytest.importorskip("kombu", reason="kombu is not installed")

from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageResponseHeader
from protocol.message import MessageRecord, encode_record
from troupemq.client.message import RECORDS_MAX, MessageQueue
from troupemq.kombu.envelope import encode
from troupemq.kombu.link import BrokerLink
from troupemq.kombu.readers import AGAIN_MS, Read, Reading

QUEUE = MessageQueue("kx-e", "b", 0)
PAYLOAD = {"body": b"x", "properties": {"delivery_info": {"routing_key": "k"}}, "headers": {}}


class Link:
    """A link with one answer to a pull; what it should run later is kept."""

    is_running = True

    def __init__(self, body: bytes) -> None:
        fields = PullMessageResponseHeader(0, 7, 0, 7).encode()
        self.answers = [RemotingCommand(0, fields, body)]
        self.heavy: list[Callable[[], None]] = []
        self.delayed: list[tuple[float, Callable[[], None]]] = []

    def pull(self, *_: object) -> Future[RemotingCommand]:
        answer: Future[RemotingCommand] = Future()
        if self.answers:
            answer.set_result(self.answers.pop())
        return answer

    def apart(self, task: Callable[[], None]) -> None:
        self.heavy.append(task)

    def later(self, delay_ms: float, task: Callable[[], None]) -> None:
        self.delayed.append((delay_ms, task))

    def route_in_doubt(self, topic: str) -> None:
        assert topic == QUEUE.topic


def reading(link: Any, taken: list[list[Read]]) -> dict[MessageQueue, int]:
    offsets = {QUEUE: 0}
    made = Reading(cast(BrokerLink, link), offsets, taken.append, lambda: True)
    made.add(lambda key: key == "k", None)
    made.start()
    return offsets


def test_a_long_answer_is_not_read_where_answers_arrive() -> None:
    """One of 16 MiB took 2 s of the I/O thread."""
    taken: list[list[Read]] = []
    link = Link(encode_record(MessageRecord(QUEUE.topic, encode(PAYLOAD))) * 200)
    offsets = reading(link, taken)
    assert not taken
    link.heavy.pop()()
    assert not taken, "the I/O thread takes the messages"
    ((delay_ms, take),) = link.delayed
    take()
    assert delay_ms == 0
    assert [len(each) for each in taken] == [200]
    assert offsets == {QUEUE: 7}


def test_an_answer_with_more_messages_than_any_client_asks_for_is_refused() -> None:
    taken: list[list[Read]] = []
    link = Link(encode_record(MessageRecord(QUEUE.topic, b"")) * (RECORDS_MAX + 1))
    offsets = reading(link, taken)
    link.heavy.pop()()
    link.delayed.pop()[1]()
    assert [delay_ms for delay_ms, _ in link.delayed] == [AGAIN_MS]
    assert not taken
    assert offsets == {QUEUE: 0}
