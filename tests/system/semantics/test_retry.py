"""Messages that fail come again, later each time, and lie with the dead letters in the end."""

from dataclasses import replace

import pytest

from protocol.message import MessageRecord
from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, parse
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from tests.support.consumers import Consumer
from tests.support.world import SYNC, Consumed, World

OFFICIAL = replace(SYNC, message_delay_level=StoreConfig.message_delay_level)
RETRIES = 16
FIRST_LEVEL = 3
LATE_MS = 100
DEAD = "%DLQ%group"
SECOND_MS = 1000


def is_poison(body: bytes) -> bool:
    return body.startswith(b"poison")


def poison_fails(_: Consumer, record: MessageRecord) -> bool:
    return not is_poison(record.body)


def wait_for_sight(world: World, *, asleep: bool) -> Consumed:
    """The next time that the message is seen."""
    count = len(world.seen)
    delays_ms = delay_levels_ms(world.made.store_config.message_delay_level)
    if asleep and count:
        world.pass_time(SECOND_MS)  # it is on its way back
        world.sleep(delays_ms[FIRST_LEVEL + count - 2] - 3 * SECOND_MS)
    world.made.system.run_until(lambda: len(world.seen) > count, 3 * 3_600_000)
    return world.seen[-1]


def die_hard(seed: int, *, asleep: bool) -> None:
    """Let one message fail in all of its retries."""
    world = World(seed, store=OFFICIAL)
    world.made.make_topic()
    producer = world.producer()
    for _ in range(world.random.randrange(1, 4)):
        world.consumer("group", {"Topic": "*"}, listener=poison_fails)
    world.pass_time(25 * SECOND_MS)  # until they have divided the queues
    producer.send(b"poison", tag="a", key="k")
    sights = [wait_for_sight(world, asleep=False)]
    delays_ms = delay_levels_ms(OFFICIAL.message_delay_level)
    for times in range(1, RETRIES + 1):
        sights.append(wait_for_sight(world, asleep=asleep))
        waited_ms = sights[-1].record.store_timestamp - sights[-2].at_ms
        late_ms = waited_ms - delays_ms[FIRST_LEVEL + times - 2]
        assert 0 <= late_ms <= LATE_MS, f"seed {seed}: retry {times} is {late_ms} ms late"
    world.pass_time(10 * SECOND_MS)
    assert [each.reconsume_times for each in world.seen] == [*range(RETRIES + 1)]
    (dead,) = world.made.messages(DEAD)
    properties = parse(dead.properties)
    assert (dead.body, dead.reconsume_times) == (b"poison", RETRIES + 1)
    origin = world.acknowledged[b"poison"]
    assert properties[RETRY_TOPIC] == "Topic"
    assert int(properties[ORIGIN_MESSAGE_ID][-16:], 16) == origin.physical_offset
    assert (properties["TAGS"], properties["KEYS"]) == ("a", "k")
    world.check("group", lambda sent: not is_poison(sent.body))
    world.stop()


@pytest.mark.trial(short=0, long=3)
def test_sixteen_retries_take_almost_five_hours_of_virtual_time(seed: int) -> None:
    """Awake all the time, which takes ten seconds of a processor."""
    die_hard(seed, asleep=False)


@pytest.mark.trial(short=3, long=500)
def test_each_retry_arrives_at_its_delay_level(seed: int) -> None:
    """The machine sleeps through most of the delays."""
    die_hard(seed, asleep=True)


@pytest.mark.trial(short=2, long=500)
def test_despite_crashes_each_message_is_processed_or_a_dead_letter(seed: int) -> None:
    world = World(seed)
    random = world.random
    world.made.make_topic()
    world.made.make_group("group", retry_max_times=2, retry_queue_nums=random.randrange(1, 3))
    producer = world.producer()

    def sometimes(consumer: Consumer, record: MessageRecord) -> bool:
        return poison_fails(consumer, record) and random.random() < 0.8

    def join() -> None:
        world.consumer(
            "group", {"Topic": "*"}, listener=sometimes, work_ms=lambda: random.choice((0, 30, 900))
        )

    join()
    for number in range(20):
        kind = b"poison" if random.random() < 0.2 else b"good"
        producer.send(b"%b %d" % (kind, number), queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 20, 1500, 6000)))
        world.befall()
        if random.random() < 0.15:
            members = [each for each in world.clients if isinstance(each, Consumer)]
            if len(members) > 1:
                world.end(random.choice(members), random.choice(("stop", "die", "vanish")))
            join()
    world.settle()
    world.pass_time(180_000)
    world.check_failures()
    topics = world.made.broker.tables.topics.value
    dead = {each.body for each in world.made.messages(DEAD)} if DEAD in topics else set()
    done = {*world.bodies("group")}
    assert world.acknowledged.keys() == dead | done, f"seed {seed}"
    assert {body for body in world.acknowledged if is_poison(body)} <= dead - done
    assert {each.reconsume_times for each in world.seen} <= {0, 1, 2}
