"""What a broker promises when the power fails: seed by seed, on a disk that forgets.

Producers send at random into a simulated broker; the power fails at a random moment; the disk keeps
or drops every unsynced page; the broker starts again and a consumer reads everything.
To repeat one: make trials ROUNDS=1 SEED=<it> ARGS='-k power_loss'.
"""

from dataclasses import replace
from random import Random

import pytest

from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from storage.errors import StoreError
from tests.support.brokers import STORE, SimulatedBroker, send_command
from tests.support.fake_disk import FakeDisk

QUEUES = 4
STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)


class Producers:
    """Sends numbered messages, and remembers which of them were acknowledged."""

    def __init__(self, broker: SimulatedBroker, random: Random) -> None:
        self._broker = broker
        self._random = random
        self.sent: list[bytes] = []
        self.acknowledged: set[bytes] = set()

    def send(self) -> None:
        body = b"%d:" % len(self.sent) + self._random.randbytes(self._random.randrange(600))
        self.sent.append(body)
        command = send_command(body, queue_id=self._random.randrange(QUEUES))

        def taken(answer: RemotingCommand) -> None:
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged.add(body)

        self._broker.client.start(command, taken)


def lose_power(seed: int, flush: str, *, with_sync: bool = True) -> tuple[Producers, list[bytes]]:
    """One run; gives what was sent and what a consumer finds after the power is back."""
    random = Random(seed)
    config = replace(STORE, flush_disk_type=flush, commit_log_file_bytes=16_384)
    disk = FakeDisk(without_sync=not with_sync)
    broker = SimulatedBroker(seed, disk, store_config=config)
    assert broker.send(b"first").code == ResponseCode.SUCCESS  # makes the topic
    producers = Producers(broker, random)
    for _ in range(random.randrange(5, 60)):
        for _ in range(random.choice((1, 1, 2, 8))):
            producers.send()
        if random.random() < 0.7:
            broker.system.advance(random.choice((0.1, 1, 10, 300)))
    broker.crash()
    broker.disk = disk.crashed(seed)
    broker.start()
    found = [record.body for queue in range(QUEUES) for record in broker.messages(queue_id=queue)]
    order_holds(broker)
    assert broker.send(b"goes on").code == ResponseCode.SUCCESS
    broker.stop()
    return producers, found


def order_holds(broker: SimulatedBroker) -> None:
    """Offsets of a queue follow each other, and so do the numbers of its messages."""
    for queue_id in range(QUEUES):
        records = broker.messages(queue_id=queue_id)
        offsets = [record.queue_offset for record in records]
        assert offsets == [*range(offsets[0], offsets[0] + len(offsets))] if offsets else True
        numbers = [int(r.body.split(b":")[0]) for r in records if b":" in r.body]
        assert numbers == sorted(numbers)


@pytest.mark.trial(short=100, long=500)
def test_sync_flush_loses_nothing_acknowledged(seed: int) -> None:
    producers, found = lose_power(seed, "SYNC_FLUSH")
    lost = producers.acknowledged - set(found)
    assert not lost, f"seed {seed}: {len(lost)} acknowledged messages are gone"


@pytest.mark.trial(short=100, long=500)
def test_async_flush_loses_only_the_tail(seed: int) -> None:
    _, found = lose_power(seed, "ASYNC_FLUSH")
    numbers = {int(body.split(b":")[0]) for body in found if b":" in body}
    assert numbers == set(range(len(numbers))), f"seed {seed}: a gap followed by data"


def test_without_fdatasync_acknowledged_messages_would_be_lost() -> None:
    """The promise of SYNC_FLUSH hangs on the sync and on nothing else."""
    losses = 0
    for seed in range(1, 11):
        try:
            producers, found = lose_power(seed, "SYNC_FLUSH", with_sync=False)
            losses += bool(producers.acknowledged - set(found))
        except StoreError:  # the store cannot even be opened
            losses += 1
    assert losses > 0
