"""Tests of the common restart of PutMessage, Reput and GroupCommit: every send is answered."""

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.dispatching.messages import WritesForbidden
from actors.engine.actor import BatchEnd, handles
from actors.sending.admission import Admission
from actors.sending.appender import Appender
from actors.tables.config_writer import ConfigWriter
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import STORE, FramesPeer, SimulatedBroker, pull_command, send_command
from troupemq.testing.fake_disk import FakeDisk

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
RESTART_MS = 200
SEEDS = range(8)


class Bug(Exception):
    """Stands for a mistake of ours."""


def failing(original: Callable[..., Any], times: int = 1, *, after: bool = False) -> Any:
    """`original`, which fails the first `times` it is called; `after` it has done its work."""
    left = [times]

    def call(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options) if after or not left[0] else None
        if left[0]:
            left[0] -= 1
            raise Bug("as asked")
        return result

    return call


def broker(seed: int = 1, *, flush: str = "ASYNC_FLUSH") -> SimulatedBroker:
    made = SimulatedBroker(seed, FakeDisk(), store_config=replace(STORE, flush_disk_type=flush))
    made.make_topic()
    return made


def no_gap_and_no_duplicate(made: SimulatedBroker, queues: int = 4) -> list[bytes]:
    """Checks the log and the queues against each other; gives every body."""
    made.system.advance(RESTART_MS)
    records = made.records()
    pulled = [record for queue in range(queues) for record in made.messages(queue_id=queue)]
    assert sorted(pulled, key=lambda record: record.physical_offset) == records
    for queue in range(queues):
        offsets = [record.queue_offset for record in records if record.queue_id == queue]
        assert offsets == list(range(len(offsets)))
    return [record.body for record in records]


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "behind the write"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_append_answers_all_sends_and_later_sends_succeed(
    seed: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broker(seed)
    before = [made.send(b"before %d" % number, queue_id=number % 4) for number in range(6)]
    monkeypatch.setattr(Appender, "append", failing(Appender.append, after=after))
    clients = [made.new_client(port=port) for port in range(2, 6)]
    answers: list[RemotingCommand] = []
    for number, client in enumerate(clients * 3):
        client.start(send_command(b"in hand %d" % number, queue_id=number % 4), answers.append)
    made.system.run_until(lambda: len(answers) == 12)
    refused = [answer for answer in answers if answer.code]
    assert refused and {answer.code for answer in refused} == {ResponseCode.SYSTEM_ERROR}
    assert {answer.remark for answer in refused} <= {"put message restarted", "Bug: as asked"}
    made.system.advance(RESTART_MS)
    behind = [made.send(b"behind %d" % number, queue_id=number % 4) for number in range(6)]
    assert {answer.code for answer in before + behind} == {ResponseCode.SUCCESS}
    bodies = no_gap_and_no_duplicate(made)
    told = 12 + sum(1 for answer in answers if not answer.code)
    assert len(bodies) == told if not after else len(bodies) >= told
    assert made.system.address("put_message").incarnation == 2


def test_a_pending_send_is_answered_once_and_its_bytes_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, peer = broker(), FramesPeer()
    monkeypatch.setattr(Appender, "append", failing(Appender.append))
    for first in (0, 3):
        sends = peer.sends(*[send_command(b"%d" % (first + each)) for each in range(3)])
        made.system.address("put_message").tell(sends)
        made.system.advance(RESTART_MS)
    assert [answer.opaque for answer in peer.received] == [0, 1, 2, 0, 1, 2]
    assert [answer.code for answer in peer.received] == [1, 1, 1, 0, 0, 0]
    assert peer.released_bytes == 200


def test_a_failure_while_accepting_a_send_answers_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, peer = broker(), FramesPeer()
    monkeypatch.setattr(Admission, "put_of", poisoned(Admission.put_of))
    sends = peer.sends(*[send_command(body) for body in (b"1", b"2", b"poison", b"4")])
    made.system.address("put_message").tell(sends)
    made.system.advance(RESTART_MS)
    assert sorted((answer.opaque, answer.code) for answer in peer.received) == [
        (opaque, ResponseCode.SYSTEM_ERROR) for opaque in range(4)
    ]
    assert peer.released_bytes == 100
    assert made.send().code == ResponseCode.SUCCESS


def poisoned(original: Callable[..., Any]) -> Any:
    def put_of(admission: Any, sends: Any, send: Any, *others: Any) -> Any:
        if send.body == b"poison":
            raise Bug("poisoned")
        return original(admission, sends, send, *others)

    return put_of


def test_sends_during_a_restart_reach_the_restarted_actor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker()
    monkeypatch.setattr(Appender, "append", failing(Appender.append))
    first = made.start_send(b"first")
    made.system.drain()
    assert first[0].code == ResponseCode.SYSTEM_ERROR
    kept = [made.start_send(b"%d" % number) for number in range(5)]
    made.system.drain()
    assert not any(kept)
    made.system.advance(RESTART_MS)
    assert [answers[0].code for answers in kept] == [ResponseCode.SUCCESS] * 5
    assert no_gap_and_no_duplicate(made) == [b"%d" % number for number in range(5)]


def test_sends_waiting_for_the_disk_are_flushed_and_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker(flush="SYNC_FLUSH")
    assert made.send(b"before").code == ResponseCode.SUCCESS
    original = Appender.append
    waiting = made.start_send(b"waits")
    monkeypatch.setattr(Appender, "append", failing(original, after=False, times=0))
    made.system.drain()
    monkeypatch.setattr(Appender, "append", failing(original))
    refused = made.start_send(b"refused")
    made.system.advance(RESTART_MS)
    assert waiting[0].code == ResponseCode.SUCCESS
    assert refused[0].code == ResponseCode.SYSTEM_ERROR
    assert made.send(b"behind").code == ResponseCode.SUCCESS
    log = made.broker.store.commit_log
    assert log.flushed_offset == log.end_offset
    assert no_gap_and_no_duplicate(made) == [b"before", b"waits", b"behind"]


class SlowWriter(ConfigWriter):
    """Writes nothing before the stop, so that no topic gets ready."""

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        pass


def test_parked_sends_are_refused_when_put_message_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimulatedBroker(1, instead={"config_writer": lambda _: SlowWriter()})
    monkeypatch.setattr(Appender, "append", failing(Appender.append))
    parked = made.start_send(topic="New")
    made.system.drain()
    assert not parked
    failed = made.start_send(topic="TBW102")
    made.system.advance(1)
    assert failed[0].code == parked[0].code == ResponseCode.SYSTEM_ERROR


def test_more_than_five_failures_in_ten_seconds_stop_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker()
    monkeypatch.setattr(Appender, "append", failing(Appender.append, times=100))
    for number in range(6):
        assert made.system.gave_up is None, number
        assert made.send().code == ResponseCode.SYSTEM_ERROR
        made.system.advance(1500)
    assert made.system.gave_up == "Bug: as asked"
    made.crash()


def test_failures_far_apart_do_not_stop_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broker()
    original = Appender.append
    for _ in range(10):
        monkeypatch.setattr(Appender, "append", failing(original))
        assert made.send().code == ResponseCode.SYSTEM_ERROR
        made.system.advance(2500)
        assert made.send().code == ResponseCode.SUCCESS
    assert made.system.gave_up is None


# --- Reput


@pytest.mark.parametrize("after", [False, True], ids=["before the queues", "behind the queues"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_dispatch_is_caught_up_from_the_log(
    seed: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broker(seed)
    held: list[RemotingCommand] = []
    made.new_client().start(pull_command(hold_ms=60_000, queue_id=1), held.append)
    made.system.drain()
    dispatcher = made.broker.store.dispatcher
    original = dispatcher.dispatch_to_queues
    monkeypatch.setattr(dispatcher, "dispatch_to_queues", failing(original, after=after))
    answers = [
        made.start_send(b"%d" % number, queue_id=number % 4, properties=f"KEYS\x01key{number}")
        for number in range(20)
    ]
    made.system.advance(RESTART_MS)
    # A send that PutMessage had not taken when the group went down is served by the next one.
    assert [each[0].code for each in answers] == [ResponseCode.SUCCESS] * 20
    assert len(no_gap_and_no_duplicate(made)) == 20
    assert held and held[0].code == ResponseCode.SUCCESS
    index = made.broker.store.index
    assert index is not None
    for number in range(20):
        hits = index.query("Topic", f"key{number}", 64, 0, 1 << 62).physical_offsets
        assert len(set(hits)) == 1
    assert made.system.address("reput").incarnation == 2


def test_a_full_disk_for_queue_units_refuses_sends_until_there_is_space() -> None:
    made = broker()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    assert made.send(b"before").code == ResponseCode.SUCCESS
    made.system.drain()
    disk.fail_next("set_size", NO_SPACE, times=3)
    with capture_logs() as lines:
        made.system.advance(300)
        refused = made.send(b"refused")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert made.pull().code == ResponseCode.SUCCESS  # what is in memory can be pulled
        made.system.advance(1000)
    assert made.send(b"behind").code == ResponseCode.SUCCESS
    events = [line["event"] for line in lines if line["event"].startswith("writes")]
    assert events == ["writes disabled", "writes enabled"]
    assert no_gap_and_no_duplicate(made) == [b"before", b"behind"]


# --- the disk


def test_a_full_disk_refuses_a_send_with_figures_and_accepts_the_next() -> None:
    made = broker()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    assert made.send(b"before").code == ResponseCode.SUCCESS
    made.system.advance(1000)
    disk.capacity_bytes = disk.used_bytes() * 2
    disk.fail_next("pwrite", NO_SPACE)
    refused = made.send(b"refused")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.remark == (
        "service not available now. It may be caused by one of the following reasons: the broker's"
        " disk is full [CL:  0.50 CQ:  0.50 INDEX: -1.00], messages are put to the slave, message"
        " store has been shut down, etc."
    )
    assert refused.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    disk.capacity_bytes = None
    assert made.send(b"behind").code == ResponseCode.SUCCESS
    assert no_gap_and_no_duplicate(made) == [b"before", b"behind"]
    assert made.system.address("put_message").incarnation == 1


def test_only_a_permanent_refusal_of_writes_is_permanent() -> None:
    made = broker()
    put_message = made.system.address("put_message")
    put_message.tell(WritesForbidden("queues"))
    assert made.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    put_message.tell(WritesForbidden(None))
    assert made.send().code == ResponseCode.SUCCESS
    put_message.tell(WritesForbidden("the log", final=True))
    put_message.tell(WritesForbidden(None))
    assert made.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    made.system.drain()
    assert made.offset(RequestCode.GET_MAX_OFFSET) == 1
