"""Disk space that a store allocates at once, and errors without that space."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from storage.config import StoreConfig
from storage.errors import DiskFull
from storage.files.disk import RealDisk
from storage.log.commit_log import prepare_file
from storage.message_store import MessageStore
from storage.retention.reserve import LOG_FILES_AHEAD, in_words, require_room, reserve_of
from tests.storage.derived import entry
from tests.support.clock import ManualClock
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk


def test_the_announced_reserve_is_the_space_a_new_store_takes(tmp_path: Path) -> None:
    config = StoreConfig(str(tmp_path), commit_log_file_bytes=4 << 20, max_hash_slots=200_000)
    store = MessageStore(config, RealDisk(), ManualClock())
    store.open()
    needed = store.commit_log.next_file_offset_to_prepare()
    assert needed is not None
    store.commit_log.adopt(prepare_file(needed, config, store.disk))
    assert store.index is not None
    store.index.dispatch([entry(0, keys=(b"key",))])
    store.index.write_out()
    taken = sum(
        os.stat(Path(folder) / name).st_blocks * 512
        for folder, _, names in os.walk(tmp_path)
        for name in names
    )
    reserve = reserve_of(config, store.disk, LOG_FILES_AHEAD)
    assert reserve.total_bytes <= taken <= reserve.total_bytes + (256 << 10)
    assert reserve.free_bytes is not None and str(reserve).endswith("are free)")
    store.close()


def test_a_new_store_is_refused_on_a_full_disk() -> None:
    needed = reserve_of(CONFIG, FakeDisk(), LOG_FILES_AHEAD).missing_bytes
    require_room(CONFIG, FakeDisk(capacity_bytes=needed))
    disk = FakeDisk(capacity_bytes=needed - 1)
    with pytest.raises(
        DiskFull, match=r"16.1 KiB .* are free: make room, .*cannot be changed later\.$"
    ):
        require_room(CONFIG, disk)
    assert disk.paths() == []


def test_a_store_with_messages_opens_on_a_full_disk() -> None:
    small = SmallStore(FakeDisk())
    small.send(10)
    small.store.close()
    small.disk.capacity_bytes = small.disk.used_bytes()
    require_room(CONFIG, small.disk)
    reserve = reserve_of(CONFIG, small.disk, 1)
    assert not reserve.fits and reserve.missing_bytes == CONFIG.commit_log_file_bytes
    assert reserve_of(replace(CONFIG, message_index_enable=False), small.disk, 0).fits


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (2048, "2 KiB"), (2_167_483_688, "2.02 GiB"), (1 << 60, "1048576 TiB")],
)
def test_a_byte_count_is_shown_with_its_unit(count: int, words: str) -> None:
    assert in_words(count) == words
