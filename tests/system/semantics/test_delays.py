"""Delayed messages: on time, in the order of their level, and none lost whatever dies."""

from dataclasses import replace

import pytest

from protocol.message import MessageRecord
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from tests.support.producers import Sent
from tests.support.world import SYNC, World

OFFICIAL = replace(SYNC, message_delay_level=StoreConfig.message_delay_level)
DELAYS_MS = delay_levels_ms(OFFICIAL.message_delay_level)
LATE_MS = 100
NEAR_MS = 1500
"""A level looks at the wall clock each second, so that it is awake by then."""


def due_ms(sent: Sent) -> int:
    return sent.at_ms + DELAYS_MS[int(sent.properties["DELAY"]) - 1]


def check_levels(world: World, *, late_ms: int) -> None:
    """In time, and within each level in the order in which they were sent."""
    found = [record for queue in range(4) for record in world.made.messages(queue_id=queue)]
    delivered: dict[bytes, MessageRecord] = {}
    for record in found:
        delivered.setdefault(record.body, record)
    assert delivered.keys() == world.acknowledged.keys(), f"seed {world.seed}"
    by_level: dict[str, list[tuple[int, int]]] = {}
    for body, sent in world.acknowledged.items():
        record = delivered[body]
        late = record.store_timestamp - due_ms(sent)
        # its answer may have been held up: what counts is when it was stored
        waiting = world.made.broker.store.commit_log.read_record(sent.physical_offset)
        assert waiting is not None
        earliest = waiting.store_timestamp - sent.at_ms
        assert earliest <= late <= late_ms, f"seed {world.seed}: {sent} came {late} ms late"
        places = by_level.setdefault(sent.properties["DELAY"], [])
        places.append((sent.queue_offset, record.physical_offset))
    for level, places in by_level.items():
        offsets = [offset for _, offset in sorted(places)]
        assert offsets == sorted(offsets), f"seed {world.seed}: level {level}: {sorted(places)}"


@pytest.mark.trial(short=0, long=3)
def test_every_delay_level_is_on_time_in_two_virtual_hours(seed: int) -> None:
    world = World(seed, store=OFFICIAL)
    world.made.make_topic()
    producer = world.producer()
    producer.send(b"late", level=18)
    world.pass_time(2 * 3_600_000 - 1000)
    assert world.made.messages() == []
    world.pass_time(1200)
    check_levels(world, late_ms=LATE_MS)


@pytest.mark.trial(short=3, long=500)
def test_every_level_is_on_time_and_in_order(seed: int) -> None:
    """Up to two hours; the machine sleeps while nothing is due."""
    world = World(seed, store=OFFICIAL)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    world.consumer("group", {"Topic": "*"})
    for number in range(30):
        level = random.choice((random.randrange(1, 19), 1, 18))
        producer.send(b"%d" % number, level=level, queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 1, 10, 150)))
    world.settle()
    for sent in sorted(world.acknowledged.values(), key=due_ms):
        world.sleep(max(due_ms(sent) - world.at_ms - NEAR_MS, 0))
        if world.at_ms <= due_ms(sent) + LATE_MS:
            world.pass_time(NEAR_MS + LATE_MS)
    check_levels(world, late_ms=LATE_MS)
    world.check("group")
    assert len(world.bodies("group")) == len(world.acknowledged)


@pytest.mark.trial(short=2, long=500)
def test_no_delayed_message_is_lost_through_crashes_and_stops(seed: int) -> None:
    """Late they may be while it is down, early never; the first deliveries are in order."""
    world = World(seed, store=replace(OFFICIAL, message_delay_level="1s 5s 10s 30s"))
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    world.consumer("group", {"Topic": "*"})
    for number in range(30):
        producer.send(b"%d" % number, level=random.randrange(1, 5), queue_id=number % 4)
        world.pass_time(random.choice((0, 10, 400, 3000)))
        world.befall()
    world.settle()
    world.pass_time(40_000)
    world.check("group")
    check_levels(world, late_ms=15_000)
