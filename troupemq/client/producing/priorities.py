"""Priorities of messages: a range of a topic's queues for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import choice

from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.queue_choice import QueueChoice


@dataclass(frozen=True)
class PriorityMessage(Message):
    """A message with a priority, for a producer that chooses `by_priority`."""

    priority: float = field(default=0, kw_only=True)


def by_priority(most: int) -> QueueChoice:
    """Return a choice of the queue by the priority of a PriorityMessage, from 0 to `most`.

    A topic's queues share the priorities evenly; the highest have the last queue. Consumers with
    `highest_queue_first` receive them first.
    """

    def chosen(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        given = message.priority if isinstance(message, PriorityMessage) else 0
        count = 1 + max(queue.queue_id for queue in queues)
        wanted = min(max(given, 0), most) * count // (most + 1)
        fitting = [queue for queue in queues if queue.queue_id == wanted]
        return choice(fitting or queues)

    return chosen
