"""Broadcast groups, whose members get every message, and batches."""

import pytest

from protocol.bodies import MessageQueue
from tests.support.world import World


@pytest.mark.trial(short=3, long=500)
def test_every_member_of_a_broadcast_group_gets_every_message(seed: int) -> None:
    """Members keep their offsets; what fails is not brought again."""
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    members, kept = [], list[dict[MessageQueue, int]]()

    def join(offsets: dict[MessageQueue, int]) -> None:
        members.append(
            world.consumer(
                "group",
                {"Topic": "*"},
                is_broadcast=True,
                local_offsets=offsets,
                listener=lambda *_: random.random() < 0.8,
            )
        )

    for _ in range(3):
        kept.append({})
        join(kept[-1])
    names = [{member.client_id} for member in members]
    for number in range(20):
        producer.send(b"%d" % number, queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 30, 900)))
        world.befall()
        if random.random() < 0.1:
            place = random.randrange(3)
            world.end(members[place], random.choice(("stop", "die")))
            world.pass_time(1)
            join(kept[place])
            members[place] = members.pop()
            names[place].add(members[place].client_id)
    world.settle()
    world.check_failures()
    for own in names:
        found = {each.body for each in world.seen if each.client_id in own}
        assert found >= world.acknowledged.keys(), f"seed {seed}: {own}"
    assert "%RETRY%group" not in {each.queue.topic for each in world.seen}
    assert not world.made.broker.tables.offsets.value.get("Topic@group")


@pytest.mark.trial(short=3, long=500)
def test_the_messages_of_a_batch_are_stored_together_and_each_is_consumed(seed: int) -> None:
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producers = [world.producer() for _ in range(3)]
    world.consumer("group", {"Topic": "a"})
    sent: list[list[bytes]] = []
    for number in range(15):
        sent.append([b"%d/%d" % (number, n) for n in range(random.choice((1, 2, 9)))])
        producer, tag = random.choice(producers), random.choice("ab")
        producer.send(*sent[-1], queue_id=random.randrange(2), tag=tag)
        world.pass_time(random.choice((0, 1, 300)))
        world.befall()
    world.settle()
    world.check("group", lambda each: each.properties["TAGS"] == "a")
    for bodies in sent:
        places = [world.acknowledged[body] for body in bodies]
        first = places[0].queue_offset
        assert [each.queue_offset for each in places] == [*range(first, first + len(places))]
        for each in places:
            record = world.made.broker.store.commit_log.read_record(each.physical_offset)
            assert record is not None
            assert (record.body, record.queue_offset) == (each.body, each.queue_offset)
