"""Groups: what their members got and have committed, before a case counts on it."""

from collections.abc import Mapping

from tests.compat.agent import Agent, Event
from tests.compat.patience import PATIENCE_S, wait_until
from tests.compat.remoting import stored_offset
from tests.compat.servers import Broker


def receive(agent: Agent, member: str, count: int, timeout_s: float = PATIENCE_S) -> list[Event]:
    """Return the messages of a member once a number have arrived."""
    what = f"{count} messages at {member}"
    wait_until(lambda: len(agent.received(member)) >= count, what, timeout_s)
    return agent.received(member)


def wait_for_commits(broker: Broker, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Until the broker has stored these offsets of the group, by queue; each above 0.

    A consumer commits seconds after it has consumed. What an administrator asks before that is
    answered as of a group that has never been there.
    """
    wait_until(
        lambda: all(
            stored_offset(broker.address, group, topic, queue_id, broker.asked_as) == offset
            for queue_id, offset in offsets.items()
        ),
        f"the offsets of {group} at the broker",
    )


def settle_group(agent: Agent, group: str, topic: str, queues: int) -> None:
    """Lets a group commit once where the official broker would lose some of its first offsets.

    ConsumerOffsetManager.commitOffset makes the group's table without a lock: of the first offsets
    that arrive at the same time, one a queue, the last table to be made is the one that stays.
    """
    if agent.broker.kind != "official":
        return  # ours keeps the first ones too
    member = f"settles-{group}"
    agent.join(member, group, topic)
    wait_until(lambda: len(agent.assigned(member)) == queues, f"{queues} queues at {member}")
    agent.leave(member)
