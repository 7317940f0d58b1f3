"""The scrubber: finds what is damaged in log and queues, repairs what can be, and nothing else."""

from pathlib import Path
from random import Random

import pytest

from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.log.damage import Damage
from storage.log.reader import Gap, NamedLogReader, walk
from storage.queues.consume_queue import UNIT
from storage.scrub.round import Scrub
from storage.scrub.units import QueueKey, UnitRepair
from tests.storage.derived import config as golden_config
from tests.storage.scrub.scrubbed import (
    LOG,
    PAGE_BYTES,
    QUEUES,
    SENT,
    Stopped,
    log_at,
    unit_at,
    write,
)
from tests.support.by_hand import BY_HAND
from tests.support.golden import manifest, store
from tests.support.store import CONFIG


def test_an_intact_store_is_confirmed_down_to_its_first_unit() -> None:
    stopped = Stopped()
    scrub = stopped.scrub()
    assert stopped.damage.ranges == () and stopped.repairs == []
    assert stopped.verified == {(b"Topic", 0): 0, (b"Topic", 1): 0}
    assert scrub.counts.unit_count == scrub.counts.record_count == SENT
    assert scrub.counts.log_bytes == stopped.log_end


def test_the_scrubber_works_in_small_steps() -> None:
    stopped = Stopped()
    scrub = stopped.open()
    before, most = 0, 0
    for _ in scrub.steps():
        most, before = max(most, scrub.counts.record_count - before), scrub.counts.record_count
    assert 0 < most <= 32
    stopped.end(scrub)


def test_queues_are_verified_file_by_file_from_the_end() -> None:
    stopped = Stopped()
    scrub = stopped.open()
    seen: list[int] = []
    for _ in scrub.steps():
        seen += [low for key, low in scrub.pop_findings().verified.items() if key == (b"Topic", 0)]
    seen.append(scrub.pop_findings().verified[b"Topic", 0])
    assert seen == sorted(seen, reverse=True) and len(seen) > 3 and seen[-1] == 0
    stopped.end(scrub)


@pytest.mark.parametrize("bit", [0, 3, 7])
@pytest.mark.parametrize("position", range(UNIT.size))
def test_a_flipped_unit_is_repaired_from_its_record(position: int, bit: int) -> None:
    stopped = Stopped()
    path, start = unit_at(1, 40)
    stopped.flip(path, start + position, bit)
    stopped.scrub()
    assert stopped.is_as_sent()
    assert [repair[:3] for repair in stopped.repairs] == [(b"Topic", 1, 40)]
    assert stopped.damage.ranges == ()


@pytest.mark.parametrize("position", range(UNIT.size))
def test_a_flipped_unit_can_be_repaired_alone(position: int) -> None:
    stopped = Stopped()
    path, start = unit_at(1, 40)
    stopped.flip(path, start + position, 4)
    stopped.verify_unit(1, 40)
    assert stopped.is_as_sent()
    assert stopped.damage.ranges == ()


def test_zeroed_units_are_rebuilt() -> None:
    stopped = Stopped()
    path, start = unit_at(0, 30)
    write(stopped.disk, path, start, bytes(30 * UNIT.size))
    stopped.scrub()
    assert stopped.is_as_sent()
    assert len(stopped.repairs) == 30 and stopped.damage.ranges == ()


SEEN_IN_RECORD = {
    "length": range(0, 4),
    "magic": range(4, 8),
    "CRC": range(8, 12),
    "queue id": range(12, 16),
    "queue offset": range(20, 28),
    "physical offset": range(28, 36),
    "body length": range(84, 88),
    "body": range(88, 92),
    "topic length": range(92, 93),
    "topic": range(93, 98),
    "properties length": range(98, 100),
}


@pytest.mark.parametrize("part", SEEN_IN_RECORD)
@pytest.mark.parametrize("alone", [False, True], ids=["in a round", "verified alone"])
@pytest.mark.trial(short=1, long=8)
def test_a_flipped_bit_of_a_record_makes_it_a_damaged_range_and_no_other(
    part: str, alone: bool, seed: int
) -> None:
    """The seed says which bit of each byte."""
    for position in SEEN_IN_RECORD[part]:
        stopped = Stopped()
        head = stopped.flip_record(100, position, (position + seed) % 8)
        if alone:
            stopped.verify_unit(head.queue_id, head.queue_offset)
        else:
            stopped.scrub()
        where = (position, stopped.damage.ranges)
        assert [each[:2] for each in stopped.damage.ranges] == [
            (head.physical_offset, head.physical_offset + head.record_bytes)
        ], where
        assert stopped.is_as_sent(), where


def test_a_hole_in_the_log_is_one_range_and_all_of_its_units_point_into_it() -> None:
    stopped = Stopped()
    first, last = stopped.heads[80], stopped.heads[100]
    start, end = first.physical_offset, last.physical_offset
    write(stopped.disk, *log_at(start), bytes(end - start))
    scrub = stopped.scrub()
    assert [each[:2] for each in stopped.damage.ranges] == [(start, end)]
    assert scrub.counts.damaged_count == 20 and stopped.is_as_sent()
    assert stopped.verified == {(b"Topic", 0): 0, (b"Topic", 1): 0}


def test_a_unit_and_its_record_both_damaged_end_as_one_range() -> None:
    stopped = Stopped()
    head = stopped.flip_record(100, 88)
    path, start = unit_at(head.queue_id, head.queue_offset)
    write(stopped.disk, path, start, b"\x7f" * UNIT.size)
    stopped.scrub()
    end = head.physical_offset + head.record_bytes
    assert [each[:2] for each in stopped.damage.ranges] == [(head.physical_offset, end)]
    wanted = head.physical_offset, head.record_bytes, 0
    assert stopped.unit(head.queue_id, head.queue_offset) == wanted


