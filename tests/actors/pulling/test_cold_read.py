"""Cold reads happen on a thread, while other requests are served."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from actors.engine.actor import Actor, handles
from actors.engine.messages import Message
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.pulling.cold_read import AHEAD_BYTES, ColdRead
from actors.pulling.messages import ReadCold
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from storage.files.disk import RealDisk
from storage.reading.page_probe import ColdPart
from tests.compat.patience import wait_until
from tests.support.actors import Arrivals
from tests.support.brokers import SimulatedBroker, pull_command, store_in
from tests.support.pulls import broker, code_and_bodies, fill
from troupemq.testing.fake_disk import FakeDisk

COUNT = 20


class Slow(Actor):
    """Takes what is to be read, and hands it on when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[ReadCold] = []

    @handles(ReadCold)
    def on_read(self, message: ReadCold) -> None:
        self.taken.append(message)

    def let_go(self, broker: SimulatedBroker) -> None:
        taken, self.taken = self.taken, []
        for message in taken:
            for path, position, count in message.parts:
                broker.disk.open(path).pread(count, position)
            message.reply_to.tell(message.then)


def cold_broker(slow: Slow | None = None) -> SimulatedBroker:
    """A broker with messages of which nothing is in memory."""
    made = broker(COUNT)
    made.stop()
    if slow is not None:
        made.instead = {"cold_read": lambda _: slow}
    made.start()
    assert isinstance(made.disk, FakeDisk)
    made.disk.forget_cache()
    return made


def test_cold_messages_are_read_and_then_delivered() -> None:
    made = cold_broker()
    assert code_and_bodies(made.pull(0)) == (0, [b"body"] * COUNT)
    assert made.broker.pull_stats.cold_count == 2  # the queue's file, then the log
    assert code_and_bodies(made.pull(5)) == (0, [b"body"] * (COUNT - 5))
    assert made.broker.pull_stats.cold_count <= 2


def test_a_slow_disk_delays_neither_sends_nor_other_pulls() -> None:
    slow = Slow()
    made = cold_broker(slow)
    made.make_topic("ColdReadForPull")
    cold: list[RemotingCommand] = []
    made.client.start(pull_command(0), cold.append)
    made.system.drain()
    assert len(slow.taken) == 1
    before_ms = made.system.clock.monotonic_ms()
    fill(made, 3, b"new", topic="ColdReadForPull")
    assert code_and_bodies(made.pull(0, topic="ColdReadForPull")) == (0, [b"new"] * 3)
    assert made.system.clock.monotonic_ms() - before_ms < 100
    assert cold == []
    slow.let_go(made)
    made.system.drain()
    assert code_and_bodies(cold[0]) == (0, [b"body"] * COUNT)


def test_the_queue_and_then_the_log_are_read_off_the_loop() -> None:
    slow = Slow()
    made = cold_broker(slow)
    answers: list[RemotingCommand] = []
    made.client.start(pull_command(0), answers.append)
    made.system.drain()
    for read in ("consumequeue", "commitlog"):
        (message,) = slow.taken
        assert answers == []
        assert all(f"/{read}/" in part.path for part in message.parts)
        slow.let_go(made)
        made.system.drain()
    assert code_and_bodies(answers[0]) == (0, [b"body"] * COUNT)


def test_a_pull_is_answered_after_two_cold_reads_even_if_pages_are_cold() -> None:
    slow = Slow()
    made = cold_broker(slow)
    answers: list[RemotingCommand] = []
    made.client.start(pull_command(0), answers.append)
    made.system.drain()
    for number in (0, 1):
        message = slow.taken[number]
        message.reply_to.tell(message.then)
        made.system.drain()
    assert code_and_bodies(answers[0]) == (0, [b"body"] * COUNT)
    assert len(slow.taken) == 2


def test_the_offset_of_a_cold_pull_is_committed_once_at_arrival() -> None:
    slow = Slow()
    made = cold_broker(slow)
    made.client.start(pull_command(0, sys_flag=1, commit_offset=7))
    made.system.drain()
    fields = {"consumerGroup": "consumers", "topic": "Topic", "queueId": "0"}
    answer = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.fields == {"offset": "7"}
    update = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": "3"})
    assert made.ask(update).code == 0
    slow.let_go(made)
    made.system.drain()
    answer = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.fields == {"offset": "3"}


def test_a_disk_that_cannot_be_read_is_an_error_answer() -> None:
    made = cold_broker()
    assert isinstance(made.disk, FakeDisk)
    made.disk.fail_next("pread", OSError(errno.EIO, "Input/output error"))
    answer = made.pull(0)
    assert answer.code == 1
    assert answer.remark == "the disk cannot be read: Input/output error"
    assert code_and_bodies(made.pull(0)) == (0, [b"body"] * COUNT)


def test_time_queries_wait_for_cold_data() -> None:
    made = cold_broker()
    fields = {"topic": "Topic", "queueId": "0", "timestamp": str(1 << 50)}
    answer = made.ask(RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields))
    assert answer.fields == {"offset": str(COUNT)}
    assert isinstance(made.disk, FakeDisk)
    made.disk.forget_cache()
    answer = made.ask(RemotingCommand(RequestCode.GET_EARLIEST_MSG_STORETIME, fields))
    assert int((answer.fields or {})["timestamp"]) > 0


def test_a_stopping_broker_answers_pulls_that_wait_for_the_disk() -> None:
    answers: list[RemotingCommand] = []
    made = cold_broker()
    made.client.start(pull_command(0), answers.append)
    made.stop()
    assert len(answers) == 1


# --- on a real disk


@dataclass
class Note(Message):
    """Message sent when all parts are read."""

    def on_undelivered(self, remark: str) -> None:
        raise AssertionError(remark)


class Listener(Actor):
    """Hands on what it is told."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals

    @handles(Note)
    def on_note(self, message: Note) -> None:
        self._arrivals(message)


def drop_cache(path: Path) -> None:
    """Has the kernel forget the pages of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_a_real_disk_reports_cold_pages_and_reading_warms_them(
    tmp_path: Path, real_system: ActorSystem
) -> None:
    path = tmp_path / "file"
    size = 4 * AHEAD_BYTES
    path.write_bytes(os.urandom(size))
    file = RealDisk().open(str(path))
    file.sync()
    assert file.is_cached(0, size)
    drop_cache(path)
    if file.is_cached(size // 2, 4096):
        pytest.skip("this file system keeps its files in memory")
    drop_cache(path)
    arrivals = Arrivals()
    real_system.start(
        ChildSpec("listener", lambda _: Listener(arrivals)),
        ChildSpec("cold_read", lambda _: ColdRead()),
    )
    note = Note()
    parts = [ColdPart(str(path), size // 4, 10), ColdPart(str(path) + "-gone", 0, 10)]
    listener = real_system.address("listener")
    real_system.address("cold_read").tell(ReadCold(parts, note, listener))
    assert arrivals.take() is note
    assert file.is_cached(size // 4, 10)
    wait_until(lambda: file.is_cached(size // 4, AHEAD_BYTES), "what follows is in memory")
    file.close()


def test_a_real_broker_serves_cold_messages(tmp_path: Path) -> None:
    config = store_in(tmp_path)
    made = SimulatedBroker(1, RealDisk(), store_config=config)
    made.make_topic()
    fill(made, COUNT)
    made.stop()
    made.start()
    for path in tmp_path.rglob("0" * 20):
        drop_cache(path)
    assert code_and_bodies(made.pull(0)) == (0, [b"body"] * COUNT)
