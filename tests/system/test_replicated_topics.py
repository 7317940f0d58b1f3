"""Topics come, go and come again on a master while its slave is cut off, killed and left alone."""

from random import Random

import pytest

from actors.naming.messages import MasterClientAddress
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import TopicHeader
from tests.support.brokers import SimulatedBroker
from tests.support.replication import Pair
from tests.support.slave_tables import MASTER, following

STEPS = 25
TOPICS = ("A", "B", "C")
QUEUES = 3


class Story:
    """One run of the trial."""

    def __init__(self, seed: int, pair: Pair) -> None:
        self.random, self.pair = Random(seed), pair
        self.there: set[str] = set()

    def make_or_delete(self) -> None:
        self.pair.master.system.drain()  # what is sent meanwhile may outlive the deletion
        topic = self.random.choice(TOPICS)
        if topic in self.there:
            fields = TopicHeader(topic).encode()
            command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, fields)
            assert self.pair.master.ask(command).code == 0
            self.there.remove(topic)
        if topic not in self.there or self.random.random() < 0.7:
            self.pair.master.make_topic(topic, queues=QUEUES)
            self.there.add(topic)

    def send_some(self, count: int) -> None:
        for _ in range(count):
            if self.there:
                topic = self.random.choice(sorted(self.there))
                self.pair.send(topic=topic, queue_id=self.random.randrange(QUEUES))

    def harm(self) -> None:
        pair = self.pair
        self.random.choice((pair.cut, pair.heal, self._kill_slave, self._cut_power))()

    def _kill_slave(self) -> None:
        self.pair.kill(self.pair.slave)
        self._tell_master()

    def _cut_power(self) -> None:
        self.pair.cut_power(self.pair.slave)
        self._tell_master()

    def _tell_master(self) -> None:
        self.pair.slave.system.address("slave_sync").tell(MasterClientAddress(MASTER))

    def step(self) -> None:
        self.send_some(self.random.choice((0, 1, 2, 10)))
        self.pair.stir(self.random.randint(0, 10))
        if self.random.random() < 0.4:
            self.make_or_delete()
        if self.random.random() < 0.3:
            self.harm()
        self.pair.advance(self.random.choice((0, 1, 50, 1000, 6000)))

    def end(self) -> None:
        self.pair.heal()
        self.pair.advance(30_000)
        for topic in sorted(self.there):
            for queue_id in range(QUEUES):
                for _ in range(2):  # the second shows what the first was
                    self.pair.send(topic=topic, queue_id=queue_id)
        self.pair.advance(30_000)
        self.pair.assert_equal()


def queued(made: SimulatedBroker, topics: set[str]) -> dict[tuple[str, int], list[int]]:
    """Return the physical offsets of the messages of each queue."""
    found = {}
    for queue in made.broker.store.consume_queues:
        units = [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]
        if queue.topic in topics:
            found[queue.topic, queue.queue_id] = [unit[0] for unit in units if unit is not None]
    return found


@pytest.mark.trial(short=1, long=500)
def test_the_slaves_queues_equal_its_masters(seed: int) -> None:
    with following() as (pair, _):
        pair.master.make_topic("Other")
        pair.send(topic="Other")
        story = Story(seed, pair)
        pair.advance(4000)
        for _ in range(STEPS):
            story.step()
        story.end()
        assert queued(pair.slave, story.there) == queued(pair.master, story.there)
