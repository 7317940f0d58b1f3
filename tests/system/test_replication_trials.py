"""A simulated pair through cuts of the wire, kills and power cuts: no seed may lose a message."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from protocol.frame import RemotingCommand
from storage.config import StoreConfig
from tests.support.brokers import STORE
from tests.support.replication import Pair

TOPIC = "Topic"
STEPS = 30
HEALED_MS = 30_000
SYNC_DELAYS_MS = (1, 1, 1, 30, 400)
SYNC = replace(STORE, flush_disk_type="SYNC_FLUSH")


class Story:
    """One run: what was sent, what was promised, what happens next."""

    def __init__(
        self, seed: int, role: str, store: StoreConfig, *, power: bool, cuts: bool = True
    ) -> None:
        self.random = Random(seed)
        self.pair = Pair(seed, master_role=role, store=store, sync_delays_ms=SYNC_DELAYS_MS)
        self.pair.master.make_topic(TOPIC)
        self.answers: list[tuple[int, list[RemotingCommand]]] = []
        self.sent = 0
        pair = self.pair
        pair.advance(100)  # the slave follows from the first byte on
        events: list[Callable[[], None]] = [
            *((pair.cut, pair.heal) if cuts else ()),
            lambda: pair.kill(pair.master),
            lambda: pair.kill(pair.slave),
            lambda: self._stop_and_start(),
        ]
        if power:
            events += [lambda: pair.cut_power(pair.master), lambda: pair.cut_power(pair.slave)]
        self.events = events

    def _stop_and_start(self) -> None:
        made = self.random.choice((self.pair.master, self.pair.slave))
        self.pair.stop(made)
        self.pair.restart(made)

    def send_some(self) -> None:
        for _ in range(self.random.randint(0, 30)):
            body_bytes = self.random.choice((0, 100, 1000, 20_000))
            body = b"%d " % self.sent + bytes(body_bytes)
            options = {"properties": "WAIT\x01false"} if self.random.random() < 0.1 else {}
            answer = self.pair.send(body, topic=TOPIC, queue_id=self.random.randrange(4), **options)
            if not options:
                self.answers.append((self.sent, answer))
            self.sent += 1

    def step(self) -> None:
        self.send_some()
        if self.random.random() < 0.5:
            self.pair.stir(self.random.randint(0, 10))
            self.random.choice(self.events)()
        self.pair.advance(self.random.choice((0, 1, 50, 1000, 6000)))

    def promised(self) -> set[int]:
        """Messages for which a producer was told SUCCESS."""
        return {number for number, answer in self.answers if answer and answer[0].code == 0}

    def end(self) -> None:
        self.pair.heal()
        self.pair.advance(HEALED_MS)
        before = len(self.promised())
        for _ in range(10):
            self.send_some()
            self.pair.advance(HEALED_MS / 10)
        assert len(self.promised()) > before, "it does not go on"
        self.pair.assert_equal()


def numbers(pair: Pair) -> set[int]:
    """Messages that are in the slave's log."""
    records = pair.slave.records()
    return {int(r.body.partition(b" ")[0]) for r in records if r.topic == TOPIC}


@pytest.mark.trial(short=1, long=500)
def test_acknowledged_messages_are_always_on_the_slave(seed: int) -> None:
    """SYNC_MASTER and SYNC_FLUSH on both: whatever dies, by a kill or a power cut."""
    story = Story(seed, "SYNC_MASTER", SYNC, power=True)
    for _ in range(STEPS):
        story.step()
        story.pair.assert_prefix()
        assert story.promised() <= numbers(story.pair)
    story.end()
    assert story.promised() <= numbers(story.pair)
    story.pair.close()


@pytest.mark.trial(short=1, long=500)
def test_the_slaves_log_is_a_prefix_of_its_masters(seed: int) -> None:
    """ASYNC_MASTER and ASYNC_FLUSH: processes die, the wire is cut, in the end all is there."""
    story = Story(seed, "ASYNC_MASTER", STORE, power=False)
    for _ in range(STEPS):
        story.step()
        story.pair.assert_prefix()
    story.end()
    there = numbers(story.pair)
    assert {
        number for number in story.promised() if number >= min(there, default=story.sent)
    } <= there
    story.pair.close()


@pytest.mark.trial(short=1, long=300)
def test_a_slave_never_continues_a_different_log(seed: int) -> None:
    """ASYNC_FLUSH and power cuts: the master loses what its slave has, and writes something else.

    From then on the slave gets nothing more, unless it has lost the difference itself. (The wire
    is not cut: it would bring, later, what a dead master had sent.)
    """
    story = Story(seed, "ASYNC_MASTER", STORE, power=True, cuts=False)
    pair = story.pair
    was_apart, before = False, 0
    for _ in range(STEPS):
        story.step()
        apart, received = has_gone_apart(pair), pair.replica.received_offset
        assert not (apart and was_apart) or received <= before
        was_apart, before = apart, received
    pair.close()


def has_gone_apart(pair: Pair) -> bool:
    try:
        pair.assert_prefix()
    except AssertionError:
        return True
    return False


@pytest.mark.trial(short=2, long=200)
def test_a_slave_can_replace_its_dead_master(seed: int) -> None:
    """The slave's store, started as a master, has every acknowledged message."""
    story = Story(seed, "SYNC_MASTER", SYNC, power=True)
    for _ in range(STEPS // 2):
        story.step()
    pair = story.pair
    promised = story.promised()
    pair.die(pair.master, pair.master.disk)  # type: ignore[arg-type]
    if story.random.random() < 0.5:
        pair.cut_power(pair.slave)
        pair.die(pair.slave, pair.slave.disk)  # type: ignore[arg-type]
    else:
        pair.stop(pair.slave)
    pair.slave.config = replace(pair.slave.config, broker_role="ASYNC_MASTER", broker_id=0)
    pair.slave.start()
    assert promised <= numbers(pair)
    pair.slave.make_topic(TOPIC)
    pulled = {
        int(record.body.partition(b" ")[0])
        for queue_id in range(4)
        for record in pair.slave.messages(TOPIC, queue_id)
    }
    assert promised <= pulled
    assert pair.slave.send(b"-1 ", topic=TOPIC).code == 0
    pair.slave.stop()
    pair.close()
