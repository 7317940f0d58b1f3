"""The checkpoint file: three timestamps, and what they vouch for."""

import errno

import pytest

from storage.errors import StoreError
from storage.recovery.checkpoint import CHECKPOINT_BYTES, Checkpoint
from troupemq.testing.fake_disk import FakeDisk

PATH = "/checkpoint"


def loaded(disk: FakeDisk) -> Checkpoint:
    checkpoint = Checkpoint(disk, PATH)
    checkpoint.load()
    return checkpoint


def test_timestamps_are_saved_in_and_loaded_from_4096_bytes() -> None:
    disk = FakeDisk()
    checkpoint = loaded(disk)
    checkpoint.advance(physic_ms=1, logics_ms=2, index_ms=3)
    checkpoint.save()
    data = disk.read_bytes(PATH)
    assert len(data) == CHECKPOINT_BYTES
    assert data[:64] == b"".join(n.to_bytes(8) for n in (1, 2, 3)) + bytes(40)
    again = loaded(disk)
    assert (again.physic_ms, again.logics_ms, again.index_ms) == (1, 2, 3)
    assert again.found


@pytest.mark.parametrize("size", [0, 23])
def test_a_file_that_is_too_short_counts_as_empty(size: int) -> None:
    disk = FakeDisk()
    disk.open(PATH, create=True).pwrite(b"\xff" * size, 0)
    checkpoint = loaded(disk)
    assert not checkpoint.found
    assert (checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms) == (0, 0, 0)
    assert len(disk.read_bytes(PATH)) == CHECKPOINT_BYTES


def test_timestamps_do_not_go_back() -> None:
    checkpoint = loaded(FakeDisk())
    checkpoint.advance(physic_ms=10)
    checkpoint.advance(physic_ms=5, logics_ms=1)
    assert (checkpoint.physic_ms, checkpoint.logics_ms) == (10, 1)


def test_the_trusted_time_is_three_seconds_before_the_older_timestamp() -> None:
    checkpoint = loaded(FakeDisk())
    checkpoint.advance(physic_ms=10_000, logics_ms=9_000, index_ms=1_000)
    assert checkpoint.trusted_until_ms(with_index=False) == 6_000
    assert checkpoint.trusted_until_ms(with_index=True) == 1_000


def test_an_empty_checkpoint_vouches_for_nothing() -> None:
    checkpoint = loaded(FakeDisk())
    checkpoint.advance(logics_ms=9_000)
    assert checkpoint.trusted_until_ms(with_index=False) == 0


def test_a_failing_disk_is_reported() -> None:
    disk = FakeDisk()
    checkpoint = loaded(disk)
    disk.fail_next("sync", OSError(errno.EIO, "broken"))
    with pytest.raises(StoreError, match="cannot write the checkpoint"):
        checkpoint.save()
    checkpoint.close()


def saved(disk: FakeDisk) -> None:
    checkpoint = loaded(disk)
    checkpoint.advance(physic_ms=9, logics_ms=8, index_ms=7, durable_offset=12345)
    checkpoint.save()
    checkpoint.close()


def test_the_durable_offset_is_saved_and_loaded() -> None:
    disk = FakeDisk()
    saved(disk)
    assert loaded(disk).durable_offset == 12345


def test_the_durable_offset_is_ignored_after_the_official_broker_has_written() -> None:
    disk = FakeDisk()
    saved(disk)
    disk.open(PATH).pwrite((10).to_bytes(8), 0)
    checkpoint = loaded(disk)
    assert checkpoint.durable_offset == 0
    assert checkpoint.timestamps() == (9, 8, 7), "the older of two"


def test_a_flipped_bit_never_raises_the_durable_offset() -> None:
    for bit in range(108 * 8):
        disk = FakeDisk()
        saved(disk)
        byte = disk.read_bytes(PATH)[bit // 8]
        disk.open(PATH).pwrite(bytes((byte ^ 1 << bit % 8,)), bit // 8)
        checkpoint = loaded(disk)
        is_hit = not 24 * 8 <= bit < 64 * 8
        assert checkpoint.durable_offset == (0 if is_hit else 12345), bit
        assert all(map(int.__le__, checkpoint.timestamps(), (9, 8, 7))), bit


def test_the_durable_offset_is_lowered_with_the_log_end() -> None:
    disk = FakeDisk()
    saved(disk)
    checkpoint = loaded(disk)
    assert not checkpoint.limit(12345)
    assert checkpoint.limit(12000)
    assert checkpoint.durable_offset == 12000
