"""Timers through crashes, power cuts, restarts and clock steps, by seed."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from protocol.frame import RemotingCommand
from protocol.properties import pairs_of
from tests.support.brokers import STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

STORE_OF_TRIALS = replace(
    STORE,
    message_delay_level="1s 3s 9s",
    flush_disk_type="SYNC_FLUSH",
    flush_delay_offset_interval_ms=2_000,
)


class Trial:
    """One broker, and the timers that it has accepted."""

    def __init__(self, seed: int) -> None:
        self.random, self.seed = Random(seed), seed
        self.made = SimulatedBroker(seed, store_config=STORE_OF_TRIALS)
        self.made.make_topic()
        self.started: list[tuple[int, list[RemotingCommand]]] = []
        self.set_back_ms = 0
        """Sum of all steps back of the clock."""
        self.seen_to = 0
        """Offset of the log up to which records were looked at."""

    def send(self, number: int) -> None:
        random, now_ms = self.random, self.made.clock.now_ms()
        delay_ms = random.choice((random.randrange(1, 1_500), random.randrange(20_000)))
        text = random.choice(
            (f"TIMER_DELAY_MS\x01{delay_ms}", f"TIMER_DELIVER_MS\x01{now_ms + delay_ms}")
        )
        if random.random() < 0.2:
            text = f"DELAY\x01{random.randrange(1, 4)}"
        self.started.append((number, self.made.start_send(b"%d" % number, properties=text)))

    def advance(self, ms: int) -> None:
        """Run, and look whether a timer was delivered before the clock has shown its time."""
        made = self.made
        shown_ms = made.clock.now_ms()
        made.system.advance(ms)
        shown_ms = max(shown_ms, made.clock.now_ms())
        log = made.broker.store.commit_log
        for head in log.walk(max(self.seen_to, log.min_offset())):
            pairs = pairs_of(head.properties)
            if head.topic == b"Topic" and b"TIMER_OUT_MS" in pairs:
                assert int(pairs[b"TIMER_OUT_MS"]) <= shown_ms, "early"
        self.seen_to = log.end_offset

    def disturb(self) -> None:
        random, made = self.random, self.made
        chance = random.random()
        if chance < 0.15:
            made.crash()
            assert isinstance(made.disk, FakeDisk)
            power = random.random() < 0.5
            made.disk = made.disk.crashed(self.seed) if power else made.disk.killed()
            made.start()
            self.seen_to = min(self.seen_to, made.broker.store.commit_log.end_offset)
        elif chance < 0.25:
            made.stop()
            made.start_ms = made.clock.now_ms()
            made.start()
        elif chance < 0.35:
            step_ms = random.choice((-8_000, -2_000, -300, 300, 2_000, 8_000))
            self.set_back_ms += max(0, -step_ms)
            made.clock.set_wall(made.clock.now_ms() + step_ms)

    def check(self) -> None:
        """Check that every accepted message was delivered, and no timer twice."""
        records = self.made.records()
        found = [record for record in records if record.topic == "Topic"]
        came = {record.body for record in found}
        lost = [n for n, answers in self.started if answers and answers[0].code == 0]
        assert not [n for n in lost if b"%d" % n not in came]
        timers = Counter(each.body for each in found if b"TIMER_OUT_MS" in each.properties)
        assert not [body for body, count in timers.items() if count > 1], "twice"


@pytest.mark.trial(short=4, long=1_000)
def test_crashes_and_clock_steps_lose_no_timer_and_deliver_none_early(seed: int) -> None:
    trial = Trial(seed)
    for number in range(40):
        trial.send(number)
        trial.advance(trial.random.choice((0, 5, 300, 1_500)))
        trial.disturb()
    trial.advance(40_000 + trial.set_back_ms)
    trial.check()
