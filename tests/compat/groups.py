"""Groups and their offsets, before a case counts on them."""

from tests.compat.agent import Agent
from tests.compat.patience import wait_until


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
