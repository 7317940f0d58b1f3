"""Bytes that count as cached, and questions to the kernel."""

from dataclasses import replace

import pytest

from storage.files.disk import Disk
from storage.reading import checked_get
from storage.reading.get_message import GetStatus
from storage.reading.page_probe import PageProbe
from tests.support.doubts import LONG_QUEUES, OldStore


def probe_of(old: OldStore, recent_bytes: int = 1 << 30) -> PageProbe:
    return PageProbe(old.log, recent_bytes)


def read_back(disk: Disk, path: str, position: int, count: int) -> None:
    file = disk.open(path, read_only=True)
    file.pread(count, position)
    file.close()


def test_cached_messages_are_returned_at_once() -> None:
    old = OldStore(12)
    assert old.get(0, probe=probe_of(old)).count == 12


def test_cold_ranges_are_named_and_not_touched() -> None:
    for verified_from in (0, 12):
        old = OldStore(12)
        old.queue.verified_from = verified_from
        probe = probe_of(old)
        old.made.disk.forget_cache("/store/commitlog")
        result = old.get(2, probe=probe)
        assert (result.status, result.count, result.next_offset) == (GetStatus.COLD, 0, 2)
        (part,) = result.cold
        start = old.placed[2][0]
        assert part.path.endswith("/commitlog/" + "0" * 20)
        assert (part.position, part.size) == (start, sum(old.placed[11]) - start)
        assert old.get(2).count == 10  # without a probe, everything is read
        read_back(old.made.disk, *part)
        assert old.get(2, probe=probe).count == 10


def test_cold_units_are_named_before_records() -> None:
    old = OldStore(12)
    probe = probe_of(old)
    old.made.disk.forget_cache()
    result = old.get(2, count=4, probe=probe)
    assert result.status is GetStatus.COLD
    (part,) = result.cold
    assert part.path.endswith("/consumequeue/Topic/0/" + "0" * 20)
    assert (part.position, part.size) == (2 * 20, 4 * 20)
    read_back(old.made.disk, *part)
    (part,) = old.get(2, count=4, probe=probe).cold
    assert "commitlog" in part.path


def test_recent_appends_near_the_end_count_as_cached_without_a_probe() -> None:
    old = OldStore(12)
    probe = probe_of(old)
    old.send(3)
    old.made.disk.forget_cache()
    assert old.get(12, probe=probe).count == 3
    assert old.get(11, probe=probe).status is GetStatus.COLD
    far = PageProbe(old.log, recent_bytes=0)
    far.opened_end = 0
    assert old.get(12, probe=far).status is GetStatus.COLD


@pytest.mark.parametrize("below", ["/store/commitlog", "/store/consumequeue"])
def test_a_probe_result_holds_for_its_block_until_eviction(below: str) -> None:
    old = OldStore(12)
    probe = probe_of(old)
    assert old.get(0, count=1, probe=probe).count == 1
    old.made.disk.forget_cache(below)
    assert old.get(5, probe=probe).count == 7
    probe.forget()
    result = old.get(5, probe=probe)
    assert result.status is GetStatus.COLD
    assert [part.path.startswith(below) for part in result.cold] == [True]


def test_at_most_one_calls_bytes_are_requested_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldStore(120)
    probe = probe_of(old)
    old.made.disk.forget_cache("/store/commitlog")
    size = old.placed[0][1]
    for read_bytes, count in ((3 * size, 3), (1, 1)):
        monkeypatch.setattr(checked_get, "READ_BYTES_MAX", read_bytes)
        (part,) = old.get(0, tags={99}, probe=probe).cold
        assert part.size == sum(old.placed[count - 1])


def test_the_cached_part_of_a_block_is_returned() -> None:
    old = OldStore(120)
    probe = probe_of(old)
    log_path = old.log.queue.files[0].path
    old.made.disk.forget_cache("/store/commitlog")
    read_back(old.made.disk, log_path, 0, 4096)
    inside = sum(offset + size <= 4096 for offset, size in old.placed)
    assert old.get(0, count=inside, probe=probe).count == inside
    assert old.get(0, count=inside + 1, probe=probe).status is GetStatus.COLD


def test_a_filter_over_cold_units_requests_all_records_it_will_read() -> None:
    old = OldStore(120)
    probe = probe_of(old)
    old.made.disk.forget_cache("/store/commitlog")
    result = old.get(0, tags={99}, probe=probe)
    assert [part.path for part in result.cold] == [file.path for file in old.log.queue.files[:2]]
    for part in result.cold:
        read_back(old.made.disk, *part)
    assert old.get(0, tags={99}, probe=probe).next_offset == 120


def test_units_in_several_blocks_are_requested_block_by_block() -> None:
    config = replace(LONG_QUEUES, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=80_000)
    old = OldStore(5000, config=config)
    probe = probe_of(old)
    disk, path = old.made.disk, "/store/consumequeue/Topic/0/"
    disk.forget_cache(path)
    first = path + "0" * 20
    read_back(disk, first, 0, 65_000)
    assert probe.cold_units(old.queue, 0, 3_276) == ()
    (part,) = probe.cold_units(old.queue, 3_250, 100)
    assert part == (first, 3_250 * 20, 100 * 20)
    assert probe.cold_units(old.queue, 4_010, 10)[0].path == path + f"{80_000:020d}"
    read_back(disk, path + f"{80_000:020d}", 0, 80_000)
    assert probe.cold_units(old.queue, 4_010, 10) == ()
    assert probe.cold_units(old.queue, 4_990, 100) == ()
