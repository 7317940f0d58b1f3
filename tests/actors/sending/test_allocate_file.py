"""The next file of the log: made ahead, waited for, refused when it does not come."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.broker import Broker
from actors.engine.actor import Actor, handles
from actors.engine.supervisor import ChildSpec
from actors.sending.admission import Admission
from actors.sending.allocate_file import AllocateFile
from actors.sending.messages import FileFailed, FilePrepared, PrepareFile
from actors.sending.put_answers import SendPut
from actors.sending.send_rules import RefusedError
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from storage.config import StoreConfig
from storage.log.commit_log import prepare_file
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.peers import Told, simulated
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

FILE_BYTES = STORE.commit_log_file_bytes
BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
NO_FILE = "create mapped file failed, server is busy or broken."
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def start(system: SimulatedSystem, config: StoreConfig = STORE) -> None:
    system.disk.make_dirs(config.commit_log_dir)
    system.start(ChildSpec("allocate_file", lambda _: AllocateFile(config)))


def ask(system: SimulatedSystem, teller: Told, offset: int) -> Any:
    system.address("allocate_file").tell(PrepareFile(offset, teller.address))
    system.drain()
    (told,) = teller.take()
    return told


# --- the actor alone


def test_a_file_is_allocated_at_full_size_with_real_blocks() -> None:
    disk, teller = FakeDisk(), Told("put_message")
    with simulated(disk) as system:
        start(system)
        told = ask(system, teller, FILE_BYTES)
        assert (type(told), told.offset) == (FilePrepared, FILE_BYTES)
        assert told.file.first_offset == FILE_BYTES
        assert told.file.is_zero_from(0)
        assert disk.used_bytes() == FILE_BYTES
        assert disk.listdir(STORE.commit_log_dir) == [f"{FILE_BYTES:020d}"]
        told.file.close()


def test_a_disk_error_is_reported_and_logged_once() -> None:
    disk, teller = FakeDisk(), Told("put_message")
    with simulated(disk) as system, capture_logs() as lines:
        start(system)
        disk.fail_next("allocate", NO_SPACE, times=3)
        for _ in range(3):
            told = ask(system, teller, 0)
            assert (type(told), told.offset) == (FileFailed, 0)
            assert "the disk is full" in told.reason
        assert disk.listdir(STORE.commit_log_dir) == []
        told = ask(system, teller, 0)
        assert type(told) is FilePrepared
        told.file.close()
    events = [line["event"] for line in lines if "file" in line["event"]]
    assert events == ["next file not allocated", "next file allocated"]


def test_a_file_requested_twice_is_created_once() -> None:
    """A restarted PutMessage asks again; the file may hold messages by then."""
    teller, config = Told("put_message"), replace(STORE, warm_mapped_file_enable=True)
    with simulated() as system:
        start(system, config)
        first = ask(system, teller, 0)
        first.file.write(b"a message", 100)
        again = ask(system, teller, 0)
        assert again.file is first.file
        assert bytes(first.file.slice(100, 9)) == b"a message"
        first.file.close()


def test_the_requester_is_answered_when_the_actor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    teller = Told("put_message")
    with simulated() as system:
        start(system)
        monkeypatch.setattr(system.disk, "sync_directory", broken)
        told = ask(system, teller, 0)
        monkeypatch.undo()
        assert (type(told), told.reason) == (FileFailed, "KeyError: 'a bug'")
        system.advance(100)
        assert type(ask(system, teller, 0)) is FilePrepared


# --- with a broker that waits for it


class Allocator(Actor):
    """Makes files when the test says so."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.config = broker.store.config
        self.asked: list[PrepareFile] = []
        self.answers_at_once = True

    @handles(PrepareFile)
    def on_prepare(self, message: PrepareFile) -> None:
        self.asked.append(message)
        if self.answers_at_once:
            self.make()

    def make(self) -> None:
        """Makes what was asked for last."""
        message = self.asked[-1]
        file = prepare_file(message.offset, self.config, self.system.disk)
        message.reply_to.tell(FilePrepared(message.offset, file))

    def fail(self) -> None:
        message = self.asked[-1]
        message.reply_to.tell(FileFailed(message.offset, "the disk is full"))


def broker_with_allocator(**settings: Any) -> tuple[SimulatedBroker, Allocator]:
    made: list[Allocator] = []

    def make(broker: Broker) -> Allocator:
        made.append(Allocator(broker))
        return made[-1]

    config = replace(BROKER, **settings)
    return SimulatedBroker(3, config=config, instead={"allocate_file": make}), made[0]


