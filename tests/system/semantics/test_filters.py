"""Tags and expressions: a group finds what it asks for, all of it, whenever it is there."""

from dataclasses import replace
from random import Random

import pytest

from protocol.sql92 import compile_filter
from tests.support.brokers import BROKER
from tests.support.producers import Sent
from tests.support.world import World

TAGS = ("a", "b", "AaAa", "BBBB", "")
"""AaAa and BBBB have the same hash: the broker cannot tell them apart, the client must."""
EXPRESSIONS = ("a > 5", "a <= 5", "colour = 'red' OR a = 3", "colour IS NULL", "TAGS = 'b'")
FILTERING = replace(BROKER, property_filter_enable=True)


def coloured(random: Random) -> dict[str, str]:
    """Properties, some of them missing."""
    chosen = {"a": str(random.randrange(10)), "colour": random.choice(("red", "green"))}
    return {name: value for name, value in chosen.items() if random.random() < 0.7}


@pytest.mark.trial(short=3, long=500)
def test_a_group_gets_its_subscribed_tags(seed: int) -> None:
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    wanted = random.choice(("a", "AaAa || b", "*", "BBBB"))
    world.consumer("group", {"Topic": wanted})
    for number in range(20):
        producer.send(b"%d" % number, queue_id=random.randrange(4), tag=random.choice(TAGS))
        world.pass_time(random.choice((0, 1, 50, 700)))
        world.befall()
        if random.random() < 0.1:
            world.consumer("group", {"Topic": wanted})
    world.settle()

    def is_wanted(sent: Sent) -> bool:
        return wanted == "*" or sent.properties.get("TAGS", "") in wanted.split(" || ")

    world.check("group", is_wanted)
    assert all(is_wanted(world.acknowledged[each]) for each in world.bodies("group"))


@pytest.mark.trial(short=3, long=500)
def test_a_group_gets_messages_that_its_expression_matches(seed: int) -> None:
    world = World(seed, config=FILTERING)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    expressions = {group: random.choice(EXPRESSIONS) for group in ("one", "two")}
    for group, expression in expressions.items():
        world.consumer(group, {"Topic": expression}, kind="SQL92")
    for number in range(15):
        tag = random.choice("ab")
        producer.send(b"%d" % number, queue_id=number % 4, tag=tag, properties=coloured(random))
        world.pass_time(random.choice((0, 1, 50, 700)))
        world.befall()
    world.settle()
    for group, expression in expressions.items():
        matches = compile_filter(expression)

        def lets_through(sent: Sent) -> bool:
            return matches(sent.properties) is True  # noqa: B023

        world.check(group, lets_through)
        assert all(lets_through(world.acknowledged[each]) for each in world.bodies(group))


@pytest.mark.trial(short=3, long=500)
def test_a_held_pull_is_woken_only_by_matching_messages(seed: int) -> None:
    world = World(seed, config=FILTERING)
    random = world.random
    world.made.make_topic(queues=1)
    producer = world.producer()
    world.consumer("tags", {"Topic": "a"})
    world.consumer("expressions", {"Topic": "a > 5 AND colour IS NOT NULL"}, kind="SQL92")
    world.pass_time(5000)
    for number in range(20):
        wanted = {"tags": random.random() < 0.3, "expressions": random.random() < 0.3}
        colour = {"colour": "red"} if wanted["expressions"] or random.random() < 0.5 else {}
        value = {"a": "6"} if wanted["expressions"] else {"a": "5"}
        seen, pulls = len(world.seen), len(world.pulls)
        asked_ms = world.at_ms
        producer.send(b"%d" % number, tag="a" if wanted["tags"] else "b", properties=colour | value)
        world.pass_time(20)
        new = world.seen[seen:]
        assert {each.group for each in new} == {group for group in wanted if wanted[group]}
        answered = [pull for pull in world.pulls[pulls:] if pull[2].code != 19]
        assert len(answered) == len(new)
        assert all(pull[1] - asked_ms <= 20 for pull in answered)
        world.pass_time(random.choice((0, 300, 4000)))
