"""The scrubber of a broker: repairs of findings, and answers to verifications."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from structlog.testing import capture_logs

from actors.dispatching.messages import (
    RebuildIndex,
    RepairsRefused,
    RepairUnits,
    UnitVerified,
    VerifyUnit,
)
from actors.dispatching.reput import repair_units
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.scrubbing.scrubber import PATIENCE_MS, START_DELAY_MS, Scrubber, ScrubFigures
from storage.config import StoreConfig
from storage.retention.trimming import RemovedQueues, remove_queues
from tests.support.peers import Told, simulated
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.simulation import SimulatedSystem

SENT = 250
QUEUES = "/store/consumequeue/Topic"
ROUND_MS = 60_000


class Cast:
    """A reopened store with its scrubber and the receivers of its messages."""

    def __init__(self, system: SimulatedSystem, small: SmallStore) -> None:
        self.system, self.small, self.store = system, small, small.store
        self.reput, self.pull_hold = Told("reput"), Told("pull_hold")
        self.heads = list(small.log.walk(0))
        self.scrubbed = SnapshotRef(ScrubFigures())
        scrubber = Scrubber(self.store, self.reput.address, self.scrubbed)
        system.start(ChildSpec("scrubber", lambda _: scrubber))

    def verify_unit(self, queue_offset: int) -> UnitVerified:
        """Asks about a unit of queue 0, as PullMessage does."""
        self.system.address("scrubber").tell(
            VerifyUnit("Topic", 0, queue_offset, self.pull_hold.address)
        )
        return UnitVerified("Topic", 0, queue_offset)

    def told(self) -> list[RepairUnits]:
        """Carry out the messages that Reput got and return them."""
        messages: list[Any] = self.reput.take()
        for message in messages:
            repair_units(self.store.consume_queues, message)
        return messages

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        queue = self.store.consume_queues.get("Topic", 0)
        assert queue is not None
        return queue.unit(queue_offset)

    def verified_from(self) -> list[int]:
        return [queue.verified_from for queue in self.store.consume_queues]


@contextmanager
def scrubbing(small: SmallStore | None = None) -> Iterator[Cast]:
    if small is None:
        small = SmallStore()
        small.send(SENT)
        small = small.restarted()
    with simulated(small.disk) as system:
        yield Cast(system, small)
    small.store.close()


def damaged(small: SmallStore, path: str, position: int, data: bytes) -> None:
    file = small.disk.open(path)
    file.pwrite(data, position)
    file.close()


def test_the_whole_store_is_scrubbed_once_after_a_start() -> None:
    with scrubbing() as made, capture_logs() as logs:
        made.system.advance(START_DELAY_MS - 1)
        assert made.told() == [] and made.verified_from() == [SENT // 2] * 2
        made.system.advance(ROUND_MS)
        assert all(not message.repairs for message in made.told())
        assert made.verified_from() == [0, 0]
        (line,) = (each for each in logs if each["event"] == "store verified")
        assert (line["records"], line["units"], line["log_level"]) == (SENT, SENT, "info")
        made.system.advance(ROUND_MS)
        assert made.told() == []


def test_the_scrubber_works_only_its_share_of_the_time() -> None:
    small = SmallStore()
    small.send(6 * SENT)
    with scrubbing(small.restarted()) as made:
        slices: list[float] = []
        scrubber = made.system.address("scrubber")
        made.system.advance(START_DELAY_MS)
        handled = scrubber.handled
        for _ in range(40):
            made.system.advance(1)
            if scrubber.handled > handled:
                slices.append(made.system.clock.monotonic_ms())
                handled = scrubber.handled
        assert len(slices) >= 2
        # A slice counts for a millisecond, and one tenth of the time is its share.
        assert all(b - a >= 9 for a, b in pairwise(slices))


def test_a_flipped_unit_is_repaired_and_a_damaged_record_reported() -> None:
    with scrubbing() as made, capture_logs() as logs:
        right = made.unit(30)
        damaged(made.small, f"{QUEUES}/0/{600:020d}", 6, b"\xff")
        head = made.heads[100]
        file_bytes = CONFIG.commit_log_file_bytes
        path = f"/store/commitlog/{head.physical_offset // file_bytes * file_bytes:020d}"
        damaged(made.small, path, head.physical_offset % file_bytes + 88, b"\xff")
        made.system.advance(ROUND_MS)
        made.told()
        assert made.unit(30) == right
        end = head.physical_offset + head.record_bytes
        assert [each[:2] for each in made.store.damage.ranges] == [(head.physical_offset, end)]
        events = [each["event"] for each in logs if each["log_level"] == "warning"]
        assert sorted(events) == ["commit log damaged", "queue unit repaired", "store verified"]


def test_only_the_first_findings_of_a_kind_are_logged() -> None:
    with scrubbing() as made, capture_logs() as logs:
        damaged(made.small, f"{QUEUES}/0/{600:020d}", 0, bytes(600))
        made.system.advance(ROUND_MS)
        assert sum(len(message.repairs) for message in made.told()) == 30
        assert sum(each["event"] == "queue unit repaired" for each in logs) == 20


def test_damaged_index_file_is_rebuilt() -> None:
    with scrubbing() as made:
        index = made.store.index
        assert index is not None and len(index.files) > 2
        damaged(made.small, index.files[1].path, 200, b"\x01")
        made.system.advance(ROUND_MS)
        told = [each for each in made.reput.take() if isinstance(each, RebuildIndex)]
        assert [each.path for each in told] == [index.files[1].path]
        assert told[0].reason


def test_a_unit_check_is_answered_after_its_repair_and_before_the_round() -> None:
    with scrubbing() as made:
        right = made.unit(30)
        damaged(made.small, f"{QUEUES}/0/{600:020d}", 6, b"\xff")
        verified = made.verify_unit(30)
        made.verify_unit(30)
        made.system.advance(100)
        (message,) = made.reput.take()
        assert [repair.queue_offset for _, repair in message.repairs] == [30]
        assert made.pull_hold.take() == []
        repair_units(made.store.consume_queues, message)
        assert made.unit(30) == right
        assert made.pull_hold.take() == [verified, verified]


def test_a_unit_check_does_not_wait_for_the_round() -> None:
    small = SmallStore()
    small.send(10 * SENT)
    with scrubbing(small.restarted()) as made:
        made.system.advance(START_DELAY_MS + 1)
        assert made.verified_from() != [0, 0]
        verified = made.verify_unit(3)
        made.system.advance(10)
        made.told()
        assert made.pull_hold.take() == [verified]
        assert made.verified_from() != [0, 0]


def test_a_check_of_a_missing_unit_is_answered() -> None:
    with scrubbing() as made:
        verified = [made.verify_unit(SENT), made.verify_unit(-1), made.verify_unit(0)]
        made.system.advance(200)
        made.told()
        assert made.pull_hold.take() == verified


def test_a_topic_deleted_during_the_round_is_not_repaired() -> None:
    with scrubbing() as made:
        damaged(made.small, f"{QUEUES}/0/{600:020d}", 6, b"\xff")
        made.system.advance(ROUND_MS)
        remove_queues(made.store, None, RemovedQueues(), only="Topic")
        made.small._next_offsets.clear()
        made.small.send(80)
        units = made.small.units()
        made.told()
        assert made.small.units() == units


def test_disk_that_recovers_within_a_minute_has_no_damage() -> None:
    """Records read while the disk was away counted as damage: consumers skipped them for good."""
    with scrubbing() as made, capture_logs() as logs:
        away = OSError(5, "Input/output error")
        made.small.disk.fail_next("pread", away, times=4, below=made.store.config.commit_log_dir)
        made.system.advance(ROUND_MS)
        assert made.store.damage.ranges == () and made.system.address("scrubber").incarnation == 1
        assert [each["records"] for each in logs if each["event"] == "store verified"] == [SENT]
        assert made.told() and made.verified_from() == [0, 0]


def test_records_that_stay_unreadable_are_damage_after_a_minute() -> None:
    with scrubbing() as made, capture_logs() as logs:
        bad = OSError(5, "Input/output error")
        made.small.disk.fail_next("pread", bad, times=999, below=made.store.config.commit_log_dir)
        made.system.advance(PATIENCE_MS)
        assert made.store.damage.ranges == ()
        made.system.advance(ROUND_MS)
        assert made.store.damage.ranges
        assert [each for each in logs if each["event"] == "store verified"]


def test_a_failed_repair_restarts_the_round() -> None:
    with scrubbing() as made, capture_logs() as logs:
        path = f"{QUEUES}/0/{600:020d}"
        right = made.unit(30)
        damaged(made.small, path, 6, b"\xff")
        made.system.advance(ROUND_MS)
        made.small.disk.fail_next("pwrite", OSError(5, "Input/output error"))
        made.told()
        assert any(each["event"] == "units not repaired" for each in logs) is False
        made.system.advance(ROUND_MS)
        assert any(each["event"] == "units not repaired" for each in logs)
        made.told()
        assert made.unit(30) == right and made.verified_from() == [0, 0]


def test_a_reput_failure_with_pending_repairs_restarts_the_round() -> None:
    scrubber, pull_hold = Told("scrubber"), Told("pull_hold")
    verified = UnitVerified("Topic", 0, 1)
    RepairUnits([], [], scrubber.address, [(pull_hold.address, verified)]).on_undelivered("died")
    assert scrubber.take() == [RepairsRefused("died")]
    assert pull_hold.take() == [verified]


def test_a_disabled_scrubber_still_answers_unit_checks() -> None:
    small = SmallStore(config=StoreConfig(**{**vars(CONFIG), "scrub_enable": False}))
    small.send(SENT)
    with scrubbing(small.restarted()) as made:
        made.system.advance(ROUND_MS)
        assert made.reput.take() == []
        verified = made.verify_unit(3)
        made.system.advance(100)
        made.told()
        assert made.pull_hold.take() == [verified]
