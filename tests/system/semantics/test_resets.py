"""A group is sent back while its members are there: all begin again where they were sent."""

import pytest

from protocol.bodies import MessageQueue
from protocol.bodies_client import ResetOffsetBody
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ResetOffsetHeader
from tests.support.consumers import RESET_MS
from tests.support.world import World

GROUP = "group"


def reset(world: World, timestamp_ms: int) -> dict[MessageQueue, int]:
    """Reset as an administrator does; return the new offset of each queue."""
    header = ResetOffsetHeader("Topic", GROUP, timestamp_ms, is_force=True)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    answer = world.made.ask(RemotingCommand(code, header.encode()))
    assert answer.code == 0, answer
    return ResetOffsetBody.decode(answer.body).offset_table


@pytest.mark.trial(short=2, long=500)
def test_a_reset_by_time_redelivers_every_later_message(seed: int) -> None:
    """Members come, go and die around it; the broker may lose its power right after it."""
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    members = [
        world.consumer(GROUP, {"Topic": "*"}, work_ms=lambda: random.choice((0, 0, 100)))
        for _ in range(random.randrange(1, 4))
    ]
    started_ms = world.at_ms
    for number in range(20):
        producer.send(b"%d" % number, queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 10, 1000, 3000)))
    world.pass_time(30_000)
    world.check(GROUP)
    target_ms = random.randrange(started_ms, world.at_ms)
    seen = len(world.seen)
    offsets = reset(world, target_ms)
    for sent in world.acknowledged.values():
        if sent.at_ms > target_ms:
            low = [each for queue, each in offsets.items() if queue.queue_id == sent.queue_id]
            assert low[0] <= sent.queue_offset, f"seed {seed}: {sent} is left out"
    world.pass_time(random.choice((50, 3000)))
    kind = random.choice(("nothing", "die", "vanish", "stop", "power", "kill", "restart", "join"))
    if kind in ("die", "vanish", "stop"):
        world.end(members[0], kind)
    elif kind != "nothing" and kind != "join":
        world.befall({kind: 1})
    if kind in ("die", "vanish", "stop", "join"):
        world.consumer(GROUP, {"Topic": "*"})
    producer.send(b"after", queue_id=0)
    world.settle()
    world.pass_time(RESET_MS + 150_000)
    again = {each.body for each in world.seen[seen:]}
    due = {
        sent.body
        for sent in world.acknowledged.values()
        for queue, offset in offsets.items()
        if queue.queue_id == sent.queue_id and sent.queue_offset >= offset
    }
    assert due <= again, f"seed {seed}, {kind}: {sorted(due - again)} did not come again"
    world.check(GROUP)
