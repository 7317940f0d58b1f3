"""Transactions with every outcome and with check-backs, while producers and brokers crash."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.brokers import BROKER
from tests.support.transacting import COMMIT, MAX_TIME, ROLLBACK, UNKNOWN
from tests.support.transactors import Transactor, Verdicts
from tests.support.world import MAY_FAIL, ROUGH, World

INTERVAL_MS = 10_000
OFTEN = replace(BROKER, transaction_check_interval_ms=INTERVAL_MS)
MAY_FAIL_TOO = (*MAY_FAIL, "transactions")


def begin_some(world: World, verdicts: Verdicts, number: int) -> None:
    """One transaction, of any kind."""
    random = world.random
    outcome = random.choice((COMMIT, ROLLBACK))
    producers = [each for each in world.clients if isinstance(each, Transactor)]
    random.choice([each for each in producers if each.is_alive]).begin(
        b"%d" % number,
        outcome,
        local=random.choice((outcome, outcome, UNKNOWN, None)),
        unknown=random.choice((0, 0, 1, 2)),
        queue_id=random.randrange(4),
    )


def settled(world: World) -> None:
    """Until every question has been asked often enough."""
    world.settle()
    world.pass_time(8 * INTERVAL_MS)


@pytest.mark.trial(short=2, long=500)
def test_committed_messages_are_consumed_once_and_rolled_back_ones_never(seed: int) -> None:
    """Nothing dies: so each commit is seen exactly once, and only the open ones are asked about."""
    world, verdicts = World(seed, config=OFTEN), Verdicts()
    world.made.make_topic()
    for _ in range(2):
        world.transactor(verdicts)
    world.consumer("group", {"Topic": "*"})
    for number in range(20):
        begin_some(world, verdicts, number)
        world.pass_time(world.random.choice((0, 1, 500, 7000)))
    settled(world)
    seen = Counter(world.bodies("group"))
    committed = {body for body, outcome in verdicts.outcomes.items() if outcome == COMMIT}
    assert seen == Counter(committed), f"seed {seed}"
    ended = {body for body, verdict in verdicts.local.items() if verdict}
    assert not ended & {*verdicts.asked}, f"seed {seed}: asked about what had been ended"
    assert {*verdicts.asked} == verdicts.outcomes.keys() - ended
    assert world.made.broker.store.transaction_table.pending_count == 0


@pytest.mark.trial(short=2, long=500)
def test_no_transaction_outcome_is_lost_or_reversed_by_crashes(seed: int) -> None:
    """Each commit is delivered once. Producers die too: the others of their group are asked."""
    world, verdicts = World(seed, config=OFTEN), Verdicts()
    random = world.random
    world.made.make_topic()
    producers = [world.transactor(verdicts) for _ in range(2)]
    world.consumer("group", {"Topic": "*"})
    for number in range(20):
        begin_some(world, verdicts, number)
        world.pass_time(random.choice((0, 1, 50, 500, 7000)))
        world.befall(ROUGH, MAY_FAIL_TOO)
        if random.random() < 0.1:
            place = random.randrange(2)
            world.end(producers[place], random.choice(("die", "vanish")))
            world.pass_time(1)
            producers[place] = world.transactor(verdicts)
    settled(world)
    world.pass_time(130_000)
    seen = {*world.bodies("group")}
    committed = {body for body in verdicts.halves if verdicts.outcomes[body] == COMMIT}
    rolled_back = {body for body, outcome in verdicts.outcomes.items() if outcome == ROLLBACK}
    assert committed <= seen, f"seed {seed}: lost {committed - seen}"
    assert not seen & rolled_back, f"seed {seed}: {seen & rolled_back} were rolled back"
    delivered = Counter(each.body for n in range(4) for each in world.made.messages(queue_id=n))
    assert {body: n for body, n in delivered.items() if n > 1} == {}, (
        f"seed {seed}: delivered twice"
    )
    assert world.made.broker.store.transaction_table.pending_count == 0
    world.check("group")


@pytest.mark.trial(short=3, long=500)
def test_transactions_of_unknown_state_are_discarded_and_not_consumed(seed: int) -> None:
    times = 3
    world, verdicts = World(seed, config=replace(OFTEN, transaction_check_max=times)), Verdicts()
    world.made.make_topic()
    producer = world.transactor(verdicts)
    world.consumer("group", {"Topic": "*"})
    count = world.random.randrange(1, 6)
    for number in range(count):
        local = world.random.choice((UNKNOWN, None))
        producer.begin(b"%d" % number, UNKNOWN, local=local, queue_id=number % 4)
        world.pass_time(world.random.choice((0, 3000)))
    settled(world)
    assert world.bodies("group") == []
    assert Counter(verdicts.asked) == dict.fromkeys(verdicts.outcomes, times)
    assert {record.body for record in world.made.messages(MAX_TIME)} == verdicts.outcomes.keys()
    assert world.made.broker.store.transaction_table.pending_count == 0
