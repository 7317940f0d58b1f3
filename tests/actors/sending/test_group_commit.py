"""SYNC_FLUSH: one sync for all waiting sends, OK only after it, and an answer to each."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from structlog.testing import capture_logs

from actors.broker import Broker
from actors.engine.actor import Actor, handles
from actors.engine.histogram import SYNC_BOUNDS_MS, ClassCounts
from actors.sending.appender import Record
from actors.sending.flush_real_time import Flusher
from actors.sending.messages import CommitUpTo, Sync, Synced
from actors.sending.put_answers import SendPut
from actors.sending.send_rules import new_state
from protocol.batch import BatchMessage, encode_batch
from protocol.bodies_tables import TopicConfig
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from storage.log.commit_log import CommitLog
from tests.support.brokers import BROKER, STORE, FramesPeer, SimulatedBroker, send_command
from troupemq.testing.fake_disk import FakeDisk

SYNC = replace(STORE, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=5000)
BROKEN = OSError(errno.EIO, "Input/output error")
SUCCESS, TIMEOUT = ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT


@dataclass(slots=True)
class _Now:
    """Do the sync that waited."""

    sync: Sync


class SlowFlusher(Flusher):
    """Takes its time, on the simulated clock; counts what it was asked for."""

    def __init__(self, commit_log: CommitLog, takes_ms: Callable[[], float]) -> None:
        super().__init__(commit_log, ClassCounts(SYNC_BOUNDS_MS))
        self._takes_ms = takes_ms
        self.asked: list[int] = []

    @handles(Sync)
    def on_sync(self, message: Sync) -> None:
        self.asked.append(message.offset)
        self.after(self._takes_ms(), _Now(message))

    @handles(_Now)
    def on_now(self, message: _Now) -> None:
        super().on_sync(message.sync)


def broker(
    takes_ms: float | None = None, *, timeout_ms: int = 5000, seed: int = 2
) -> tuple[SimulatedBroker, list[SlowFlusher]]:
    """With `takes_ms`, every sync takes so long."""
    flushers: list[SlowFlusher] = []

    def slow(made: Broker) -> Actor:
        flushers.append(SlowFlusher(made.store.commit_log, lambda: takes_ms or 0))
        return flushers[-1]

    made = SimulatedBroker(
        seed,
        FakeDisk(),
        store_config=replace(SYNC, sync_flush_timeout_ms=timeout_ms),
        instead={} if takes_ms is None else {"flusher": slow},
    )
    made.make_topic()
    return made, flushers


def disk_of(made: SimulatedBroker) -> FakeDisk:
    assert isinstance(made.disk, FakeDisk)
    return made.disk


def codes(answers: list[list[RemotingCommand]]) -> list[int]:
    return [answer[0].code for answer in answers]


def test_a_send_is_acknowledged_only_after_the_sync() -> None:
    made, _ = broker(takes_ms=300)
    answers = made.start_send()
    made.system.advance(299)
    assert not answers
    assert made.broker.store.commit_log.flushed_offset == 0
    made.system.advance(1)
    assert codes([answers]) == [SUCCESS]
    log = made.broker.store.commit_log
    assert log.flushed_offset == log.end_offset


def test_one_sync_serves_all_pending_sends() -> None:
    made, (flusher,) = broker(takes_ms=300)
    first = made.start_send(b"first")
    made.system.advance(100)
    gathered = [made.start_send(b"%d" % number, queue_id=number % 4) for number in range(50)]
    made.system.advance(200)
    assert codes([first]) == [SUCCESS]
    # The sync that ran took along what was written when it read the log's end.
    made.system.advance(300)
    assert codes(gathered) == [SUCCESS] * 50
    assert len(flusher.asked) <= 2


def test_a_sync_over_a_roll_covers_both_files() -> None:
    made, (flusher,) = broker(takes_ms=300)
    disk = disk_of(made)
    file_bytes = STORE.commit_log_file_bytes
    while made.broker.store.commit_log.end_offset < file_bytes - 6000:
        made.send(b"x" * 4000)
    made.system.advance(1000)
    answers = [made.start_send(b"y" * 4000) for _ in range(3)]
    made.system.advance(10)
    log = made.broker.store.commit_log
    assert log.flushed_offset < file_bytes < log.end_offset
    made.system.advance(280)
    before = disk.sync_count
    made.system.advance(10)
    assert disk.sync_count == before + 2
    assert codes(answers) == [SUCCESS] * 3
    assert len(flusher.asked) <= len(made.records())


def test_a_failed_sync_is_never_ok_and_the_next_send_is_refused() -> None:
    made, _ = broker()
    assert made.send(b"before").code == SUCCESS
    made.system.advance(1)
    disk_of(made).fail_next("sync", BROKEN)
    with capture_logs() as lines:
        failed = made.send(b"written but not safe")
        assert failed.code == TIMEOUT
        made.system.drain()
        refused = made.send(b"refused")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (refused.remark or "").startswith("service not available now.")
    errors = [line["event"] for line in lines if line["log_level"] == "error"]
    assert errors == ["sync of the commit log failed", "writes disabled"]
    assert [record.body for record in made.records()] == [b"before", b"written but not safe"]
    assert {"msgId", "queueId", "queueOffset", "MSG_REGION"} <= (failed.fields or {}).keys()
    made.system.advance(20_000)
    assert made.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    made.crash()


def test_all_sends_pending_at_a_failed_sync_are_answered() -> None:
    made, _ = broker(takes_ms=300)
    first = made.start_send(b"first")
    made.system.advance(100)
    second = made.start_send(b"second")
    made.system.advance(100)
    disk_of(made).fail_next("sync", BROKEN)
    made.system.advance(101)
    assert codes([first, second]) == [TIMEOUT, TIMEOUT]
    made.crash()


def test_a_slow_sync_is_answered_flush_disk_timeout() -> None:
    made, _ = broker(takes_ms=9000, timeout_ms=5000)
    answers = made.start_send(b"slow")
    made.system.advance(4900)
    assert not answers
    made.system.advance(201)
    assert codes([answers]) == [TIMEOUT]
    assert [record.body for record in made.records()] == [b"slow"]
    made.system.advance(4000)
    assert len(answers) == 1
    assert made.broker.store.commit_log.flushed_offset > 0
    # The disk is slow, not broken: messages are still taken.
    later = made.start_send(b"later")
    made.system.advance(9100)
    assert codes([later]) == [TIMEOUT]


def test_a_send_that_does_not_wait_is_answered_at_once_and_wakes_the_flusher() -> None:
    made, (flusher,) = broker(takes_ms=300)
    answers = made.start_send(properties="WAIT\x01false")
    batch = encode_batch([BatchMessage(b"b")])
    batched = made.start_send(batch, batch=True, properties="WAIT\x01false")
    made.system.advance(10)
    assert codes([answers, batched]) == [SUCCESS, SUCCESS]
    log = made.broker.store.commit_log
    assert log.flushed_offset == 0
    assert flusher.asked
    made.system.advance(700)
    assert log.flushed_offset == log.end_offset


def test_sends_of_one_read_that_do_not_wait_are_answered_first() -> None:
    made, _ = broker(takes_ms=300)
    peer = FramesPeer()
    waits = [None, "WAIT\x01false", "WAIT\x01true", "WAIT\x01false"]
    sends = peer.sends(*[send_command(properties=wait or "") for wait in waits])
    made.system.address("put_message").tell(sends)
    made.system.advance(10)
    assert sorted(answer.opaque for answer in peer.received) == [1, 3]
    assert peer.released_bytes == 0
    made.system.advance(300)
    assert [answer.code for answer in peer.answers()] == [SUCCESS] * 4
    assert peer.released_bytes == 100


@pytest.mark.parametrize("takes_ms", [None, 700.0])
def test_at_the_stop_the_rest_is_flushed_and_answered(takes_ms: float | None) -> None:
    made, _ = broker(takes_ms)
    answers = [made.start_send(b"%d" % number) for number in range(20)]
    made.system.advance(0)
    made.stop()
    assert codes(answers) == [SUCCESS] * 20


def test_at_the_stop_a_failing_disk_is_answered_flush_disk_timeout() -> None:
    made, _ = broker(takes_ms=100_000, timeout_ms=200_000)
    answers = made.start_send()
    made.system.advance(10)
    disk_of(made).fail_next("sync", BROKEN, times=50)
    made.system.stop(60)
    assert codes([answers]) == [TIMEOUT]
    made.crash()


def test_sends_covered_by_a_sync_are_answered_without_another() -> None:
    """The flusher's word may overtake that of the append which it covered."""
    made, _ = broker()
    made.send(b"on the disk")
    made.system.advance(10)
    before = disk_of(made).sync_count
    log = made.broker.store.commit_log
    peer = FramesPeer()
    sends = peer.sends(send_command())
    sends.owed = 1
    record = Record(b"Topic", 0, 0, 0, 0, 0, peer.host, 0, 0, b"body", b"", 0, 0, (), 0, 0, 100)
    state = new_state("Topic", TopicConfig("Topic"))
    stored = SendPut(state, record, sends, sends.sends[0], 0, True, None, 0.0)
    made.system.address("group_commit").tell(CommitUpTo(log.flushed_offset, [stored]))
    made.system.drain()
    assert [answer.code for answer in peer.received] == [SUCCESS]
    assert disk_of(made).sync_count == before


