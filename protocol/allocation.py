"""The rules by which the members of a consumer group divide the queues of a topic.

Each member's part follows from the same sorted lists, so that no member has to ask another.

Source: client/consumer/rebalance/AllocateMessageQueueAveragely.java,
AllocateMessageQueueAveragelyByCircle.java.
"""

from collections.abc import Sequence
from typing import TypeVar

Q = TypeVar("Q")


def averagely(own_id: str, member_ids: Sequence[str], queues: Sequence[Q]) -> Sequence[Q]:
    """Return a run of neighbouring queues; the first members get the remainder, one each.

    A client that is not a member gets no queues. This is the default rule.
    """
    if own_id not in member_ids:
        return ()
    index = member_ids.index(own_id)
    share, left_over = divmod(len(queues), len(member_ids))
    first = index * share + min(index, left_over)
    return queues[first : first + share + (index < left_over)]


def averagely_by_circle(own_id: str, member_ids: Sequence[str], queues: Sequence[Q]) -> Sequence[Q]:
    """Return every n-th queue for n members, so that each member has queues of every broker."""
    if own_id not in member_ids:
        return ()
    return queues[member_ids.index(own_id) :: len(member_ids)]
