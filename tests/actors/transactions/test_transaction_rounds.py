"""Rounds of checks as a whole: their limits, what they cannot read, how far the group has come."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from actors.transactions import check_back_planner
from actors.transactions.check_back_planner import BATCH_COUNT
from protocol.message import MessageRecord
from storage.tables.offsets import parse_offsets
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.transacting import (
    HALF,
    INTERVAL_MS,
    OP,
    ROLLBACK,
    beat,
    broker,
    end,
    half,
    of_topic,
    pending_count,
    producing,
    questions,
    round_of_checks,
)
from troupemq.testing.fake_disk import FakeDisk

OFFSETS = f"{STORE.root}/config/consumerOffset.json"


def progress(made: SimulatedBroker) -> tuple[int, int]:
    """Return the half and operation offsets of the file; -1 if missing."""
    file = made.disk.open(OFFSETS)
    table = parse_offsets(file.pread(file.size(), 0).decode()).offset_table
    half_offsets, op_offsets = (
        table.get(f"{topic}@CID_RMQ_SYS_TRANS", {}).get(0, -1) for topic in (HALF, OP)
    )
    return half_offsets, op_offsets


def test_check_progress_is_stored_after_the_sync() -> None:
    """After a power cut, an original broker would lose the messages before an unsynced offset."""
    made = broker()
    assert isinstance(made.disk, FakeDisk)
    end(made, half(made), ROLLBACK)
    made.system.advance(INTERVAL_MS - 1000)
    end(made, half(made), ROLLBACK)
    made.disk.fail_next("sync", OSError(5, "Input/output error"), times=9)
    made.system.advance(2000)
    made.system.advance(6000)
    told = made.broker.tables.offsets.value
    assert f"{HALF}@CID_RMQ_SYS_TRANS" not in told
    made.crash()


def test_check_progress_is_readable_for_an_original_broker() -> None:
    """The offset passes settled and copied half messages, up to the first pending one."""
    made = broker()
    producer = producing(made)
    ended = [half(made, f"{number}") for number in range(3)]
    for prepared in ended[:2]:
        end(made, prepared, ROLLBACK)
    immune = half(made, "immune", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": 1000})
    half(made, "behind")
    round_of_checks(made)
    assert [question.header.msg_id for question in questions(producer)] == ["2", "behind"]
    made.system.advance(10_000)
    # what waits holds it back, so the copy behind is settled for the original's eyes
    assert progress(made) == (immune.queue_offset, 2)
    assert [op.body for op in of_topic(made, OP)] == [b"0", b"1", b"4"]
    end(made, immune, ROLLBACK)
    made.stop()
    half_offset, op_offset = progress(made)
    assert (half_offset, op_offset) == (5, 2)
    assert [record.queue_offset for record in of_topic_of_disk(made)] == [0, 1, 2, 3, 4, 5, 6]


def of_topic_of_disk(made: SimulatedBroker) -> list[MessageRecord]:
    """The half messages of a broker that was stopped."""
    made.start()
    found = of_topic(made, HALF)
    made.stop()
    return found


def test_many_open_transactions_are_checked_without_blocking_the_loop() -> None:
    count = 3 * BATCH_COUNT
    made = broker(store=replace(STORE, commit_log_file_bytes=1 << 20))
    producer = producing(made)
    for number in range(count):
        half(made, f"{number}")
    round_of_checks(made)
    assert [question.header.msg_id for question in questions(producer)] == [
        f"{number}" for number in range(count)
    ]
    assert pending_count(made) == count


def test_a_check_round_is_limited_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_back_planner, "ROUND_COUNT", BATCH_COUNT)
    made = broker(store=replace(STORE, commit_log_file_bytes=1 << 20))
    producer = producing(made)
    count = 3 * BATCH_COUNT
    for number in range(count):
        immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": 1000} if number < 5 else {}
        half(made, f"{number}", properties=immunity)
    asked = []
    for _ in range(2):
        round_of_checks(made)
        beat(producer)
        asked.append([int(question.header.msg_id or "") for question in questions(producer)])
    first, second = asked
    assert first == [*range(5, 2 * BATCH_COUNT)]
    assert second[:BATCH_COUNT] == [*range(2 * BATCH_COUNT, count)]


def test_an_unreadable_half_message_delays_no_other() -> None:
    made = broker()
    producer = producing(made)
    damaged = half(made, "damaged")
    half(made, "K")
    assert isinstance(made.disk, FakeDisk)
    file = made.disk.open(f"{STORE.root}/commitlog/{0:020d}")
    file.pwrite(b"\xff", damaged.physical_offset + 90)
    with capture_logs() as logs:
        round_of_checks(made, 2)
    broken = [line for line in logs if line["event"] == "half message read failed"]
    assert len(broken) == 1
    assert [question.header.msg_id for question in questions(producer)] == ["K", "K"]


def test_groups_without_producers_share_a_line() -> None:
    """A round with 10,000 of them wrote a line for each, which blocked the loop for 0.4 s."""
    made = broker()
    for n in range(20):
        half(made, f"K{n}", properties={"PGROUP": f"group{n % 15}"})
    with capture_logs() as logs:
        made.system.advance(INTERVAL_MS * 1.5)
    (line,) = [each for each in logs if each["event"] == "no producer found for check-back"]
    assert (line["times"], line["count"]) == (15, 20)
    assert line["names"] == [f"group{n}" for n in range(10)]
