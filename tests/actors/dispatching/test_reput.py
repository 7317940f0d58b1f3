"""Reput dispatches appended records to queues and index, and informs held pulls."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from actors.dispatching import reput
from actors.dispatching.messages import (
    Appended,
    Arrived,
    AwaitDispatch,
    CaughtUp,
    QueuesSynced,
    QueuesWritten,
    WriteOutQueues,
    WritesForbidden,
)
from actors.dispatching.reput import DispatchProgress, Reput
from actors.engine.supervisor import ChildSpec
from actors.pulling.held_pulls import HoldTable
from storage.dispatching.dispatch import FED_TOGETHER, entry_of
from storage.errors import StoreError
from storage.message_store import MessageStore
from storage.queues.consume_queue import UNIT
from storage.queues.dispatch_entry import Dispatched, DispatchEntry
from tests.support.peers import Told, simulated
from tests.support.store import SmallStore
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class Cast:
    """A store, a Reput on it, and its receivers."""

    def __init__(self, system: SimulatedSystem, small: SmallStore) -> None:
        self.system, self.small, self.store = system, small, small.store
        self.pull_hold, self.put_message = Told("pull_hold"), Told("put_message")
        self.flusher, self.catch_up = Told("flush_real_time"), Told("catch_up")
        self.following = DispatchProgress(0)
        self.held = HoldTable()
        self.held.count = 1  # a pull is held, so PullHold is informed

    def start(self) -> None:
        self.system.start(
            ChildSpec(
                "reput",
                lambda _: Reput(
                    self.store,
                    self.following,
                    pull_hold=self.pull_hold.address,
                    put_message=self.put_message.address,
                    catch_up=self.catch_up.address,
                    clean_files=Told("clean_files").address,
                    held=self.held,
                    receipts=Told("receipts").address,
                    waiting=HoldTable(),
                ),
            )
        )
        assert [type(told) for told in self.pull_hold.take()] == [CaughtUp]

    def append(self, count: int) -> list[DispatchEntry]:
        """Appends messages, as PutMessage does, and tells Reput of them."""
        placed = self.small.send(count, dispatch=False)
        heads = self.store.commit_log.walk(placed[0][0])
        entries = [entry_of(head, ()) for head in heads]
        end_offset = self.store.commit_log.end_offset
        self.system.address("reput").tell(Appended(end_offset, [*entries]))
        return entries

    def ask_unsynced(self, least_pages: int) -> QueuesWritten:
        self.system.address("reput").tell(WriteOutQueues(least_pages, self.flusher.address))
        self.system.drain()
        (told,) = self.flusher.take()
        assert isinstance(told, QueuesWritten)
        return told

    def on_disk(self, store: MessageStore, queue_id: int) -> int:
        """Return the number of units in the files of a queue."""
        directory = f"{store.config.consume_queue_dir}/Topic/{queue_id}"
        names = store.disk.listdir(directory)
        data = b"".join(store.disk.read_bytes(f"{directory}/{name}") for name in names)
        return -(-len(data.rstrip(b"\0")) // UNIT.size)


@contextmanager
def following(disk: FakeDisk | None = None, *, sent_before: int = 0) -> Iterator[Cast]:
    small = SmallStore(disk)
    if sent_before:
        small.send(sent_before, dispatch=False)
    with simulated(small.disk) as system:
        made = Cast(system, small)
        made.start()
        yield made
    small.store.close()


def arrived(told: Told) -> list[DispatchEntry]:
    messages = told.take()
    assert all(isinstance(message, Arrived) for message in messages)
    return [entry for message in messages for entry in message.entries]


def test_appended_records_are_readable_indexed_and_announced_in_order() -> None:
    with following() as made:
        entries = made.append(7) + made.append(5)
        made.system.drain()
        assert arrived(made.pull_hold) == entries
        assert {name: len(units) for name, units in made.small.units().items()} == {
            ("Topic", 0): 7,
            ("Topic", 1): 5,
        }
        assert made.small.found_by_key() == 12
        assert made.following.dispatched_offset == made.store.commit_log.end_offset
        assert made.following.store_timestamp == entries[-1].store_timestamp


def test_arrivals_are_not_sent_without_held_pulls() -> None:
    with following() as made:
        made.held.count = 0
        made.append(3)
        made.system.drain()
        assert not made.pull_hold.take()
        made.held.count = 1
        entries = made.append(2)
        made.system.drain()
        assert arrived(made.pull_hold) == entries


def test_dispatch_targets_get_plain_messages_by_the_next_tick() -> None:
    with following() as made:
        index = made.store.index
        assert index is not None
        made.append(FED_TOGETHER - 1)
        made.system.drain()
        assert index.covered_offset == 0
        made.append(1)
        made.system.drain()
        assert index.covered_offset == made.store.commit_log.end_offset
        made.append(3)
        made.system.advance(reput.WRITE_OUT_MS)
        assert index.covered_offset == made.store.commit_log.end_offset


@pytest.mark.parametrize(
    "asked", [WriteOutQueues(0, Told("flush").address), WriteOutQueues(4, Told("flush").address)]
)
def test_a_sync_request_covers_every_appended_record(asked: WriteOutQueues) -> None:
    with following() as made:
        made.append(3)
        made.system.drain()
        made.system.address("reput").tell(asked)
        made.system.drain()
        assert made.store.transaction_table.covered_offset == made.store.commit_log.end_offset


def test_records_pending_when_reput_fails_are_dispatched_by_the_next_one() -> None:
    with following() as made:
        made.append(3)
        made.system.drain()
        made.system.address("reput").tell(Appended(-1, [None]))  # type: ignore[list-item]
        made.system.advance(2000)
        assert made.system.address("reput").incarnation == 2
        assert made.small.found_by_key() == 3


def test_a_flood_is_dispatched_completely_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much has come in one batch, a turn is short; a stop waits for the rest."""
    monkeypatch.setattr(reput, "DISPATCHED_MAX", 10)
    with following() as made:
        entries = made.append(37) + made.append(20)
        made.system.drain()
        told = made.pull_hold.take()
        assert max(len(message.entries) for message in told) == 10
        assert [entry for message in told for entry in message.entries] == entries
        assert made.following.dispatched_offset == made.store.commit_log.end_offset
        made.append(35)
        made.system.run_until(made.pull_hold.has_mail)  # a turn is done, the stop comes between
        assert made.following.dispatched_offset < made.store.commit_log.end_offset
    assert made.following.dispatched_offset == made.store.commit_log.end_offset
    assert len(made.small.units()["Topic", 0]) + len(made.small.units()["Topic", 1]) == 92