def fill(broker: SimulatedBroker, allocator: Allocator) -> list[RemotingCommand]:
    """Sends until one is not answered, because its file is not there; gives its answers-to-be."""
    allocator.answers_at_once = False
    for _ in range(2 * FILE_BYTES // 4000):
        answers = broker.start_send(b"x" * 4000)
        broker.system.drain()
        if not answers:
            return answers
        assert answers[0].code == ResponseCode.SUCCESS
    raise AssertionError("the log never ended")


def test_the_next_file_is_created_in_advance() -> None:
    broker, allocator = broker_with_allocator()
    broker.system.drain()
    assert [message.offset for message in allocator.asked] == [FILE_BYTES]
    while broker.broker.store.commit_log.end_offset < FILE_BYTES:
        assert broker.send(b"x" * 4000).code == ResponseCode.SUCCESS
    broker.system.drain()
    assert [message.offset for message in allocator.asked] == [FILE_BYTES, 2 * FILE_BYTES]


def test_sends_wait_for_their_file_in_order() -> None:
    broker, allocator = broker_with_allocator()
    waiting = [fill(broker, allocator)]
    number = len(broker.messages())
    waiting += [broker.start_send(b"%d" % each) for each in range(5)]
    broker.system.advance(500)
    assert waiting == [[]] * 6
    allocator.make()
    broker.system.drain()
    assert [answers[0].code for answers in waiting] == [ResponseCode.SUCCESS] * 6
    records = broker.messages()
    assert [record.body for record in records[number + 1 :]] == [b"%d" % each for each in range(5)]
    assert [record.queue_offset for record in records] == list(range(len(records)))


def test_a_send_that_waits_too_long_for_a_file_is_answered_busy() -> None:
    broker, allocator = broker_with_allocator(os_page_cache_busy_timeout_ms=1000)
    late = fill(broker, allocator)
    broker.system.advance(600)
    later = broker.start_send(b"later")
    broker.system.advance(600)
    assert (late[0].code, late[0].remark) == (ResponseCode.SYSTEM_ERROR, BUSY)
    assert not later
    allocator.make()
    broker.system.drain()
    assert later[0].code == ResponseCode.SUCCESS
    records = broker.messages()
    assert records[-1].body == b"later"
    assert [record.queue_offset for record in records] == list(range(len(records)))


def test_late_sends_are_refused_some_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 of them took 0.2 s."""
    monkeypatch.setattr("actors.sending.put_message.REFUSED_AT_ONCE", 2)
    broker, allocator = broker_with_allocator(os_page_cache_busy_timeout_ms=1000)
    late = [fill(broker, allocator), *(broker.start_send(b"%d" % each) for each in range(5))]
    in_rounds: list[int] = []
    refuse = Admission.refuse_puts

    def noted(admission: Admission, puts: Sequence[SendPut], error: RefusedError) -> None:
        in_rounds.append(len(puts))
        refuse(admission, puts, error)

    monkeypatch.setattr(Admission, "refuse_puts", noted)
    broker.system.advance(1200)
    assert [answers[0].remark for answers in late] == [BUSY] * 6
    assert in_rounds == [2, 2, 2]


def test_a_failed_file_refuses_parked_sends_and_is_retried() -> None:
    broker, allocator = broker_with_allocator()
    refused = fill(broker, allocator)
    allocator.fail()
    broker.system.drain()
    assert (refused[0].code, refused[0].remark) == (ResponseCode.SYSTEM_ERROR, NO_FILE)
    asked = len(allocator.asked)
    assert broker.send(b"fits").code == ResponseCode.SUCCESS
    again = broker.start_send(b"x" * 4000)
    broker.system.drain()
    assert not again
    assert len(allocator.asked) > asked
    allocator.make()
    broker.system.drain()
    assert again[0].code == ResponseCode.SUCCESS


def test_at_the_stop_sends_that_wait_for_a_file_are_refused() -> None:
    broker, allocator = broker_with_allocator()
    waiting = fill(broker, allocator)
    broker.stop()
    assert waiting[0].code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_file_delivered_twice_is_used_once() -> None:
    """PutMessage and its restarted successor can both request the same file."""
    broker, allocator = broker_with_allocator()
    waiting = fill(broker, allocator)
    message = allocator.asked[-1]
    file = prepare_file(message.offset, STORE, broker.disk)
    for _ in range(2):
        message.reply_to.tell(FilePrepared(message.offset, file))
        broker.system.drain()
    assert waiting[0].code == ResponseCode.SUCCESS
    allocator.answers_at_once = True
    assert broker.send().code == ResponseCode.SUCCESS
    assert broker.system.address("put_message").incarnation == 1
