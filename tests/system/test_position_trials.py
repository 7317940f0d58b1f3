"""Trials: no group skips a message while queues are deleted, emptied, lost or begun again.

Two groups commit, and two members of a third one broadcast. After seeded sends, pulls, commits,
deletions, clean-ups and kills, each reader has seen all messages that are left of the last topic.
Readers pull at once after a deletion and after a start, as clients do.
"""

from dataclasses import replace
from random import Random

import pytest

from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.message import decode_records
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.numbering import delete_topic
from troupemq.testing.fake_disk import FakeDisk

CONFIG = replace(STORE, commit_log_file_bytes=16_384, consume_queue_file_bytes=400)
FIRST_ROUND_MS, ROUND_MS = 64_000, 14_000
"""Time in which expired files are deleted: after the start, and later."""
USUAL = ("send",) * 8 + ("pull",) * 8 + ("commit",) * 4 + ("wait",) * 3
OPERATIONS = (*USUAL, "delete", "expire", "clean", "clean", "start", "start")


class Reader:
    """A consumer with one connection, which keeps its position in memory."""

    def __init__(self, made: SimulatedBroker, group: str, model: str, number: int) -> None:
        self.made, self.group, self.model, self.number = made, group, model, number
        self.connect()
        self.offset = 0
        self.seen: set[bytes] = set()

    def connect(self) -> None:
        self.client = self.made.new_client(2 + self.number)

    def beat(self) -> None:
        self.made.client = self.client
        self.made.subscribe(model=self.model, group=self.group, client_id=f"c{self.number}")

    def pull(self, most: int) -> None:
        """Pull up to so many times, or until nothing is left."""
        self.made.client = self.client
        for _ in range(most):
            answer = self.made.pull(self.offset, consumer_group=self.group)
            before, self.offset = self.offset, int((answer.fields or {})["nextBeginOffset"])
            if answer.code == ResponseCode.SUCCESS:
                records = decode_records(bytes(answer.body or b""))
                self.seen.update(record.body for record in records)
            elif self.offset == before:
                assert answer.code != ResponseCode.PULL_OFFSET_MOVED
                break

    def commit(self) -> None:
        fields = {"consumerGroup": self.group, "topic": "Topic", "queueId": "0"}
        fields["commitOffset"] = str(self.offset)
        if self.model == "CLUSTERING":
            command = RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, fields, flag=ONEWAY_FLAG)
            self.client.start(command, lambda _: None)
            self.made.system.drain()


class Positions:
    """The broker with its readers, and what is done to it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"positions/{seed}")
        self.made = made = SimulatedBroker(seed, FakeDisk(), store_config=CONFIG)
        made.make_topic(queues=1)
        made.make_topic("Other", queues=1)
        models = {"one": "CLUSTERING", "two": "CLUSTERING", "all": "BROADCASTING"}
        groups = ("one", "two", "all", "all")
        self.readers = [
            Reader(made, group, models[group], number) for number, group in enumerate(groups)
        ]
        self.count = self.first = 0
        self.round_ms = FIRST_ROUND_MS
        self.pull_all(1)
        for each in self.readers:
            each.commit()
        made.system.advance(6000)

    def pull_all(self, most: int) -> None:
        for each in self.readers:
            each.beat()
            each.pull(most)

    def send(self) -> None:
        for _ in range(self.random.choice((1, 3, 20, 40))):
            self.made.send(b"%d" % self.count)
            self.count += 1
        self.made.system.advance(50)

    def pull(self) -> None:
        self.random.choice(self.readers).pull(self.random.choice((1, 3, 99)))

    def commit(self) -> None:
        self.random.choice(self.readers).commit()

    def wait(self) -> None:
        self.made.system.advance(self.random.choice((100, 1000, 6000, 12_000)))
        for each in self.readers:
            each.beat()

    def delete(self) -> None:
        delete_topic(self.made)
        self.first = self.count
        if self.random.random() < 0.5:
            self.wait()
        self.made.make_topic(queues=1)
        if self.random.random() < 0.5:
            self.send()
        self.pull_all(1)
        for each in self.readers:
            each.commit()
        self.made.system.advance(6000)

    def expire(self) -> None:
        for _ in range(40):
            self.made.send(bytes(1000), topic="Other", queue_id=0)
        self.made.system.advance(6000)
        self.made.ask(RemotingCommand(Code.DELETE_EXPIRED_COMMITLOG))
        self.made.system.advance(self.round_ms)
        self.round_ms = ROUND_MS

    def clean(self) -> None:
        code = self.random.choice((Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC))
        assert self.made.ask(RemotingCommand(code)).code == ResponseCode.SUCCESS
        self.made.system.advance(100)

    def start(self) -> None:
        made, kind = self.made, self.random.choice(("power", "kill", "stop", "queue"))
        assert isinstance(made.disk, FakeDisk)
        if kind in ("stop", "queue"):
            made.stop()
        else:
            made.crash()
            killed, seed = made.disk.killed, self.random.randrange(1 << 30)
            made.disk = killed() if kind == "kill" else made.disk.crashed(seed)
        if kind == "queue" and made.disk.is_dir("/store/consumequeue/Topic"):
            made.disk.remove_tree("/store/consumequeue/Topic")
        made.start()
        self.round_ms = FIRST_ROUND_MS
        if self.random.random() < 0.4:
            self.send()
        for each in self.readers:
            each.connect()
        self.pull_all(1)

    def check(self) -> None:
        self.send()
        self.pull_all(99)
        left = {record.body for record in self.made.messages() if int(record.body) >= self.first}
        for each in self.readers:
            assert not left - each.seen, (each.group, each.number)


@pytest.mark.trial(short=3, long=500)
def test_no_reader_skips_messages_whatever_befalls_their_queue(seed: int) -> None:
    trial = Positions(seed)
    for _ in range(40):
        getattr(trial, trial.random.choice(OPERATIONS))()
    trial.check()
