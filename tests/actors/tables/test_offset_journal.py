"""Journal of consumer offsets, through a whole broker: what survives kill -9."""

from collections.abc import Iterator
from dataclasses import replace
from errno import EMFILE, ENOSPC
from functools import partial

import pytest
from structlog.testing import capture_logs

from actors.engine.interfaces import SnapshotRef
from actors.engine.system import StartFailed
from actors.receipts.ledger import Ledger
from actors.tables.messages import MergeOffsets
from actors.tables.offset_journal import OffsetJournal
from protocol.bodies_tables import ConsumerOffsetTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from storage.backup.backup import StoreBackup
from storage.backup.record import BackupFolder
from storage.backup.restore import StoreRestore
from storage.checking.store_check import StoreCheck
from storage.clock import SystemClock
from storage.errors import TooManyFiles
from storage.tables.ahead_set import AheadSet
from storage.tables.offset_journal import HEAD_BYTES, generations
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.pulls import broker, committed
from tests.support.receiving import (
    Received,
    ack_command,
    batch_ack_command,
    change_command,
    receive_command,
    received,
)
from troupemq.testing.fake_disk import FakeDisk

JOURNAL, TABLE = "/store/troupemq/offsets", "/store/config/consumerOffset.json"


def receive(made: SimulatedBroker) -> list[Received]:
    made.system.drain()
    return received(made.client.request(receive_command()))


def bodies(made: SimulatedBroker) -> list[int]:
    return [int(each.body) for each in receive(made)]


def sent(count: int) -> tuple[SimulatedBroker, list[Received]]:
    """Return a broker and messages of a group that has settled message 0 before."""
    made = broker()
    for number in range(count):
        made.start_send(b"%d" % number)
    messages = receive(made)
    assert made.ask(ack_command(messages[0])).code == 0
    made.system.drain()
    return made, messages


def disk_of(made: SimulatedBroker) -> FakeDisk:
    assert isinstance(made.disk, FakeDisk)
    return made.disk


def test_answered_settlement_survives_a_kill() -> None:
    made, messages = sent(10)
    assert made.ask(ack_command(messages[1])).code == 0
    assert made.ask(batch_ack_command([messages[n] for n in (3, 4, 6)])).code == 0
    assert made.ask(change_command(messages[8], 0, retry_delay_level=-1)).code == 0
    assert made.ask(change_command(messages[9], 1_000)).code == 0
    made.restart_killed()
    assert committed(made) == 2
    assert bodies(made) == [2, 5, 7, 9]


def test_held_message_keeps_none_of_the_settled_ones_behind_it() -> None:
    made, messages = sent(32)
    assert made.ask(batch_ack_command(messages[2:])).code == 0
    for _ in range(3):  # through saves, kills and a clean stop
        made.system.advance(6_000)
        made.restart_killed()
        made.stop()
        made.start()
        assert bodies(made) == [1]


def test_acknowledgement_from_before_a_kill_is_kept_by_the_next_one() -> None:
    made, messages = sent(6)
    made.restart_killed()
    assert made.ask(ack_command(messages[4])).code == 0
    assert made.ask(ack_command(messages[2])).code == 0
    made.restart_killed()
    assert bodies(made) == [1, 3, 5]


def test_first_answer_waits_until_the_table_names_the_journal() -> None:
    made = broker()
    for number in range(3):
        made.start_send(b"%d" % number)
    messages = receive(made)
    assert generations(made.disk, JOURNAL) == []
    answers: list[RemotingCommand] = []
    made.client.start(ack_command(messages[0]), answers.append)
    made.system.run_until(lambda: bool(answers))
    made.restart_killed()
    assert bodies(made) == [1, 2]


def test_table_without_receives_names_no_journal() -> None:
    made = broker()
    made.start_send(b"0")
    made.system.drain()
    commit(made, 1)
    made.system.advance(6_000)
    assert b"journal" not in made.disk.read_bytes(TABLE)
    assert not made.disk.is_dir(JOURNAL)


def commit(made: SimulatedBroker, offset: int) -> None:
    """Set the offset as an operator does."""
    fields = {
        "consumerGroup": "consumers",
        "topic": "Topic",
        "queueId": "0",
        "commitOffset": str(offset),
    }
    assert made.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


def test_reset_is_not_undone_by_a_replay() -> None:
    made, messages = sent(8)
    made.ask(batch_ack_command(messages[1:4] + messages[6:]))
    commit(made, 1)
    made.restart_killed()
    assert bodies(made) == [1, 2, 3, 4, 5, 6, 7]


def test_settlements_after_a_reset_count_from_there() -> None:
    made, messages = sent(6)
    made.ask(batch_ack_command(messages[1:]))
    commit(made, 2)
    again = receive(made)
    made.ask(ack_command(again[1]))
    made.restart_killed()
    assert bodies(made) == [2, 4, 5]


