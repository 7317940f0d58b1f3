"""Which queue a message goes to: a choice is a function of the queues and the message.

Another one is passed to `send` as `choose`; a queue to be taken anyhow, as `queue`.
"""

from collections.abc import Callable, Sequence
from itertools import count
from random import randrange
from zlib import crc32

from troupemq.client.message import Message, MessageQueue

QueueChoice = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Gets the queues that take messages (never none), in a fixed order."""


class RoundRobin:
    """Each queue in turn, beginning anywhere; for any thread."""

    def __init__(self) -> None:
        self._turns: dict[str, count[int]] = {}

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        turns = self._turns.get(message.topic)
        if turns is None:
            turns = self._turns.setdefault(message.topic, count(randrange(1 << 16)))
        return queues[next(turns) % len(queues)]


def by_hash_of(value: str) -> QueueChoice:
    """Always the same queue for the same value, as long as the queues stay the same."""
    digest = crc32(value.encode())
    return lambda queues, message: queues[digest % len(queues)]


def away_from(broker_names: set[str], queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    """The queues at other brokers; all, if there are no others."""
    others = [queue for queue in queues if queue.broker_name not in broker_names]
    return others or queues
