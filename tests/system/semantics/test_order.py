"""Orderly consumption keeps one member a queue and its order, while members and brokers change."""

from typing import Any

import pytest

from actors.consumers.queue_locks import LOCK_LIVES_MS
from tests.support.consumers import REBALANCE_MS, Consumer
from tests.support.producers import Producer
from tests.support.world import MAY_FAIL, ROUGH, World

HARMLESS = tuple({*MAY_FAIL} - {"clients"})
"""Actors that may fail while the locks must hold.

Locks live in Clients and end with it, as in 4.9.7.
"""
QUEUES = 5


def members_change(world: World, **options: Any) -> None:
    """Let a member join, leave, crash, or lose its connection for a while."""
    random = world.random
    members = [each for each in world.clients if isinstance(each, Consumer) and each.is_alive]
    kind = random.choices(("join", "stop", "die", "vanish", "link", "nothing"), (2, 1, 1, 1, 1, 8))[
        0
    ]
    if kind == "join" and len(members) < 5:
        world.consumer("group", {"Topic": "*"}, is_orderly=True, **options)
    elif kind == "link" and members:
        world.break_link(random.choice(members), random.choice((100, 5000, 40_000)))
    elif kind in ("stop", "die", "vanish") and len(members) > 1:
        world.end(random.choice(members), kind)


def send_numbered(world: World, producers: list[Producer], number: int) -> None:
    """Each queue has a producer of its own: so its order is known."""
    queue_id = world.random.randrange(QUEUES)
    producers[queue_id].send(b"%d %d" % (queue_id, number), queue_id=queue_id)


def check_numbers(world: World) -> None:
    """Check that messages are consumed in the order of their sends."""
    for queue_id in range(QUEUES):
        bodies = [each.body for each in world.seen if each.queue.queue_id == queue_id]
        numbers = [int(body.split()[1]) for body in dict.fromkeys(bodies)]
        assert numbers == sorted(numbers), f"seed {world.seed}: queue {queue_id}: {numbers}"


def settle(world: World) -> None:
    """Until what vanished is found out, its locks are over, and others have caught up."""
    world.settle()
    world.pass_time(120_000 + LOCK_LIVES_MS + 2 * REBALANCE_MS)


@pytest.mark.trial(short=2, long=500)
def test_no_two_members_work_on_a_queue_and_its_order_is_kept(seed: int) -> None:
    """Processing is slow; a message that fails holds its queue until it is through."""
    world = World(seed)
    random = world.random
    world.made.make_topic(queues=QUEUES)
    producers = [world.producer() for _ in range(QUEUES)]
    options: dict[str, Any] = {
        "work_ms": lambda: random.choice((0, 1, 200, 5000)),
        "listener": lambda *_: random.random() < 0.9,
    }
    world.consumer("group", {"Topic": "*"}, is_orderly=True, **options)
    for number in range(40):
        send_numbered(world, producers, number)
        world.pass_time(random.choice((0, 10, 1000, 10_000)))
        members_change(world, **options)
        world.befall({"nothing": 9, "fail": 1}, HARMLESS)
    settle(world)
    world.check("group")
    world.check_order("group")
    check_numbers(world)


@pytest.mark.trial(short=2, long=500)
def test_queue_order_survives_a_broker_crash(seed: int) -> None:
    """After a crash the locks are free, so two members may work on a queue for a while."""
    world = World(seed)
    world.is_exclusive = False
    random = world.random
    world.made.make_topic(queues=QUEUES)
    producers = [world.producer() for _ in range(QUEUES)]
    world.consumer("group", {"Topic": "*"}, is_orderly=True)
    for number in range(30):
        send_numbered(world, producers, number)
        world.pass_time(random.choice((0, 10, 1000, 10_000)))
        members_change(world)
        world.befall(ROUGH)
    settle(world)
    world.check("group")
    world.check_order("group")
    check_numbers(world)