def test_a_batch_of_appends_is_dispatched_and_announced_at_once() -> None:
    with following() as made:
        made.append(5)
        made.system.drain()
        assert len(made.pull_hold.take()) == 1


def test_reput_starts_at_the_first_undispatched_record() -> None:
    with following(sent_before=9) as made:
        assert sum(map(len, made.small.units().values())) == 9
        assert made.following.dispatched_offset == made.store.commit_log.end_offset
        made.append(3)
        made.system.drain()
        assert sum(map(len, made.small.units().values())) == 12


def test_entries_read_from_the_log_are_not_dispatched_twice() -> None:
    with following(sent_before=9) as made:
        heads = made.store.commit_log.walk(0)
        again = [entry_of(head, ()) for head in heads]
        end_offset = made.store.commit_log.end_offset
        made.system.address("reput").tell(Appended(end_offset, [*again]))
        made.append(3)
        made.system.drain()
        assert sum(map(len, made.small.units().values())) == 12
        assert made.small.found_by_key() == 12


def test_units_reach_their_files_within_a_fifth_of_a_second() -> None:
    with following() as made:
        made.append(6)
        made.system.advance(199)
        assert not made.store.disk.exists(f"{made.store.config.consume_queue_dir}/Topic/0")
        made.system.advance(1)
        assert made.on_disk(made.store, 0) == made.on_disk(made.store, 1) == 3


