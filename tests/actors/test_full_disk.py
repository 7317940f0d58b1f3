"""A disk that fills up at any moment and has room again later: seed by seed, on the fake disk.

Whatever finds no room (the next log file, a queue's, the index, a table, the checkpoint): sends are
refused and not lost, reads go on, no actor dies; with room again everything goes on, and all that
was acknowledged is there after a stop and after a crash.
"""

import errno
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.receiving import receive_command
from troupemq.testing.fake_disk import FakeDisk

QUEUES = 3
NEVER = 2.0
CONFIG = replace(
    STORE,
    commit_log_file_bytes=16_384,
    consume_queue_file_bytes=400,
    max_index_entries=40,
    disk_clean_forcibly_ratio=NEVER,
    disk_warning_ratio=NEVER,
)
REFUSALS = (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
ROOM_AGAIN_MS = 10_000
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class Filling:
    """A broker on a disk that fills up and empties again."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FakeDisk()
        flush = self.random.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self.made = SimulatedBroker(
            seed, self.disk, store_config=replace(CONFIG, flush_disk_type=flush)
        )
        self.made.make_topic(queues=QUEUES)
        self.acknowledged: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.count = 0
        self.topics = 0

    def send(self) -> int:
        """One message; the code of the answer."""
        queue_id = self.random.randrange(QUEUES)
        body = b"%d:" % self.count + bytes(self.random.randrange(2000))
        answer = self.made.send(body, queue_id=queue_id, properties=f"UNIQ_KEY\x01{self.count}")
        self.count += 1
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged[queue_id].append(body)
        return answer.code

    def fill(self) -> None:
        """From now on there is a little room, or none."""
        self.disk.capacity_bytes = self.disk.used_bytes() + self.random.choice(
            (0, 0, 4096, 8192, 16_384, 40_000)
        )

    def produce_while_full(self) -> None:
        """Sends, topics and time, with reads in between."""
        for _ in range(self.random.randrange(5, 40)):
            code = self.send()
            assert code == ResponseCode.SUCCESS or code in REFUSALS, code
            if self.random.random() < 0.1:
                self.make_topic()
            if self.random.random() < 0.3:
                self.made.system.advance(self.random.choice((1, 50, 300, 2000)))
        self.reads_go_on()

    def make_topic(self) -> None:
        """Let the topic table write its file; its requester must get an answer."""
        self.topics += 1
        name = f"Late{self.topics}"
        header = CreateTopicHeader(name, "TBW102", 1, 1, 6, "SINGLE_TAG")
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        self.made.ask(RemotingCommand(code, header.encode()))

    def reads_go_on(self) -> None:
        for queue_id in range(QUEUES):
            found = [record.body for record in self.made.messages(queue_id=queue_id)]
            acknowledged = self.acknowledged[queue_id]
            assert found == acknowledged[: len(found)]

    def make_room(self) -> None:
        """Everything is taken again a little later, and everything that was taken is there."""
        self.disk.capacity_bytes = None
        self.made.system.advance(ROOM_AGAIN_MS)
        assert [self.send() for _ in range(6)] == [ResponseCode.SUCCESS] * 6
        self.all_is_there()

    def all_is_there(self) -> None:
        for queue_id in range(QUEUES):
            found = [record.body for record in self.made.messages(queue_id=queue_id)]
            assert found == self.acknowledged[queue_id]

    def start_again(self) -> None:
        """After a stop, or after the end of the process."""
        if self.random.random() < 0.5:
            self.made.stop()
        else:
            self.made.crash()
            self.made.disk = self.disk = self.disk.killed()
        self.made.start()
        self.all_is_there()


@pytest.mark.trial(short=4, long=400)
def test_a_full_disk_only_refuses_sends(seed: int) -> None:
    filling = Filling(seed)
    with capture_logs() as lines:
        for _ in range(3):
            for _ in range(filling.random.randrange(20)):
                filling.send()
            filling.fill()
            filling.produce_while_full()
            filling.make_room()
        filling.start_again()
        filling.made.stop()
    assert [
        line for line in lines if line["event"] in ("actor failed", "request handler failed")
    ] == []


@pytest.mark.heavy
def test_the_trial_fills_the_disk_for_every_actor() -> None:
    said: set[str] = set()
    for seed in range(12):
        filling = Filling(seed)
        with capture_logs() as lines:
            filling.fill()
            for _ in range(4):
                filling.produce_while_full()
        filling.made.crash()
        said |= {line["event"] for line in lines}
    assert {
        "config file not written",
        "consume queues or index not written",
        "next file not allocated",
        "writes disabled",
    } <= said


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_can_be_stopped_and_started_while_its_disk_is_full(seed: int) -> None:
    filling = Filling(seed)
    for _ in range(20):
        filling.send()
    filling.made.system.advance(1000)
    filling.disk.capacity_bytes = filling.disk.used_bytes()
    filling.produce_while_full()
    filling.made.crash()
    filling.made.disk = filling.disk = filling.disk.killed()
    filling.made.start()
    filling.all_is_there()
    filling.make_room()


@pytest.mark.parametrize(
    "operation", ["allocate", "pwrite", "set_size", "rename", "sync_directory"]
)
def test_one_disk_refusal_at_any_operation_is_survived(operation: str) -> None:
    filling = Filling(1)
    for times in (1, 2, 5):
        filling.disk.fail_next(operation, NO_SPACE, times=times)
        for _ in range(30):
            filling.send()
            filling.made.system.advance(20)
        filling.make_topic()
        filling.make_room()
    filling.start_again()


@pytest.mark.parametrize("operation", ["open", "view", "pread"])
@pytest.mark.parametrize("folder", ["consumequeue", "commitlog"])
def test_refused_reads_restart_no_actor_and_lose_nothing(operation: str, folder: str) -> None:
    """Each receive restarted Receipts; six due messages in a row ended the broker."""
    made = SimulatedBroker(1, FakeDisk(), store_config=CONFIG)
    made.make_topic(queues=1)
    for number in range(40):
        body = b"%d" % number + bytes(1000)
        assert made.send(body, properties="DELAY\x011" if number % 4 == 0 else "").code == 0
    made.stop()
    made.start_ms = made.clock.now_ms()
    made.start()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    used_up = OSError(errno.EMFILE, "Too many open files")
    disk.fail_next(operation, used_up, times=10_000, below=f"/store/{folder}")
    with capture_logs() as lines:
        for _ in range(8):
            assert made.pull().code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
            assert made.ask(receive_command(count=1)).code in (0, ResponseCode.POLLING_TIMEOUT)
            made.system.advance(300)
    events = [line["event"] for line in lines]
    assert not {"actor failed", "request handler failed"} & {*events}
    made.restart_killed()
    made.system.advance(5000)
    assert {int(each.body.rstrip(b"\0")) for each in made.messages()} == {*range(40)}
