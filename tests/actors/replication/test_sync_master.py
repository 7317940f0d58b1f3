"""A SYNC_MASTER waits for its slave and its disk at the same time, until its timeout."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from actors.dispatching.messages import Appended
from actors.engine.actor_address import ActorAddress
from actors.sending.messages import CommitUpTo, LogGrew
from protocol.codes import ResponseCode
from storage.config import StoreConfig
from tests.support.brokers import STORE
from tests.support.replication import TOPIC, Pair, end_of, fill, following
from troupemq.testing.fake_disk import FakeDisk

SYNC = replace(STORE, flush_disk_type="SYNC_FLUSH")
OK, NO_SLAVE = ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE
SLAVE_TIMEOUT, DISK_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.FLUSH_DISK_TIMEOUT


def code_after(pair: Pair, ms: float, **options: Any) -> int | None:
    """The answer to a send that came within `ms`."""
    answers = pair.send(topic=TOPIC, **options)
    pair.advance(ms)
    return answers[0].code if answers else None


def test_a_sync_master_answers_after_a_slave_has_the_message() -> None:
    with following(master_role="SYNC_MASTER") as pair:
        assert code_after(pair, 50) == OK
        pair.cut()
        answers = pair.send(topic=TOPIC)
        pair.advance(2_900)
        assert not answers, "answered without a slave"
        pair.advance(300)
        assert answers[0].code == SLAVE_TIMEOUT
        assert code_after(pair, 0, properties="WAIT\x01false") == OK
        answers = pair.send(topic=TOPIC)
        pair.advance(1_000)
        pair.heal()
        pair.advance(50)
        assert answers[0].code == OK


def test_without_a_slave_a_sync_master_answers_slave_not_available_at_once() -> None:
    with following(master_role="SYNC_MASTER") as pair:
        pair.die(pair.slave, FakeDisk())
        pair.advance(30_000)
        assert code_after(pair, 0) == NO_SLAVE
        pair.restart(pair.slave)


def test_sends_do_not_wait_for_a_slave_too_far_behind() -> None:
    with following(master_role="SYNC_MASTER", ha_fall_behind_max_bytes=20_000) as pair:
        fill(pair, 2)
        pair.cut()
        first = []
        for _ in range(3):
            first.append(pair.send(bytes(9_000), topic=TOPIC))
            pair.advance(0)
        assert [bool(answer) for answer in first] == [False, False, True]
        assert first[2][0].code == NO_SLAVE
        pair.heal()
        pair.advance(100)
        assert [answer[0].code for answer in first] == [OK, OK, NO_SLAVE]
        assert code_after(pair, 50) == OK


def test_a_slave_failure_overrides_a_disk_failure_in_the_answer() -> None:
    with following(master_role="SYNC_MASTER", store=SYNC) as pair:
        disk = pair.master.disk
        assert isinstance(disk, FakeDisk)
        assert code_after(pair, 50) == OK
        disk.fail_next("sync", OSError(errno.EIO, "Input/output error"), times=100)
        pair.cut()
        answers = pair.send(topic=TOPIC)
        pair.advance(2_500)
        assert not answers
        pair.advance(1_000)
        assert answers[0].code == SLAVE_TIMEOUT
        pair.die(pair.master, disk)


def test_under_sync_flush_only_flushed_bytes_are_replicated() -> None:
    """So no power cut makes a slave longer than its master."""
    with following(store=SYNC) as pair:
        disk = pair.master.disk
        assert isinstance(disk, FakeDisk)
        fill(pair, 3)
        pair.advance(100)
        before = end_of(pair.slave)
        disk.fail_next("sync", OSError(errno.EIO, "Input/output error"), times=100)
        answers = pair.send(topic=TOPIC)
        pair.advance(10_000)
        assert answers[0].code == DISK_TIMEOUT
        assert end_of(pair.master) > before == end_of(pair.slave)
        pair.die(pair.master, disk)


def test_a_slave_under_sync_flush_reports_its_durable_offset() -> None:
    with following(master_role="SYNC_MASTER", store=SYNC) as pair:
        fill(pair, 3)
        pair.advance(100)
        disk = pair.slave.disk
        assert isinstance(disk, FakeDisk)
        disk.fail_next("sync", OSError(errno.EIO, "Input/output error"), times=100)
        assert code_after(pair, 3_200) == SLAVE_TIMEOUT
        assert end_of(pair.slave) == end_of(pair.master)
        pair.die(pair.slave, disk)


def test_an_empty_slave_acknowledges_nothing_before_its_start_offset() -> None:
    """4.9.7 tells the producer OK there, of a message that no slave has."""
    with following(master_role="SYNC_MASTER") as pair:
        for _ in range(2):
            fill(pair, 40)
        pair.die(pair.slave, FakeDisk())
        pair.advance(100)
        pair.cut()
        pair.is_cut = False
        pair.restart(pair.slave)
        pair.cut()
        waiting = [pair.send(bytes(9_000), topic=TOPIC) for _ in range(10)]
        pair.advance(10)
        pair.heal()
        pair.advance(4_000)
        log = pair.slave.broker.store.commit_log
        for answer in waiting:
            if answer[0].code == OK:
                assert int((answer[0].fields or {})["msgId"][-16:], 16) >= log.min_offset()


@contextmanager
def noted() -> Iterator[list[str]]:
    """Record the messages that announce growth, in order."""
    told: list[str] = []
    tell = ActorAddress.tell

    def noting(address: ActorAddress, message: object) -> None:
        if isinstance(message, LogGrew | Appended):
            told.append(type(message).__name__)
        tell(address, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ActorAddress, "tell", noting)
        yield told


@pytest.mark.parametrize(("store", "first"), ((STORE, "LogGrew"), (SYNC, "Appended")))
def test_a_slave_gets_a_message_before_dispatch(store: StoreConfig, first: str) -> None:
    """Slave and master work at the same time; under SYNC_FLUSH the slave gets synced bytes."""
    with following(master_role="SYNC_MASTER", store=store) as pair:
        with noted() as told:
            answers = pair.send(topic=TOPIC)
            pair.advance(50)
        assert told[0] == first and "LogGrew" in told
        assert answers[0].code == OK


def test_a_slave_gets_bytes_that_another_flush_covered() -> None:
    """DelayOffsets and Transactions sync the log, too; then GroupCommit has nothing to wait for."""
    with following(master_role="SYNC_MASTER", store=SYNC) as pair:
        log = pair.master.broker.store.commit_log
        with noted() as told:
            pair.master.system.address("group_commit").tell(CommitUpTo(log.flushed_offset, ()))
            pair.master.system.drain()
        assert told == ["LogGrew"]