def test_deleted_group_stays_deleted_after_a_kill() -> None:
    made, messages = sent(4)
    made.ask(batch_ack_command(messages[1:3]))
    fields = {"groupName": "consumers", "removeOffset": "true"}
    assert made.ask(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    made.system.drain()
    made.restart_killed()
    assert "Topic@consumers" not in made.broker.tables.live_offsets.value
    assert not made.broker.tables.settled_ahead.value


def test_table_that_another_broker_saved_makes_the_journal_void() -> None:
    made, messages = sent(5)
    made.ask(ack_command(messages[1]))
    made.ask(ack_command(messages[3]))
    made.crash()
    made.disk = disk_of(made).killed()
    text = b'{"offsetTable":{"Topic@consumers":{0:1}}}'
    for name in (TABLE, f"{TABLE}.bak"):  # as 4.9.7 leaves them
        file = made.disk.open(name, create=True)
        file.set_size(0)
        file.pwrite(text, 0)
    made.start()
    assert bodies(made) == [1, 2, 3, 4]


def test_former_master_keeps_nothing_above_the_offsets_of_its_new_master() -> None:
    made, messages = sent(6)
    made.ask(ack_command(messages[2]))
    made.ask(ack_command(messages[4]))
    for role, broker_id in (("SLAVE", 1), ("ASYNC_MASTER", 0)):
        made.config = replace(made.config, broker_role=role, broker_id=broker_id)
        made.restart_killed()
        if role == "SLAVE":  # the group was set back there
            table = ConsumerOffsetTable({"Topic@consumers": {0: 1}})
            made.system.address("consumer_offsets").tell(MergeOffsets(table))
            made.system.advance(6_000)
    assert bodies(made) == [1, 2, 3, 4, 5]


def test_full_disk_stops_the_journal_and_no_answer() -> None:
    made, messages = sent(6)
    full = partial(OSError, ENOSPC, "No space left on device")
    disk_of(made).fail_next("pwrite", full(), times=2, below=JOURNAL)
    assert made.ask(ack_command(messages[1])).code == 0
    assert made.ask(ack_command(messages[3])).code == 0
    made.system.advance(6_000)  # the save that begins the next file fails, too
    assert made.ask(ack_command(messages[4])).code == 0
    made.system.advance(6_000)
    made.restart_killed()
    assert bodies(made) == [2, 5], "the last save has begun a new file"


def test_unlisted_folder_stops_the_journal_and_no_actor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, messages = sent(4)
    error = OSError(EMFILE, "too many open files")
    disk_of(made).fail_next("listdir", error, times=2, below=JOURNAL)
    made.system.advance(6_000)  # at the beginning of a file, and after the save
    assert made.ask(ack_command(messages[1])).code == 0
    assert made.ask(ack_command(messages[2])).code == 0
    made.system.advance(6_000)
    assert not [each for each in caplog.messages if "actor" in each]
    made.restart_killed()
    assert bodies(made) == [3]
    assert len(generations(made.disk, JOURNAL)) == 1


@pytest.mark.parametrize("operation", ["listdir", "open"])
def test_journal_that_must_not_be_read_refuses_the_start_in_a_sentence(operation: str) -> None:
    """The start had six tracebacks, or forgot what had been acknowledged."""
    made, messages = sent(2)
    assert made.ask(ack_command(messages[1])).code == 0
    made.crash()
    error = OSError(EMFILE, "Too many open files")
    disk_of(made).fail_next(operation, error, times=6, below=JOURNAL)
    with pytest.raises(StartFailed) as refusal:
        made.start()
    cause = refusal.value.__cause__
    assert isinstance(cause, TooManyFiles)
    assert str(cause).startswith("cannot read the journal of consumer offsets (/store/troupemq")
    assert "raise `ulimit -n`" in str(cause)


def test_damaged_journal_is_logged_by_the_start() -> None:
    made, messages = sent(3)
    for message in messages[1:]:
        assert made.ask(ack_command(message)).code == 0
    (generation,) = generations(made.disk, JOURNAL)
    disk_of(made).flip_bit(f"{JOURNAL}/{generation}", HEAD_BYTES + 20, 1)
    with capture_logs() as lines:
        made.restart_killed()
    (line,) = [each for each in lines if each["event"] == "offset journal damaged"]
    assert f"{JOURNAL}/{generation}: damaged" in line["found"]


def test_older_files_are_deleted_when_the_table_is_saved() -> None:
    made, messages = sent(6)
    for message in messages[1:]:
        made.ask(ack_command(message))
        made.system.advance(6_000)
        assert len(generations(made.disk, JOURNAL)) == 1


def test_files_end_when_the_table_cannot_be_saved() -> None:
    made, messages = sent(32)
    disk_of(made).fail_next("pwrite", OSError(ENOSPC, "full"), times=99, below=f"{TABLE}.tmp")
    for message in messages[1:]:
        assert made.ask(ack_command(message)).code == 0
        made.system.advance(5_001)
    assert len(generations(made.disk, JOURNAL)) <= 9


def test_power_cut_leaves_the_offsets_of_an_earlier_moment() -> None:
    for seed in range(20):
        made, messages = sent(10)
        for message in (*messages[1:4], messages[6]):
            assert made.ask(ack_command(message)).code == 0
        made.crash()
        made.disk = disk_of(made).crashed(seed)
        made.start()
        there = {int(each.body) for each in made.records() if each.topic == "Topic"}
        assert {4, 5, 7, 8, 9} & there <= {*bodies(made)}, seed


def test_settled_messages_are_passed_without_reading_them() -> None:
    ledger = Ledger("g", "T", 0, is_retry=False)
    ledger.begin(5, 5, [6, 7, 9])
    ledger.advance(6)
    assert ledger.pass_settled(100) and ledger.next == 8
    assert not ledger.pass_settled(100)
    assert ledger.ahead == {9}


def checked(made: SimulatedBroker) -> list[str]:
    """Check the store of a stopped or killed broker; return its faults."""
    report = StoreCheck(made.disk, STORE).run()
    return [each.text for each in report.findings if each.is_wrong]


def test_check_reports_damage_of_the_journal_in_one_line() -> None:
    made, messages = sent(6)
    for number in (2, 4):
        assert made.ask(ack_command(messages[number])).code == 0
    made.crash()
    made.disk = disk_of(made).killed()
    assert checked(made) == []
    generation = generations(made.disk, JOURNAL)[-1]
    path = f"{JOURNAL}/{generation}"
    disk_of(made).flip_bit(path, HEAD_BYTES + 8, 0)
    found = f"{path}: damaged from byte {HEAD_BYTES} on: groups consume more messages again"
    assert checked(made) == [found]
    made.disk.unlink(path)
    assert checked(made) == [f"{path}: missing, or no journal: groups consume more messages again"]


def test_journal_of_a_stopped_broker_has_no_faults() -> None:
    made, _ = sent(6)
    made.stop()
    assert checked(made) == []


def backup(made: SimulatedBroker) -> FakeDisk:
    """Back the running broker up; return a disk with the restored store."""
    found = FakeDisk()
    StoreBackup(STORE, made.disk, BackupFolder(found, "/copy"), SystemClock()).run()
    StoreRestore(found, "/copy", STORE).run()
    return found


def test_restored_broker_continues_with_the_journal_of_its_backup() -> None:
    made, messages = sent(10)
    assert made.ask(batch_ack_command([messages[n] for n in (3, 4, 6)])).code == 0
    found = backup(made)
    made.crash()
    made.disk = found
    made.start()
    assert bodies(made) == [1, 2, 5, 7, 8, 9]


def test_backup_has_the_journal_that_its_table_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made, messages = sent(10)
    read, disk = made.disk.read_bytes, disk_of(made)
    saves = iter(range(2))

    def read_slowly(path: str) -> bytes:
        if path.startswith(JOURNAL) and next(saves, None) is not None:
            assert made.ask(ack_command(messages.pop(3))).code == 0
            made.system.advance(6_000)
        return read(path)

    monkeypatch.setattr(disk, "read_bytes", read_slowly)
    found = backup(made)
    made.crash()
    made.disk = found
    made.start()
    assert sorted(bodies(made)) == [1, 2, 5, 6, 7, 8, 9], "copies, as their time is over"


@pytest.mark.parametrize("level, delay_ms", [(1, 1_000), (0, 10_000)])
def test_kill_does_not_repeat_a_retry_that_its_delay_level_has_delivered(
    level: int, delay_ms: int
) -> None:
    made, messages = sent(3)
    assert made.ask(change_command(messages[1], 0, retry_delay_level=level)).code == 0
    assert made.ask(ack_command(messages[2])).code == 0
    made.system.advance(delay_ms + 1_000)
    retries = received(made.client.request(receive_command()))
    assert [each.body for each in retries] == [b"1"]
    assert made.ask(ack_command(retries[0])).code == 0
    made.restart_killed()
    made.system.advance(20_000)
    assert bodies(made) == []
    assert len(made.messages("%RETRY%consumers")) == 1


def test_a_deleted_group_costs_what_its_own_queues_cost() -> None:
    """A group of 10,000 topics took 15 s with 50,000 queues of others that have settled offsets."""

    class Unlisted(dict[tuple[str, int], AheadSet]):
        def __iter__(self) -> Iterator[tuple[str, int]]:
            raise AssertionError("all queues were looked at")

    journal = OffsetJournal(JOURNAL, SnapshotRef({}))
    journal.begin(FakeDisk(), None, {"T@G": {0: 5, 1: 6}, "T@H": {0: 7}})
    ahead = Unlisted({("T@G", 0): AheadSet(), ("T@H", 0): AheadSet()})
    journal._state.ahead = ahead
    journal.replace("T@G", {}, (0, 1))
    assert ("T@G", 0) not in ahead and ("T@H", 0) in ahead