@pytest.mark.trial(short=4, long=500)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_sync_master_without_slave_answers_after_its_own_sync(flush: str, seed: int) -> None:
    """Sends that wait get 4.9.7's answer for no connected slave; the others get OK."""
    made = SimulatedBroker(
        seed,
        config=replace(BROKER, broker_role="SYNC_MASTER"),
        store_config=replace(SYNC, flush_disk_type=flush),
    )
    made.make_topic()
    answers = [made.start_send(b"%d" % number) for number in range(10)]
    quick = made.start_send(properties="WAIT\x01false")
    made.system.advance(10)
    assert codes(answers) == [ResponseCode.SLAVE_NOT_AVAILABLE] * 10
    assert codes([quick]) == [SUCCESS]
    assert {"msgId", "queueId", "queueOffset"} <= (answers[0][0].fields or {}).keys()
    assert len(made.messages()) == 11


@pytest.mark.trial(short=10, long=1000)
def test_no_order_of_appends_and_syncs_leaves_a_send_unanswered(seed: int) -> None:
    made, _ = broker(seed=seed)
    answers = [made.start_send(b"%d" % number) for number in range(30)]
    made.system.advance(1)
    answers += [made.start_send(b"%d" % number) for number in range(30)]
    made.system.advance(1)
    assert codes(answers) == [SUCCESS] * 60


def test_a_failed_flusher_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = broker()
    original = CommitLog.sync
    failures = ["a bug"]

    def sync(log: CommitLog, up_to: int) -> int:
        if failures:
            raise KeyError(failures.pop())
        return original(log, up_to)

    monkeypatch.setattr(CommitLog, "sync", sync)
    answers = made.start_send()
    made.system.advance(100)
    assert codes([answers]) == [SUCCESS]
    assert made.system.address("flusher").incarnation == 2


def test_group_commit_ignores_a_late_reply_of_an_earlier_sync() -> None:
    made, _ = broker()
    made.send()
    made.system.address("group_commit").tell(Synced(0))
    assert made.send().code == SUCCESS
