"""Consumer offsets and held pulls after crashes, failures and long silences."""

from collections.abc import Mapping

import pytest

from protocol.codes import ResponseCode
from tests.support.brokers import BROKER
from tests.support.consumers import HOLD_MS
from tests.support.world import ROUGH, World

UNSAVED_MS = BROKER.flush_consumer_offset_interval_ms + 100
GROUP = "group"


def check_offsets(world: World, crash_ms: int) -> None:
    """Check that the broker's offsets are those committed just before the crash."""
    offsets: Mapping[int, int] = world.made.broker.tables.offsets.value.get(f"Topic@{GROUP}", {})
    for queue in world.queues("Topic"):
        commits = [(each[0], each[3]) for each in world.commit_log if each[2] == queue]
        old = [each for each in commits if each[0] < crash_ms - UNSAVED_MS]
        last_ms = old[-1][0] if old else 0
        lowest = min([value for at, value in commits if at >= last_ms], default=0) if old else 0
        found = offsets.get(queue.queue_id, 0)
        assert lowest <= found, f"seed {world.seed}: {queue} at {found}: {commits}"
        assert found in {0, *(value for _, value in commits)}, f"seed {world.seed}: {commits}"
        world.commit_log.append((crash_ms, GROUP, queue, found))


@pytest.mark.trial(short=2, long=500)
def test_a_crash_repeats_at_most_one_commit_interval(seed: int) -> None:
    """And never beyond what it has committed: that it sees again, and nothing is left out."""
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    for _ in range(random.randrange(1, 3)):
        world.consumer(GROUP, {"Topic": "*"}, work_ms=lambda: random.choice((0, 0, 100, 3000)))
    for number in range(30):
        producer.send(b"%d" % number, queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 10, 500, 4000)))
        if random.random() < 0.12:
            crash_ms = world.at_ms
            if random.random() < 0.5:
                world.cut_power()
            else:
                world.kill()
            check_offsets(world, crash_ms)
    world.settle()
    world.check(GROUP)


@pytest.mark.trial(short=2, long=500)
def test_every_pull_is_answered_and_an_idle_one_at_its_deadline(seed: int) -> None:
    """Whatever fails; a pull is never left silent."""
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    world.consumer(GROUP, {"Topic": "*"})
    world.pass_time(21_000)  # until it has found the queue of its retries
    world.pulls.clear()
    world.pass_time(100_000)
    assert {answer.code for _, _, answer in world.pulls} == {ResponseCode.PULL_NOT_FOUND}
    waits_ms = [answered_ms - asked_ms for asked_ms, answered_ms, _ in world.pulls]
    assert len(waits_ms) >= 5 * 6  # four queues and the one for retries
    assert all(HOLD_MS <= wait_ms <= HOLD_MS + 100 for wait_ms in waits_ms), waits_ms
    for number in range(15):
        producer.send(b"%d" % number, queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 10, 4000, 20_000)))
        world.befall(ROUGH | {"fail": 8})
    world.settle()
    world.check(GROUP)


@pytest.mark.trial(short=2, long=500)
def test_a_stop_loses_no_offset_and_processes_nothing_twice(seed: int) -> None:
    world = World(seed)
    random = world.random
    world.made.make_topic()
    producer = world.producer()
    member = world.consumer(GROUP, {"Topic": "*"})
    for number in range(20):
        producer.send(b"%d" % number, queue_id=random.randrange(4))
        world.pass_time(random.choice((0, 10, 500, 4000)))
        if random.random() < 0.2:
            world.end(member, "stop")
            world.pass_time(random.choice((0, 3)))
            world.befall({"restart": 1, "power": 0})
            member = world.consumer(GROUP, {"Topic": "*"})
    world.settle()
    world.check(GROUP)
    assert len(world.bodies(GROUP)) == len(world.acknowledged)
