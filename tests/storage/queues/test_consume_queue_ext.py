"""The extension of one queue: units in memory and in files, rolls, ends, damage."""

import errno

import pytest

from storage.errors import DiskFull
from storage.queues.consume_queue_ext import ConsumeQueueExt, ExtUnit, is_address
from storage.queues.queue_files import QueueFiles
from storage.queues.queue_run import QueueRun, read_run
from troupemq.testing.fake_disk import FakeDisk

FILE_BYTES = 400
DIRECTORY = "/ext/T/0"
BASE = -(1 << 63)


def an_ext(disk: FakeDisk) -> ConsumeQueueExt:
    return ConsumeQueueExt(DIRECTORY, QueueFiles(disk, FILE_BYTES))


def unit(number: int) -> ExtUnit:
    """Every third has a bit map, of some length."""
    return ExtUnit(
        number * 7, 1_700_000_000_000 + number, bytes([number % 256]) * (number % 3 * 7) or None
    )


def put(ext: ConsumeQueueExt, start: int, end: int) -> list[int]:
    return [ext.put(*unit(number)) for number in range(start, end)]


def reloaded(disk: FakeDisk, last: int | None) -> ConsumeQueueExt:
    ext = an_ext(disk)
    ext.load(run_of(disk))
    end = 0 if last is None else ext.end_of(last)
    assert end is not None
    ext.resume_at(end)
    return ext


def run_of(disk: FakeDisk) -> QueueRun:
    return read_run(disk, DIRECTORY, FILE_BYTES, lambda _: False)


def test_extension_units_are_laid_out_as_in_the_original() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    addresses = [ext.put(5, 9), ext.put(-1, 10, b"\x01\x80")]
    ext.write_out()
    assert addresses == [BASE, BASE + 20]
    assert all(map(is_address, addresses))
    data = disk.read_bytes(f"{DIRECTORY}/{0:020d}")
    assert len(data) == FILE_BYTES
    assert data[:42] == bytes.fromhex(
        "0014 0000000000000005 0000000000000009 0000"
        "0016 ffffffffffffffff 000000000000000a 0002 0180"
    )
    assert not any(data[42:])


def test_a_file_ends_with_a_mark_and_at_least_four_bytes() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    addresses = [ext.put(0, 0) for _ in range(20)]
    ext.write_out()
    # 19 units of 20 bytes end at 380; the 20th would leave nothing.
    assert addresses[18:] == [BASE + 360, BASE + FILE_BYTES]
    assert disk.read_bytes(f"{DIRECTORY}/{0:020d}")[380:] == b"\xff\xff" + bytes(18)
    assert disk.listdir(DIRECTORY) == [f"{0:020d}", f"{FILE_BYTES:020d}"]


@pytest.mark.parametrize("count", [1, 20, 500, 3000])
def test_units_are_read_from_memory_from_files_and_after_a_restart(count: int) -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    addresses = put(ext, 0, count // 2)
    ext.write_out()
    addresses += put(ext, count // 2, count)
    wanted = [unit(number) for number in range(count)]
    assert [ext.get(address) for address in addresses] == wanted
    ext.write_out()
    assert [ext.get(address) for address in addresses] == wanted
    again = reloaded(disk, addresses[-1])
    assert again.end_offset == ext.end_offset
    assert [again.get(address) for address in addresses] == wanted
    assert put(again, count, count + 50) == put(ext, count, count + 50)


def test_an_invalid_extension_address_reads_as_missing() -> None:
    ext = an_ext(FakeDisk())
    address = ext.put(1, 2, b"abc")
    for wrong in (0, 77, address + 1, address + 23, address + 10_000, -(1 << 31) - 1):
        assert ext.get(wrong) is None


def test_a_damaged_unit_length_reads_as_missing() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    address = ext.put(1, 2, b"abc")
    ext.write_out()
    for position in (0, 1, 18, 19):
        disk.flip_bit(f"{DIRECTORY}/{0:020d}", position, 4)
        again = an_ext(disk)
        again.load(run_of(disk))
        assert again.get(address) is None
        disk.flip_bit(f"{DIRECTORY}/{0:020d}", position, 4)


def test_a_bit_map_that_does_not_fit_leaves_the_tags_code() -> None:
    ext = an_ext(FakeDisk())
    assert ext.put(5, 9, bytes(FILE_BYTES - 23)) == 5
    assert is_address(ext.put(5, 9, bytes(FILE_BYTES - 24)))
    large = ConsumeQueueExt(DIRECTORY, QueueFiles(FakeDisk(), 1 << 20))
    assert large.put(5, 9, bytes(32_748)) == 5
    assert is_address(large.put(5, 9, bytes(32_747)))


def test_extension_units_after_a_new_end_are_deleted() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    addresses = put(ext, 0, 100)
    ext.write_out()
    end = ext.end_of(addresses[40])
    assert end is not None
    ext.set_end(end)
    assert ext.get(addresses[41]) is None
    killed = disk.killed()
    data = b"".join(killed.read_bytes(f"{DIRECTORY}/{name}") for name in killed.listdir(DIRECTORY))
    assert not any(data[end:])
    assert put(ext, 41, 100) == addresses[41:]


def test_files_before_an_address_are_deleted_except_the_last() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    addresses = put(ext, 0, 100)
    ext.write_out()
    names = disk.listdir(DIRECTORY)
    border = (addresses[50] - BASE) // FILE_BYTES
    assert ext.trim_before(addresses[50]) == [f"{DIRECTORY}/{name}" for name in names[:border]]
    assert ext.get(addresses[0]) is None
    assert ext.get(addresses[50]) == unit(50)
    assert len(ext.trim_before(BASE + (1 << 40))) == len(names) - border - 1


def test_a_full_disk_leaves_the_units_in_memory() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    addresses = put(ext, 0, 60)
    disk.fail_next("pwrite", OSError(errno.ENOSPC, "no space"))
    with pytest.raises(DiskFull, match="extension"):
        ext.write_out()
    ext.write_out()
    again = reloaded(disk, addresses[-1])
    assert [again.get(address) for address in addresses] == [unit(n) for n in range(60)]


def test_a_sync_covers_only_units_written_since_the_last() -> None:
    disk = FakeDisk()
    ext = an_ext(disk)
    put(ext, 0, 60)
    ext.write_out()
    names = disk.listdir(DIRECTORY)
    assert ext.unsynced_paths() == [f"{DIRECTORY}/{name}" for name in names]
    put(ext, 60, 61)
    ext.write_out()
    ext.mark_synced()
    assert ext.unsynced_paths() == [f"{DIRECTORY}/{names[-1]}"]
