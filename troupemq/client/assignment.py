"""Which of a topic's queues a consumer of a group takes: every member works it out by itself.

All members see the same sorted lists, so their answers fit together without talking.

Source: client/consumer/rebalance/AllocateMessageQueueAveragely.java.
"""

from collections.abc import Callable, Sequence

from troupemq.client.message import MessageQueue

Assignment = Callable[[str, Sequence[str], Sequence[MessageQueue]], Sequence[MessageQueue]]
"""Own client id, sorted ids of all members, sorted queues → own queues."""


def averagely(
    own_id: str, member_ids: Sequence[str], queues: Sequence[MessageQueue]
) -> Sequence[MessageQueue]:
    """A run of neighbouring queues each; the first members get one more where it does not divide.

    None for a client that is not among the members.
    """
    if own_id not in member_ids:
        return ()
    index = member_ids.index(own_id)
    share, left_over = divmod(len(queues), len(member_ids))
    first = index * share + min(index, left_over)
    return queues[first : first + share + (index < left_over)]