def test_records_of_a_deleted_topic_are_only_counted() -> None:
    stopped = Stopped()
    stopped.disk.remove_tree(f"{QUEUES}/1")
    del stopped.ends[b"Topic", 1]
    scrub = stopped.scrub()
    assert scrub.counts.unknown_queues == {(b"Topic", 1): SENT // 2}
    assert stopped.repairs == [] and stopped.damage.ranges == ()


def test_units_of_records_deleted_with_the_first_files_are_skipped() -> None:
    stopped = Stopped()
    stopped.disk.unlink(f"{LOG}/{0:020d}")
    stopped.disk.unlink(f"{LOG}/{CONFIG.commit_log_file_bytes:020d}")
    scrub = stopped.scrub()
    assert stopped.repairs == [] and stopped.damage.ranges == ()
    assert scrub.counts.unconfirmed_count == 0
    assert stopped.verified == {(b"Topic", 0): 0, (b"Topic", 1): 0}


def test_a_file_that_is_deleted_during_the_round_is_no_damage() -> None:
    stopped = Stopped()
    scrub = stopped.open()
    steps = scrub.steps()
    next(steps)
    for name in stopped.disk.listdir(LOG)[:-1]:
        stopped.disk.unlink(f"{LOG}/{name}")
    for _ in steps:
        pass
    assert stopped.damage.ranges == () and scrub.pop_findings().repairs == []
    scrub.close()


def test_pages_that_the_disk_cannot_read_are_damage() -> None:
    stopped = Stopped()
    stopped.disk.fail_next("pread", OSError(5, "Input/output error"), times=2)
    stopped.scrub()
    file_bytes = CONFIG.commit_log_file_bytes
    start = stopped.log_end - stopped.log_end % file_bytes
    ends = [
        head.physical_offset for head in stopped.heads if head.physical_offset >= start + PAGE_BYTES
    ]
    assert [each[:2] for each in stopped.damage.ranges] == [(start, ends[0])]
    assert stopped.is_as_sent()


def test_records_with_a_wrong_length_hide_no_later_ones() -> None:
    """All records are of one size: a length with a flipped bit may lead to one further on."""
    stopped = Stopped(8)
    head = stopped.heads[2]
    longer = (3 * head.record_bytes).to_bytes(4)
    path, position = log_at(head.physical_offset)
    write(stopped.disk, path, position, longer)
    reader = NamedLogReader(stopped.disk, CONFIG, stopped.log_end)
    gaps = [item for item in walk(reader, 0, stopped.log_end) if isinstance(item, Gap)]
    assert [gap[:2] for gap in gaps] == [
        (head.physical_offset, head.physical_offset + head.record_bytes)
    ]
    reader.close()


def golden_ends(root: Path) -> dict[QueueKey, int]:
    return {
        (name.rpartition("/")[0].encode(), int(name.rpartition("/")[2])): len(units)
        for name, units in manifest(root.name)["consumeQueues"].items()
    }


def scrubbed(root: Path, config: StoreConfig) -> tuple[Scrub, Damage, list[UnitRepair]]:
    damage = Damage()
    end = manifest(root.name)["commitLogEnd"]
    scrub = Scrub(RealDisk(), config, damage, log_end=end, queue_ends=golden_ends(root))
    for _ in scrub.steps():
        pass
    scrub.close()
    return scrub, damage, scrub.pop_findings().repairs


@pytest.mark.parametrize("name", ["clean", "ext", "v6", "slave", "crashed-recovered", BY_HAND])
def test_a_store_of_the_original_has_no_findings(name: str, tmp_path: Path) -> None:
    root = store(name, tmp_path)
    scrub, damage, repairs = scrubbed(root, golden_config(str(root)))
    assert (damage.ranges, repairs) == ((), [])
    counts = scrub.counts
    assert (counts.stray_count, counts.newer_count, counts.unconfirmed_count) == (0, 0, 0)
    assert not counts.unknown_queues
    assert counts.record_count == len(manifest(name)["rawRecords"])
    assert counts.unit_count == sum(golden_ends(root).values())


@pytest.mark.trial(short=10, long=1000)
def test_flips_in_log_and_queues_affect_no_other_message(seed: int) -> None:
    random = Random(seed)
    stopped = Stopped()
    hit = random.sample(range(SENT), 5)
    for number in hit:
        head = stopped.heads[number]
        if random.random() < 0.6:
            seen = [at for part in SEEN_IN_RECORD.values() for at in part]
            stopped.flip_record(number, random.choice(seen), random.randrange(8))
        if random.random() < 0.6:
            path, start = unit_at(head.queue_id, head.queue_offset)
            stopped.flip(path, start + random.randrange(UNIT.size), random.randrange(8))
    stopped.scrub()
    for number, head in enumerate(stopped.heads):
        unit = stopped.unit(head.queue_id, head.queue_offset)
        is_out = stopped.damage.overlaps(unit[0], unit[0] + unit[1])
        is_right = unit == stopped.units["Topic", head.queue_id][head.queue_offset]
        assert is_out or is_right, (number, unit, stopped.damage.ranges)
        if number not in hit:
            assert is_right and not is_out, (number, unit, stopped.damage.ranges)
    assert all(low == 0 for low in stopped.verified.values())
