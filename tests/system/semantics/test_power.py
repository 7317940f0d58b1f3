"""Promises of the flush policies at a power cut, seen by a consumer."""

from dataclasses import replace

import pytest

from tests.support.brokers import STORE
from tests.support.world import World

ASYNC = replace(STORE, flush_disk_type="ASYNC_FLUSH", message_delay_level="1s 2s 3s")
POWER = {"nothing": 8, "power": 1}


def send_through_power_cuts(world: World) -> set[bytes]:
    """Gives what was sent at all."""
    random = world.random
    world.made.make_topic()
    producers = [world.producer() for _ in range(2)]
    for number in range(40):
        delay = random.choice((0, 0, 1))
        random.choice(producers).send(b"%d" % number, queue_id=random.randrange(4), level=delay)
        world.pass_time(random.choice((0, 1, 20, 600)))
        world.befall(POWER)
    world.settle()
    return {b"%d" % number for number in range(40)}


@pytest.mark.trial(short=2, long=500)
def test_sync_flush_loses_no_acknowledged_message(seed: int) -> None:
    world = World(seed)
    world.consumer("early", {"Topic": "*"})
    sent = send_through_power_cuts(world)
    world.consumer("late", {"Topic": "*"})
    world.settle()
    for group in ("early", "late"):
        world.check(group)
        assert set(world.bodies(group)) <= sent


@pytest.mark.trial(short=2, long=500)
def test_async_flush_loses_only_unflushed_messages(seed: int) -> None:
    world = World(seed, store=ASYNC)
    sent = send_through_power_cuts(world)
    world.consumer("late", {"Topic": "*"})
    world.settle()
    world.check("late")
    assert set(world.bodies("late")) <= sent
    for queue_id in range(4):
        offsets = [record.queue_offset for record in world.made.messages(queue_id=queue_id)]
        assert offsets == [*range(len(offsets))]
