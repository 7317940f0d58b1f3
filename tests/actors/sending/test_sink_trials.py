"""Batches of sinks while the broker dies at any moment: each message is stored exactly once.

Tasks of a query send batch after batch; a batch is repeated until an attempt has sent all of it,
and sometimes another attempt of the same task is under way, dead for Spark and alive for us.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from protocol.codes import ResponseCode
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.replication import Pair
from tests.support.sinking import (
    QUERY,
    Attempt,
    chained,
    marks,
    progress_command,
    progress_in,
    pulled,
)
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.virtual_broker import LocalClient

PARTITIONS = 3
BATCHES = 5
_MAY_BE_ANSWERED = {
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SINK_BATCH_HAS_GAP,
}


class Query:
    """A query that goes on until its batches are done."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_safe = self.random.random() < 0.7
        store = replace(
            STORE,
            flush_disk_type="SYNC_FLUSH" if self.is_safe else "ASYNC_FLUSH",
            commit_log_file_bytes=1 << 14,
            flush_queue_thorough_interval_ms=self.random.choice((1000, 60_000)),
        )
        self.made = SimulatedBroker(seed, store_config=store)
        self.made.make_topic()
        self.made.system.drain()
        self.deaths: list[str] = []
        self.repeats = 0

    def attempt(self, client: LocalClient, batch: int, partition: int) -> Attempt:
        count = Random(f"{batch} {partition}").randrange(12)
        bodies = [b"%d %d %d" % (batch, partition, number) * 20 for number in range(count)]
        messages = chained(bodies)
        attempt = Attempt(client, messages, batch, partition, self.random.randint(1, 5))
        attempt.start()
        return attempt

    def run_task(self, batch: int, partition: int) -> None:
        """Attempts until one of them is done."""
        made, random = self.made, self.random
        attempts: list[Attempt] = []
        for _ in range(200):
            client = made.new_client(random.randrange(1, 9))
            attempts.append(self.attempt(client, batch, partition))
            if random.random() < 0.2:
                attempts.append(self.attempt(made.new_client(9), batch, partition))
            if random.random() < 0.5:
                some_steps(made, random.randrange(40))
            else:
                made.system.advance(random.choice((0, 1, 5, 100, 3000)))
            if random.random() < 0.25:
                for attempt in attempts:  # answers of a dead broker are lost
                    attempt.is_dead = True
                self.something_dies()
            codes = {code for attempt in attempts for code in attempt.refusals}
            assert codes <= _MAY_BE_ANSWERED, codes
            if any(attempt.is_done for attempt in attempts):
                return
            self.repeats += 1
        raise AssertionError("the batch is never done")

    def something_dies(self) -> None:
        made, chance = self.made, self.random.random()
        if chance < 0.2:
            self.deaths.append("stop")
            made.stop()
            made.start_ms = made.system.clock.now_ms()
        else:
            made.crash()
            assert isinstance(made.disk, FakeDisk)
            is_power_cut = self.is_safe and chance < 0.6
            self.deaths.append("power cut" if is_power_cut else "kill")
            seed = self.random.randrange(1 << 30)
            made.disk = made.disk.crashed(seed) if is_power_cut else made.disk.killed()
        if self.random.random() < 0.1 and made.disk.exists("/store/troupemq/sinks.json"):
            made.disk.unlink("/store/troupemq/sinks.json")
        made.start()
        made.system.advance(self.random.choice((0, 1, 2000)))


def some_steps(made: SimulatedBroker, count: int) -> None:
    """Serve a number of inbox batches of any actors.

    Then the broker may die between two of them.
    """
    done = iter(range(count + 1))
    made.system.run_until(lambda: next(done) == count)


@pytest.mark.trial(short=2, long=1000)
def test_each_message_is_stored_once_through_crashes(
    seed: int, tell: Callable[[str], None]
) -> None:
    query = Query(seed)
    expected: set[bytes] = set()
    for batch in range(BATCHES):
        for partition in range(PARTITIONS):
            query.run_task(batch, partition)
            count = Random(f"{batch} {partition}").randrange(12)
            expected |= {
                f"{QUERY}:{partition}:{batch}:{number}".encode() for number in range(count)
            }
    query.made.system.advance(3000)
    found = marks(query.made)
    assert {mark for mark, count in found.items() if count > 1} == set()
    assert set(found) == expected
    query.made.stop()
    tell(f"{len(expected)} messages, {len(query.deaths)} deaths, {query.repeats} repeats")


@pytest.mark.trial(short=4, long=300)
def test_only_messages_lost_in_a_power_cut_are_stored_again(seed: int) -> None:
    """Under ASYNC_FLUSH: what is gone from the log is gone from what is known of it, too."""
    random = Random(seed)
    made = SimulatedBroker(seed, store_config=replace(STORE, commit_log_file_bytes=1 << 14))
    made.make_topic()
    made.system.advance(2000)
    messages = chained([b"%d" % number * 50 for number in range(20)])
    for _ in range(random.randint(1, 4)):
        Attempt(made.client, messages, 0, 0, random.randint(1, 6)).start()
        if random.random() < 0.5:
            some_steps(made, random.randrange(20))
        made.system.advance(random.choice((0, 0, 1, 400, 600, 1200, 3000)))
        some_steps(made, random.randrange(40))
        made.crash()
        assert isinstance(made.disk, FakeDisk)
        made.disk = made.disk.crashed(random.randrange(1 << 30))
        made.start()
        made.system.advance(random.choice((2000, 500)))
    Attempt(made.client, messages, 0, 0, 7).start()
    made.system.advance(3000)
    assert list(marks(made).values()) == [1] * 20


@pytest.mark.trial(short=4, long=200)
def test_a_promoted_slave_has_the_acknowledged_progress(seed: int) -> None:
    """The master dies in the middle of a batch; its slave's store is started as a master's."""
    random = Random(seed)
    messages = chained([b"%d" % number * 50 for number in range(30)])
    with closing(Pair(seed, master_role="SYNC_MASTER")) as pair:
        pair.master.make_topic()
        pair.advance(random.choice((100, 20_000)))
        first = Attempt(pair.master.client, messages, 4, 0, random.randint(1, 6))
        first.start()
        if random.random() < 0.3:
            pair.advance(random.choice((50, 1000)))
        for _ in range(random.randrange(12)):
            pair.stir(random.randint(1, 3))
        answered = first.sequence
        slave = pair.slave
        pair.die(pair.master, pair.master.disk.killed())  # type: ignore[attr-defined]
        if random.random() < 0.5:
            pair.advance(100)
            pair.stop(slave)
        else:
            pair.die(slave, slave.disk.killed())  # type: ignore[attr-defined]
        slave.config = replace(slave.config, broker_role="ASYNC_MASTER", broker_id=0)
        slave.start()
        slave.make_topic()
        slave.system.advance(2000)
        found = slave.ask(progress_command())
        batch, sequence = progress_in(found)
        assert (batch, sequence) >= ((4, answered) if answered else (-1, 0))
        Attempt(slave.client, messages, 4, 0, 7).start()
        slave.system.advance(2000)
        assert list(marks(slave).values()) == [1] * 30
        bodies = [
            each.body for each in sorted(pulled(slave), key=lambda each: each.physical_offset)
        ]
        assert bodies == [each.body for each in messages]
        slave.crash()
