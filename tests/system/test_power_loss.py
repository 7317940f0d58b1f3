"""Promises of a broker at a power cut, on a simulated disk that loses unsynced pages.

Producers send at random to a simulated broker. The power fails at a random moment, and the disk
keeps or drops every unsynced page. The broker starts again, and a consumer reads everything. To
repeat one: make trials ROUNDS=1 SEED=<it> ARGS='-k power_loss'.
"""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from protocol.codes import PULL_COMMIT_OFFSET, ResponseCode
from protocol.frame import RemotingCommand
from storage.config import StoreConfig
from storage.errors import StoreError
from tests.support.brokers import STORE, SimulatedBroker, send_command
from troupemq.testing.fake_disk import PAGE_BYTES, FakeDisk

QUEUES = 4
HOUR_MS = 3_600_000
STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of an acknowledged message, and the time of its answer."""

    offset: int
    at_ms: int


def place_of(answer: RemotingCommand, broker: SimulatedBroker) -> Place:
    assert answer.fields is not None
    return Place(int(answer.fields["msgId"][-16:], 16), broker.system.clock.now_ms())


def flushed(acknowledged: dict[bytes, Place], config: StoreConfig, now_ms: int) -> set[bytes]:
    """Return the messages that ASYNC_FLUSH must have flushed by now.

    These are all older than the long interval. After the last tick they also include all that
    existed then, if there were enough pages.
    """
    tick_ms = config.flush_interval_ms
    old_ms = now_ms - config.flush_thorough_interval_ms - tick_ms
    at_tick = [each.offset for each in acknowledged.values() if each.at_ms < now_ms - tick_ms]
    enough = max(at_tick, default=0) - config.flush_least_pages * PAGE_BYTES
    return {
        body
        for body, place in acknowledged.items()
        if place.at_ms < old_ms or place.offset <= enough
    }


class Producers:
    """Sends numbered messages, and remembers which of them were acknowledged."""

    def __init__(self, broker: SimulatedBroker, random: Random) -> None:
        self._broker = broker
        self._random = random
        self.sent: list[bytes] = []
        self.acknowledged: dict[bytes, Place] = {}
        self.flushed: set[bytes] = set()
        """Bodies that ASYNC_FLUSH had to flush before the power cut."""

    def send(self) -> None:
        body = b"%d:" % len(self.sent) + self._random.randbytes(self._random.randrange(600))
        self.sent.append(body)
        command = send_command(body, queue_id=self._random.randrange(QUEUES))

        def taken(answer: RemotingCommand) -> None:
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged[body] = place_of(answer, self._broker)

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
    producers.flushed = flushed(producers.acknowledged, config, broker.system.clock.now_ms())
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


@dataclass
class Life:
    """Promises made before the power cut, for a store that rolls, deletes and is administered."""

    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    flushed: set[bytes] = field(default_factory=set)
    """Bodies that ASYNC_FLUSH had to flush before the power cut."""
    topics: dict[str, int] = field(default_factory=dict)
    """Topics of which an answer said that they have so many queues."""


def busy_life(seed: int, flush: str) -> tuple[Life, SimulatedBroker]:
    """Sends, rolls, deletions, new topics and groups, offsets; the broker after the power is back.

    Files of an hour's age are deleted at any hour, and nights pass.
    """
    random = Random(f"busy/{seed}")
    config = replace(
        STORE,
        flush_disk_type=flush,
        commit_log_file_bytes=8192,
        consume_queue_file_bytes=600,
        file_reserved_hours=1,
        delete_when=";".join(map(str, range(24))),
    )
    disk, life = FakeDisk(), Life()
    broker = SimulatedBroker(seed, disk, store_config=config)
    assert broker.send(b"first").code == ResponseCode.SUCCESS
    for number in range(random.randrange(4, 30)):
        act(broker, random, life, number)
        disk.now_ms = broker.system.clock.now_ms()
    life.flushed = flushed(life.acknowledged, config, disk.now_ms)
    broker.crash()
    broker.disk = disk.crashed(seed)
    broker.start()
    return life, broker


def act(broker: SimulatedBroker, random: Random, life: Life, number: int) -> None:
    """One thing that a broker goes through."""
    kind = random.choices(("send", "topic", "offset", "wait", "night"), (10, 2, 2, 3, 1))[0]
    if kind == "send":
        for each in range(random.randrange(1, 12)):
            body = b"%d/%d:" % (number, each) + random.randbytes(random.randrange(500))
            queue_id = random.randrange(QUEUES)

            def taken(answer: RemotingCommand, body: bytes = body) -> None:
                if answer.code == ResponseCode.SUCCESS:
                    life.acknowledged[body] = place_of(answer, broker)

            broker.client.start(send_command(body, queue_id=queue_id), taken)
    elif kind == "topic":
        name, queues = f"Topic{random.randrange(4)}", random.randrange(1, 9)
        broker.make_topic(name, queues=queues)
        life.topics[name] = queues
        broker.make_group(f"group{random.randrange(3)}")
    elif kind == "offset":
        broker.pull(0, sys_flag=PULL_COMMIT_OFFSET, commit_offset=number)
    elif kind == "wait":
        broker.system.advance(random.choice((0.1, 10, 1000, 70_000)))
    else:
        broker.clock.set_wall(broker.clock.now_ms() + 2 * HOUR_MS)
        broker.system.advance(80_000)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.trial(short=2, long=500)
def test_a_store_that_rolls_and_deletes_keeps_its_promises(seed: int, flush: str) -> None:
    life, broker = busy_life(seed, flush)
    records = {r.body: r for queue in range(QUEUES) for r in broker.messages(queue_id=queue)}
    log = broker.broker.store.commit_log
    first = log.min_offset()
    kept = {body for body, place in life.acknowledged.items() if place.offset >= first}
    promised = kept if flush == "SYNC_FLUSH" else kept & life.flushed
    assert promised <= records.keys(), f"seed {seed}: {len(promised - records.keys())} are gone"
    places = [(each.physical_offset, each.body) for each in records.values()]
    behind = (
        [body for body in kept if life.acknowledged[body].offset > max(places)[0]] if places else []
    )
    assert flush == "ASYNC_FLUSH" or not behind
    assert kept - set(behind) <= records.keys() or not places, f"seed {seed}: a gap before data"
    table = broker.broker.tables.topics.value
    assert {name: table[name].read_queue_nums for name in life.topics} == life.topics
    assert broker.send(b"goes on").code == ResponseCode.SUCCESS


@pytest.mark.trial(short=5, long=500)
def test_sync_flush_loses_no_acknowledged_message(seed: int) -> None:
    producers, found = lose_power(seed, "SYNC_FLUSH")
    lost = producers.acknowledged.keys() - set(found)
    assert not lost, f"seed {seed}: {len(lost)} acknowledged messages are gone"


@pytest.mark.trial(short=3, long=500)
def test_async_flush_loses_only_the_tail(seed: int) -> None:
    producers, found = lose_power(seed, "ASYNC_FLUSH")
    numbers = {int(body.split(b":")[0]) for body in found if b":" in body}
    assert numbers == set(range(len(numbers))), f"seed {seed}: a gap followed by data"
    lost = producers.flushed - set(found)
    assert not lost, f"seed {seed}: {len(lost)} messages are gone that had the time to be flushed"


@pytest.mark.heavy
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_without_fdatasync_acknowledged_messages_are_lost(flush: str) -> None:
    """The promises hang on the sync and on nothing else."""
    losses = 0
    for seed in range(1, 11):
        try:
            producers, found = lose_power(seed, flush, with_sync=False)
        except StoreError:  # the store cannot even be opened
            losses += flush == "SYNC_FLUSH"
            continue
        promised = producers.acknowledged.keys() if flush == "SYNC_FLUSH" else producers.flushed
        losses += bool(promised - set(found))
    assert losses > 0
