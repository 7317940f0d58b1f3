"""Queues with an extension: what the units point at is there, through restarts and power cuts."""

from dataclasses import replace

import pytest

from storage.config import StoreConfig
from storage.errors import StoreError
from storage.queues.consume_queue_ext import ExtUnit, is_address
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import DispatchEntry
from tests.storage.derived import RECORD_BYTES, config, entry
from troupemq.testing.fake_disk import FakeDisk

ROOT = "/store/consumequeue_ext"
EXTENDED = replace(config(), enable_consume_queue_ext=True, consume_queue_ext_file_bytes=1000)


def bits(entry: DispatchEntry) -> bytes | None:
    """Return a bitmap of 1 to 5 bytes for every second record."""
    number = entry.physical_offset // RECORD_BYTES
    return bytes([number % 256]) * (number % 5 + 1) if number % 2 else None


def entries(start: int, end: int) -> list[DispatchEntry]:
    return [
        entry(n, queue_id=n % 2, queue_offset=n // 2, tags_code=n * 31) for n in range(start, end)
    ]


def opened(disk: FakeDisk, settings: StoreConfig = EXTENDED) -> ConsumeQueues:
    queues = ConsumeQueues(settings, disk)
    queues.bit_maps = bits
    queues.load()
    return queues


def known(queues: ConsumeQueues) -> dict[tuple[str, int, int], ExtUnit | None]:
    """Return the extension units of all messages."""
    found = {}
    for queue in queues:
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            assert unit is not None
            found[queue.topic, queue.queue_id, offset] = queue.ext(unit[2])
    return found


def wanted(end: int, start: int = 0) -> dict[tuple[str, int, int], ExtUnit | None]:
    return {
        ("T", n % 2, n // 2): ExtUnit(each.tags_code, each.store_timestamp, bits(each))
        for n, each in zip(range(start, end), entries(start, end), strict=True)
    }


def files(disk: FakeDisk) -> dict[str, bytes]:
    return {path: disk.read_bytes(path) for path in disk.paths() if "/consumequeue" in path}


def filled(disk: FakeDisk, end: int) -> ConsumeQueues:
    queues = opened(disk)
    queues.append(entries(0, end))
    queues.sync_all()
    return queues


@pytest.mark.parametrize("end", [1, 2, 50, 700, 2000])
def test_every_message_is_found_before_and_after_a_restart(end: int) -> None:
    disk = FakeDisk()
    queues = opened(disk)
    queues.append(entries(0, end))
    assert known(queues) == wanted(end)
    queues.write_out_all()
    assert known(queues) == wanted(end)
    again = opened(disk)
    assert known(again) == wanted(end) and not again.misfits()
    again.mend()
    again.append(entries(end, end + 100))
    assert known(again) == wanted(end + 100)
    noted = again.known()
    again.sync_all()
    third = ConsumeQueues(EXTENDED, disk)
    assert third.load_known(noted) == []
    third.bit_maps = bits
    third.append(entries(end + 100, end + 200))
    assert known(third) == wanted(end + 200)


def test_a_dispatched_message_gets_no_second_extension_unit() -> None:
    disk = FakeDisk()
    queues = filled(disk, 100)
    before = files(disk)
    queues.append(entries(0, 100))
    queues.write_out_all()
    assert files(disk) == before


def test_a_log_dispatched_again_after_truncation_gives_the_same_files() -> None:
    disk, other = FakeDisk(), FakeDisk()
    filled(other, 900)
    queues = filled(disk, 900)
    queues.truncate_behind(333 * RECORD_BYTES)
    assert known(queues) == wanted(333)
    queues.append(entries(333, 900))
    queues.write_out_all()
    assert files(disk) == files(other)


@pytest.mark.trial(short=11, long=300)
def test_synced_units_survive_a_power_cut(seed: int) -> None:
    disk = FakeDisk()
    queues = filled(disk, 400)
    for start in range(400, 900, 50):
        queues.append(entries(start, start + 50))
        queues.write_out_all()
    after = disk.crashed(seed)
    again = opened(after)
    again.mend()
    again.truncate_behind(400 * RECORD_BYTES)
    lost = [key for key in again.misfits()]
    for topic, queue_id in lost:
        queue = again.get(topic, queue_id)
        assert queue is not None
        queue.remove(after)
    again.append([each for each in entries(0, 400) if ("T", each.queue_id) in lost])
    assert known(again) == wanted(400)
    again.append(entries(400, 900))
    again.write_out_all()
    assert known(again) == wanted(900) == known(opened(after))


@pytest.mark.parametrize("what", ["all", "topic", "queue", "first", "last", "short", "zeros"])
def test_a_queue_with_a_missing_extension_is_a_misfit(what: str) -> None:
    disk = FakeDisk()
    filled(disk, 400)
    names = disk.listdir(f"{ROOT}/T/1")
    assert len(names) > 3
    if what in ("all", "topic", "queue"):
        disk.remove_tree({"all": ROOT, "topic": f"{ROOT}/T", "queue": f"{ROOT}/T/1"}[what])
    elif what == "short":
        disk.open(f"{ROOT}/T/1/{names[-1]}").set_size(10)
    elif what == "zeros":
        disk.open(f"{ROOT}/T/1/{names[-1]}").pwrite(bytes(1000), 0)
    else:
        disk.unlink(f"{ROOT}/T/1/{names[0 if what == 'first' else -1]}")
    again = opened(disk)
    assert ("T", 1) in again.misfits()
    again.mend()
    for queue in again:
        queue.remove(disk)
    again.append(entries(0, 400))
    again.sync_all()
    assert known(opened(disk)) == wanted(400) and not opened(disk).misfits()


def test_a_unit_with_a_wrong_extension_is_repaired_when_dispatched_again() -> None:
    disk = FakeDisk()
    filled(disk, 100)
    disk.flip_bit(f"{ROOT}/T/0/{0:020d}", 9, 0)
    queues = opened(disk)
    queues.append(entries(0, 100))
    assert known(queues) == wanted(100)


def test_a_repair_keeps_a_correct_extension_address() -> None:
    queues = filled(FakeDisk(), 100)
    queue = queues.get("T", 0)
    assert queue is not None
    queue.repair(10, 20 * RECORD_BYTES, RECORD_BYTES, 20 * 31)
    unit = queue.unit(10)
    assert unit is not None and is_address(unit[2])
    queue.repair(10, 20 * RECORD_BYTES, RECORD_BYTES, 5)
    assert queue.unit(10) == (20 * RECORD_BYTES, RECORD_BYTES, 5)


def test_extensions_can_be_disabled_and_enabled_again() -> None:
    disk = FakeDisk()
    filled(disk, 100)
    plain = opened(disk, settings=config())
    plain.append(entries(100, 200))
    plain.sync_all()
    queue = plain.get("T", 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None and is_address(unit[2]) and queue.ext(unit[2]) is None
    again = opened(disk)
    assert not again.misfits()
    again.append(entries(200, 300))
    found = known(again)
    assert {key: each for key, each in found.items() if each is not None} == {
        **wanted(100),
        **wanted(300, 200),
    }
    assert [found["T", 0, n] for n in range(50, 100)] == [None] * 50


def test_a_queue_without_an_extension_gets_one_for_new_messages() -> None:
    disk = FakeDisk()
    plain = opened(disk, settings=config())
    plain.append(entries(0, 100))
    plain.sync_all()
    queues = opened(disk)
    queues.append(entries(100, 200))
    assert list(known(queues).values()).count(None) == 100
    queues.sync_all()
    assert known(opened(disk)) == known(queues)


def test_extension_files_before_the_first_message_are_deleted() -> None:
    disk = FakeDisk()
    queues = filled(disk, 1000)
    before = len(disk.listdir(f"{ROOT}/T/0"))
    for queue in queues:
        for path in queue.trim_before(900 * RECORD_BYTES):
            disk.unlink(path)
    assert len(disk.listdir(f"{ROOT}/T/0")) < before // 3
    again = ConsumeQueues(EXTENDED, disk)
    again.load(900 * RECORD_BYTES)
    again.correct_min_offsets(900 * RECORD_BYTES)
    assert not again.misfits()
    assert known(again) == wanted(1000, 900)


def test_leftover_files_before_a_deleted_one_are_removed() -> None:
    disk = FakeDisk()
    queues = filled(disk, 1000)
    for queue in queues:
        for path in queue.trim_before(900 * RECORD_BYTES)[1:]:
            disk.unlink(path)
    again = ConsumeQueues(EXTENDED, disk)
    again.load(900 * RECORD_BYTES)
    again.mend()
    again.correct_min_offsets(900 * RECORD_BYTES)
    assert not again.misfits()
    assert known(again) == wanted(1000, 900)


def test_removing_a_queue_removes_its_extension() -> None:
    disk = FakeDisk()
    queues = filled(disk, 100)
    disk.make_dirs("/store/away")
    queue = queues.get("T", 0)
    assert queue is not None
    moved = len(disk.listdir(queue.directory)) + len(disk.listdir(f"{ROOT}/T/0"))
    queues.take_out(queue, "/store/away")
    assert len(disk.listdir("/store/away")) == moved
    assert disk.listdir(f"{ROOT}/T/0") == []


def test_a_size_that_contradicts_all_files_is_an_operator_error() -> None:
    disk = FakeDisk()
    filled(disk, 400)
    with pytest.raises(StoreError, match="mappedFileSizeConsumeQueueExt is 2000"):
        opened(disk, settings=replace(EXTENDED, consume_queue_ext_file_bytes=2000))


def test_a_message_without_filters_has_an_extension_unit_without_bit_map() -> None:
    queues = ConsumeQueues(EXTENDED, FakeDisk())
    queues.append(entries(0, 2))
    assert [unit and unit.bitmap for unit in known(queues).values()] == [None, None]


def test_files_of_a_deleted_queue_are_not_reused() -> None:
    disk, other = FakeDisk(), FakeDisk()
    filled(disk, 1000)
    disk.remove_tree("/store/consumequeue")
    for each in (disk, other):
        queues = opened(each)
        queues.append(entries(0, 40))
        queues.sync_all()
    assert files(disk) == files(other)
