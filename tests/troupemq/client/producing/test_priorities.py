"""Priorities of messages, and the queues that they share."""

from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.priorities import PriorityMessage, by_priority

MESSAGE = Message("T", b"x")


def test_priorities_share_the_queues_of_a_topic() -> None:
    queues = [MessageQueue("T", name, queue_id) for name in "ab" for queue_id in range(4)]
    choose = by_priority(9)
    chosen = {
        priority: choose(queues, PriorityMessage("T", b"x", priority=priority)).queue_id
        for priority in (-1, *range(10), 99)
    }
    assert [chosen[each] for each in range(10)] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert (chosen[-1], chosen[99]) == (0, 3)
    assert choose(queues, MESSAGE).queue_id == 0
    assert choose(queues[:1], PriorityMessage("T", b"x", priority=9)) == queues[0]
    gaps = [queues[0], queues[3]]
    assert choose(gaps, PriorityMessage("T", b"x", priority=5)) in gaps