def test_many_queues_are_written_out_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other actors run in between."""
    monkeypatch.setattr(reput, "WRITTEN_AT_ONCE", 1)
    with following() as made:
        made.append(6)
        made.append(6)
        queues, counts = made.store.consume_queues, list[int]()
        written = queues.write_out_some

        def write_out_some(count: int, weight: int) -> int:
            counts.append(queues.unwritten_count)
            return written(count, weight)

        monkeypatch.setattr(queues, "write_out_some", write_out_some)
        made.system.advance(200)
        assert counts == [2, 1]
        assert made.on_disk(made.store, 0) == made.on_disk(made.store, 1) == 6


def test_a_full_disk_for_units_pauses_dispatch() -> None:
    disk = FakeDisk()
    with following(disk) as made, capture_logs() as lines:
        made.append(4)
        disk.fail_next("set_size", NO_SPACE, times=3)
        made.system.advance(1000)
        first, second = made.put_message.take()
        assert isinstance(first, WritesForbidden) and isinstance(second, WritesForbidden)
        assert "the disk is full" in (first.reason or "")
        assert (second.reason, first.final) == (None, False)
        assert sum(map(len, made.small.units().values())) == 4
        assert made.on_disk(made.store, 0) == 2
    events = [line["event"] for line in lines if "unit writes" in line["event"]]
    failed = [line for line in lines if line["event"] == "consume queues or index not written"]
    assert events == ["queue unit writes resumed"]
    assert len(failed) == 1


def test_synced_units_are_not_synced_again() -> None:
    with following() as made:
        made.append(8)
        made.system.drain()
        first = made.ask_unsynced(0)
        assert len(first.unsynced.files.paths) == 2
        assert first.unsynced.store_timestamp == made.following.store_timestamp
        made.system.address("reput").tell(QueuesSynced(first.unsynced, first.full_index))
        made.system.drain()
        assert made.ask_unsynced(0).unsynced.files.paths == []
        made.append(2)
        made.system.drain()
        assert len(made.ask_unsynced(0).unsynced.files.paths) == 2


def test_a_few_units_wait_for_the_thorough_flush() -> None:
    with following() as made:
        made.append(8)
        made.system.advance(200)
        written = made.ask_unsynced(2)
        assert (written.unsynced.files.paths, written.unsynced.store_timestamp) == ([], None)


def test_the_checkpoint_does_not_cover_unwritten_units() -> None:
    disk = FakeDisk()
    with following(disk) as made:
        made.append(4)
        made.system.drain()
        disk.fail_next("set_size", NO_SPACE)
        written = made.ask_unsynced(0)
        assert (written.unsynced.files.paths, written.unsynced.store_timestamp) == ([], None)
        (told,) = made.put_message.take()
        assert isinstance(told, WritesForbidden) and told.reason
        made.system.advance(400)
        assert made.ask_unsynced(0).unsynced.store_timestamp is not None


def test_a_refusing_target_gets_records_later_without_delaying_readers() -> None:
    with following() as made:
        index = made.store.index
        assert index is not None
        take, refusals = index.dispatch, [StoreError("as asked")] * 3

        def refusing(entries: Sequence[Dispatched]) -> None:
            if refusals:
                raise refusals.pop()
            take(entries)

        index.dispatch = refusing  # type: ignore[method-assign]
        entries = made.append(4)
        made.system.drain()
        assert arrived(made.pull_hold) == entries
        entries = made.append(3)
        made.system.advance(2000)
        assert arrived(made.pull_hold) == entries
        assert made.small.found_by_key() == 7
        assert index in made.store.dispatcher.followers
        reasons = [told.reason for told in made.put_message.take()]
        assert reasons == ["as asked", None]


def test_a_request_for_dispatch_is_answered_when_the_unit_exists() -> None:
    asker, then = Told("asker"), CaughtUp()

    def ask(made: Cast, end_offset: int) -> list[object]:
        waiting = AwaitDispatch(end_offset, then, asker.address)  # type: ignore[arg-type]
        made.system.address("reput").tell(waiting)
        made.system.drain()
        return asker.take()

    with following() as made:
        made.append(5)
        made.system.drain()
        end_offset = made.store.commit_log.end_offset
        assert ask(made, end_offset) == [then]
        assert ask(made, end_offset + 1) == []
        made.system.advance(reput.WRITE_OUT_MS)
        assert asker.take() == [then], "at the latest"
        assert ask(made, end_offset + 1) == []
        assert made.system.stop(1)
        assert asker.take() == [then]


def test_pending_dispatch_requests_are_answered_when_reput_fails() -> None:
    asker, then = Told("asker"), CaughtUp()
    with following() as made:
        address = made.system.address("reput")
        address.tell(AwaitDispatch(1, then, asker.address))  # type: ignore[arg-type]
        made.system.drain()
        assert not asker.take()
        address.tell("what it does not know")
        made.system.drain()
        assert asker.take() == [then]
