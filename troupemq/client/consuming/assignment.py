"""Assignment rules: functions that return a member's queues of a topic.

Each member computes its own queues. All members see the same sorted lists, so their results fit
together without communication. All members of a group must use the same rule.

Source: client/consumer/rebalance/AllocateMessageQueue*.java, common/consistenthash/*.java.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence

from protocol.allocation import averagely, averagely_by_circle
from troupemq.client.arguments import check_integer
from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.errors import ArgumentIllegal, ResultUnknown
from troupemq.client.message import MessageQueue, check_queues

Assignment = Callable[[str, Sequence[str], Sequence[MessageQueue]], Sequence[MessageQueue]]
"""Function (own client id, sorted ids of all members, sorted queues) → own queues."""

ASSIGNS = ("own_id", "member_ids", "queues")
__all__ = ["averagely", "averagely_by_circle", "by_config", "by_machine_room", "consistent_hash"]

VIRTUAL_NODES = 10
VIRTUAL_NODES_MAX = 10_000
_HASH_BYTES = 4


def check_assignment(assign: object) -> None:
    """Raise ArgumentIllegal for an invalid rule, such as `consistent_hash` without its call."""
    for each in (consistent_hash, by_config, by_machine_room):
        if assign is each:
            name = each.__name__
            raise ArgumentIllegal(f"assign is {name} itself: call it, such as {name}(...)")
    check_callback(assign, "assign", *ASSIGNS)


def share_of(
    assign: Assignment, own_id: str, member_ids: Sequence[str], queues: Sequence[MessageQueue]
) -> frozenset[MessageQueue]:
    """Return the queues that `assign` returns.

    Raises ResultUnknown for any other result, as some queues would silently not be consumed.
    """
    taken = assign(own_id, member_ids, queues)
    if isinstance(taken, str | bytes) or not isinstance(taken, Iterable):
        raise unknown_result(taken, "assign", "it returns a list of queues")
    share = frozenset(taken)
    if others := share.difference(queues):
        raise ResultUnknown(f"assign returned {next(iter(others))!r}, not one of the queues")
    return share


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Assignment:
    """Return a rule that moves few queues when members change, with uneven shares.

        PushConsumer("billing", listen, assign=consistent_hash())

    Each member has `virtual_nodes` positions on a hash ring; a queue belongs to the next one.
    """
    check_integer(virtual_nodes, 1, VIRTUAL_NODES_MAX, "virtual_nodes")

    def assign(
        own_id: str, member_ids: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        if own_id not in member_ids:
            return ()
        ring: dict[int, str] = {}
        for member_id in member_ids:
            for number in range(virtual_nodes):
                ring[_place(f"{member_id}-{number}")] = member_id
        places = sorted(ring)
        if not places:
            return ()

        def owner(queue: MessageQueue) -> str:
            place = bisect_left(places, _place(_java_text(queue)))
            return ring[places[place % len(places)]]

        return [queue for queue in queues if owner(queue) == own_id]

    return assign


def by_config(own_queues: Sequence[MessageQueue]) -> Assignment:
    """Return a rule that always takes the given queues, as far as the topic has them.

    The lists of a group's members must not overlap; nothing checks this.
    """
    own = check_queues(own_queues, "by_config's queues")
    return lambda own_id, member_ids, queues: [each for each in own if each in queues]


def by_machine_room(rooms: Collection[str]) -> Assignment:
    """Return a rule like `averagely` for the brokers of some rooms, named `room@name`.

    The remainder, at the end of the list, goes to the first members, one queue each.
    """
    if isinstance(rooms, str | bytes) or not all(isinstance(room, str) for room in rooms):
        raise ArgumentIllegal(f"rooms are a list of names, and not {rooms!r}")
    wanted = frozenset(rooms)

    def assign(
        own_id: str, member_ids: Sequence[str], queues: Sequence[MessageQueue]
    ) -> Sequence[MessageQueue]:
        if own_id not in member_ids:
            return ()
        index, count = member_ids.index(own_id), len(member_ids)
        near = [queue for queue in queues if _room(queue.broker_name) in wanted]
        share, left_over = divmod(len(near), count)
        own = near[share * index : share * (index + 1)]
        return [*own, near[index + share * count]] if index < left_over else own

    return assign


def _room(broker_name: str) -> str | None:
    """Return the room of a broker name, or None; as in Java, trailing empty parts are ignored."""
    parts = broker_name.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None


def _place(text: str) -> int:
    from hashlib import md5  # no other rule loads OpenSSL

    digest = md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big")


def _java_text(queue: MessageQueue) -> str:
    """Return Java's MessageQueue.toString, which the ring hashes."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )
