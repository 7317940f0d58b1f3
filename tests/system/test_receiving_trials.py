"""Groups that settle messages one by one, through everything that may happen to them.

Each message that was acknowledged to its producer is settled, in flight, retried or dead at any
time. A consumer offset is never above a message that is not. What was confirmed as settled is
handed out again only after a power cut, a reset, a change of roles, or a full disk. In order, no
message is handed out while an earlier one of its queue is neither settled nor dead.
"""

from collections.abc import Iterable
from dataclasses import replace
from errno import ENOSPC

import pytest

from actors.receipts.ledger import Ledger
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.message import MessageRecord
from storage.tables.offsets import offset_key
from tests.support.receivers import Receiver, Settling
from tests.support.receiving import Received
from tests.support.world import ROUGH, World
from troupemq.testing.fake_disk import FakeDisk

GROUP, TOPIC, RETRY, DEAD = "receivers", "Topic", "%RETRY%receivers", "%DLQ%receivers"
DELAYED = "SCHEDULE_TOPIC_XXXX"
QUEUES = 2
STEPS = 40
CALM_MS = 60_000
FAULTS = ROUGH | {
    "nothing": 24,
    "kill": 3,
    "role": 1,
    "reset": 1,
    "cold": 2,
    "link": 4,
    "die": 3,
    "off": 2,
    "full journal": 1,
}


class Receiving(World):
    """A world with one group that receives."""

    def __init__(self, seed: int, *, in_order: bool) -> None:
        super().__init__(seed)
        self.made.make_topic(TOPIC, queues=QUEUES)
        self.made.make_group(GROUP, retry_max_times=3)
        self.pass_time(2_000)  # both are in their files
        self.settling = Settling(GROUP, TOPIC, in_order)
        self.sender = self.producer()
        self.members: list[Receiver] = []
        self.resets = 0
        self.is_exact = True
        """Whether the journal has been written ever since the start."""

    def received(self, settling: Settling, message: Received) -> None:
        """Check that a message is not confirmed, and its order against its queue."""
        if message.record.topic == TOPIC:
            assert message.body not in settling.confirmed, (
                f"seed {self.seed}: {message.body!r} is handed out again"
            )
        if not settling.in_order:
            return
        queue_id, offset = message.parsed.queue_id, message.parsed.offset
        done = settling.settled | {
            body
            for queue, number, body in settling.seen[-32:]
            if queue == queue_id and number < offset
        }
        earlier = {
            body
            for body, sent in self.acknowledged.items()
            if sent.queue_id == queue_id and sent.queue_offset < offset
        }
        if earlier - done:
            dead = {each.body for each in self.records(DEAD)}
            assert earlier <= done | dead, (
                f"seed {self.seed}: {message.body!r} overtakes {earlier - done - dead}"
            )

    def records(self, *topics: str) -> list[MessageRecord]:
        return [each for each in self.made.records() if each.topic in topics]

    def check_offsets(self) -> None:
        """Check that each offset is above settled and copied messages only."""
        copies: dict[bytes, int] = {}
        for each in self.records(RETRY, DEAD, DELAYED):
            copies[each.body] = max(copies.get(each.body, -1), each.physical_offset)
        coming: set[bytes] = set()
        """Bodies that a reset has handed out again: their copies do not count any more."""
        for each in self.records(TOPIC, RETRY):
            stored = self.stored(each.topic, each.queue_id)
            if each.queue_offset >= stored:
                if each.topic == TOPIC:
                    coming.add(each.body)
            elif each.body not in self.settling.settled | coming:
                assert copies.get(each.body, -1) > each.physical_offset, (
                    f"seed {self.seed}: the offset {stored} of {each.topic} {each.queue_id}"
                    f" is above {each.body!r} at {each.queue_offset}"
                )

    def stored(self, topic: str, queue_id: int) -> int:
        """Return the consumer offset."""
        offsets = self.made.broker.tables.live_offsets.value
        return offsets.get(offset_key(topic, GROUP), {}).get(queue_id, 0)

    def cut_power(self) -> None:
        """Offsets may be those of a former moment."""
        super().cut_power()
        self.settling.confirmed.clear()

    def lose_journal(self) -> None:
        """The disk is full for the journal, until the next save of the offsets."""
        disk = self.made.disk
        assert isinstance(disk, FakeDisk)
        disk.fail_next("pwrite", OSError(ENOSPC, "full"), below="/store/troupemq/offsets")
        self.is_exact = False

    def kill(self) -> None:
        self.forget_inexact()
        super().kill()
        self.is_exact = True

    def restart(self) -> None:
        super().restart()
        self.forget_inexact()

    def fail(self, name: str) -> None:
        super().fail(name)
        self.forget_inexact()

    def forget_inexact(self) -> None:
        """Nothing confirmed so far counts, if the journal may lack it."""
        if not self.is_exact:
            self.settling.confirmed.clear()

    def happen(self) -> None:
        """One of the things that may happen."""
        (kind,) = self.random.choices([*FAULTS], [*FAULTS.values()])
        member = self.random.choice(self.members)
        if kind == "link":
            self.break_link(member, self.random.choice((10, 1000, 5000)))
        elif kind in ("die", "off"):
            self.members.remove(member)
            member.do(member.sign_off if kind == "off" else member.die)
            self.members.append(self.receiver(self.settling))
        elif kind == "full journal":
            self.lose_journal()
        elif kind == "role":
            self.change_role()
        elif kind == "reset":
            self.reset()
        elif kind == "cold":
            disk = self.made.disk
            assert isinstance(disk, FakeDisk)
            disk.forget_cache()
        else:
            self.befall({kind: 1})

    def change_role(self) -> None:
        """The broker becomes a slave, and then a master again."""
        for role, broker_id in (("SLAVE", 1), ("ASYNC_MASTER", 0)):
            self.made.config = replace(self.made.config, broker_role=role, broker_id=broker_id)
            self.restart()
            self.settling.confirmed.clear()
            self.pass_time(500)

    def reset(self) -> None:
        """An operator sets the group back."""
        queue_id = self.random.randrange(QUEUES)
        stored = self.stored(TOPIC, queue_id)
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "commitOffset": str(self.random.randrange(stored + 1)),
        }
        self.made.client.start(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        self.settling.confirmed.clear()
        self.pass_time(1)
        self.settling.confirmed.clear()
        self.resets += 1

    def send_some(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.sender.send(b"%d" % number, topic=TOPIC, queue_id=number % QUEUES)


@pytest.fixture(autouse=True)
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are crowded soon, so that messages are stored again."""
    monkeypatch.setattr(Ledger, "span_max", 12)
    monkeypatch.setattr(Ledger, "entries_max", 8)


def run(seed: int, *, in_order: bool) -> None:
    world = Receiving(seed, in_order=in_order)
    for _ in range(3):
        world.members.append(world.receiver(world.settling))
    numbers = iter(range(10_000))
    for _ in range(STEPS):
        world.send_some(next(numbers) for _ in range(world.random.randrange(6)))
        world.pass_time(world.random.choice((10, 200, 1_000, 3_000)))
        world.happen()
        world.check_offsets()
    world.settling.is_calm = True
    for member in world.members:
        world.break_link(member)  # else it would hold for ever what it has forgotten
    world.settle()
    world.pass_time(CALM_MS)
    world.check_failures()
    world.check_offsets()
    assert world.settling.faults == []
    found = world.settling.settled | {each.body for each in world.records(DEAD)}
    missing = sorted(world.acknowledged.keys() - found)
    assert missing == [], f"seed {seed}: {missing[:5]} of {len(missing)} are lost"
    offsets = world.made.broker.tables.live_offsets.value
    for topic in (TOPIC, RETRY):
        for queue_id, offset in offsets.get(offset_key(topic, GROUP), {}).items():
            queue = world.made.broker.store.consume_queues.get(topic, queue_id)
            assert queue is not None
            assert offset == queue.max_offset, (
                f"seed {seed}: {topic} {queue_id} stays at {offset} of {queue.max_offset}"
            )
    world.stop()


@pytest.mark.trial(short=2, long=1000, every=2, turn=0)
def test_every_message_is_settled_or_dead(seed: int) -> None:
    print(f"seed {seed}")
    run(seed, in_order=False)


@pytest.mark.trial(short=2, long=1000, every=2, turn=1)
def test_no_message_is_overtaken_in_order(seed: int) -> None:
    print(f"seed {seed}")
    run(seed, in_order=True)
