"""Request-reply: each reply reaches only its requester, and its sender learns whether it did."""

import pytest

from tests.support.askers import Asker, Replies
from tests.support.world import MAY_FAIL, ROUGH, World

MAY_FAIL_TOO = (*MAY_FAIL, "client_calls", "reply_message")


def check_replies(world: World, askers: list[Asker], replies: Replies) -> None:
    """Check that every reply reported as accepted has arrived."""
    for asker in askers:
        for number, body in asker.replies:
            assert number.startswith(asker.client_id)
            assert body == b"reply to " + number.encode()
    got = {number for asker in askers for number, _ in asker.replies}
    promised = {number for number, code in replies.codes if code == 0}
    assert promised <= got, f"seed {world.seed}: {promised - got} were not taken"


def ask_somebody(world: World, askers: list[Asker], number: int) -> None:
    asker = world.random.choice(askers)
    asker.ask_for(b"%b/%d" % (asker.client_id.encode(), number), queue_id=number % 4)


@pytest.mark.trial(short=3, long=500)
def test_every_request_gets_its_reply_at_once(seed: int) -> None:
    world, replies = World(seed), Replies()
    world.made.make_topic()
    askers = [world.asker() for _ in range(3)]
    for _ in range(world.random.randrange(1, 3)):
        world.consumer("group", {"Topic": "*"}, listener=replies)
    world.pass_time(25_000)  # until they have divided the queues
    for number in range(20):
        ask_somebody(world, askers, number)
        world.pass_time(world.random.choice((0, 1, 300)))
    world.pass_time(100)
    numbers = sorted(number for asker in askers for number, _ in asker.replies)
    assert numbers == sorted(body.decode() for body in world.acknowledged)
    assert {code for _, code in replies.codes} == {0}
    check_replies(world, askers, replies)
    assert len(world.made.messages("DefaultCluster_REPLY_TOPIC")) == 20
    world.check("group")


@pytest.mark.trial(short=2, long=500)
def test_an_accepted_reply_arrives_despite_crashes(seed: int) -> None:
    """Requesters lose connections and crash; the sender of an undeliverable reply gets an error."""
    world, replies = World(seed), Replies()
    random = world.random
    world.made.make_topic()
    everybody = [world.asker() for _ in range(3)]
    askers = [*everybody]
    world.consumer("group", {"Topic": "*"}, listener=replies)
    world.pass_time(1000)
    for number in range(20):
        ask_somebody(world, askers, number)
        world.pass_time(random.choice((0, 0, 1, 40, 2000)))
        world.befall(ROUGH, MAY_FAIL_TOO)
        kind = random.choices(("nothing", "link", "die", "vanish"), (10, 1, 1, 1))[0]
        if kind == "link":
            world.break_link(random.choice(askers), random.choice((1, 5000)))
        elif kind != "nothing":
            gone = random.randrange(len(askers))
            world.end(askers[gone], kind)
            world.pass_time(1)
            askers[gone] = world.asker()
            everybody.append(askers[gone])
    world.settle()
    check_replies(world, everybody, replies)
    world.check("group")
