"""A broker's life under simulation: produce, die, recover, consume, again and again from one seed.

The process dies at a random moment, the machine does not: whatever was acknowledged is in the log,
SYNC_FLUSH or not.  The seed is printed, and repeats the run exactly (make trials SEED=<it>).
"""

from dataclasses import replace
from random import Random

import pytest

from protocol.codes import ResponseCode
from tests.support.brokers import STORE, SimulatedBroker
from tests.system.test_power_loss import QUEUES, Producers, order_holds
from troupemq.testing.fake_disk import FakeDisk

LIVES = 5


def live(seed: int, flush: str) -> tuple[set[bytes], list[bytes], list[int]]:
    """Five lives of one broker; what was acknowledged, what is found, where the log ended."""
    random = Random(seed)
    config = replace(STORE, flush_disk_type=flush, commit_log_file_bytes=16_384)
    disk = FakeDisk()
    broker = SimulatedBroker(seed, disk, store_config=config)
    assert broker.send(b"first").code == ResponseCode.SUCCESS
    ends = []
    producers = Producers(broker, random)
    for _ in range(LIVES):
        for _ in range(random.randrange(30)):
            producers.send()
            if random.random() < 0.5:
                broker.system.advance(random.choice((0.1, 1, 10, 300)))
        broker.crash()
        broker.disk = disk = disk.killed()
        broker.start()
        ends.append(broker.broker.store.commit_log.end_offset)
    acknowledged = set(producers.acknowledged)
    order_holds(broker)
    found = [record.body for queue in range(QUEUES) for record in broker.messages(queue_id=queue)]
    broker.stop()
    return acknowledged, found, ends


@pytest.mark.trial(short=1, long=200)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_acknowledged_messages_are_consumed_after_every_crash(seed: int, flush: str) -> None:
    print(f"seed {seed}")
    acknowledged, found, _ = live(seed, flush)
    assert acknowledged <= set(found)


def test_one_seed_always_gives_the_same_run() -> None:
    assert live(7, "SYNC_FLUSH") == live(7, "SYNC_FLUSH")
