"""A config file and its .bak: saved whole, found again whatever happened."""

import errno

import pytest

from storage.errors import DiskFull, StoreError
from storage.json_config import load, save
from tests.support.fake_disk import FakeDisk

PATH = "/store/config/topics.json"


def written(disk: FakeDisk, path: str, data: bytes) -> None:
    disk.make_dirs("/store/config")
    file = disk.open(path, create=True)
    file.set_size(0)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_directory("/store/config")


def test_what_was_saved_is_loaded_and_the_version_before_is_kept() -> None:
    disk = FakeDisk()
    assert load(disk, PATH) is None
    assert save(disk, PATH, '{"a":1}')
    assert load(disk, PATH) == '{"a":1}'
    assert not disk.exists(f"{PATH}.bak")
    assert save(disk, PATH, '{\n\t"ä":{0:1\n\t}\n}')
    assert load(disk, PATH) == '{\n\t"ä":{0:1\n\t}\n}'
    assert disk.read_bytes(f"{PATH}.bak") == b'{"a":1}'
    assert disk.listdir("/store/config") == ["topics.json", "topics.json.bak"]


def test_nothing_is_written_when_nothing_has_changed() -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    count = disk.sync_count
    assert not save(disk, PATH, '{"a":1}')
    assert disk.sync_count == count


@pytest.mark.parametrize("broken", [b"", b" \n", b'{"a":', b"[1]", b"\xff\xfe{}", b"\0" * 100])
def test_a_file_that_cannot_be_read_falls_back_to_the_version_before(broken: bytes) -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    save(disk, PATH, '{"a":2}')
    written(disk, PATH, broken)
    assert load(disk, PATH) == '{"a":1}'
    save(disk, PATH, '{"a":3}')
    assert load(disk, PATH) == '{"a":3}'
    assert disk.read_bytes(f"{PATH}.bak") == b'{"a":1}'  # not the broken one


def test_a_missing_file_falls_back_to_the_version_before() -> None:
    disk = FakeDisk()
    written(disk, f"{PATH}.bak", b"{}")
    assert load(disk, PATH) == "{}"


def test_two_broken_versions_are_reported() -> None:
    disk = FakeDisk()
    written(disk, PATH, b"{")
    with pytest.raises(StoreError, match=r"topics\.json is not JSON"):
        load(disk, PATH)
    written(disk, f"{PATH}.bak", b"nonsense")
    with pytest.raises(StoreError, match="bak"):
        load(disk, PATH)


def test_empty_files_are_as_good_as_none() -> None:
    disk = FakeDisk()
    written(disk, PATH, b"")
    assert load(disk, PATH) is None


@pytest.mark.parametrize("operation", ["pwrite", "sync", "rename"])
def test_a_disk_that_refuses_leaves_the_old_version(operation: str) -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    disk.fail_next(operation, OSError(errno.ENOSPC, "no space"))
    with pytest.raises(DiskFull, match="cannot save"):
        save(disk, PATH, '{"a":2}')
    assert load(disk, PATH) == '{"a":1}'
    assert save(disk, PATH, '{"a":2}')
    assert load(disk, PATH) == '{"a":2}'


def numbered(number: int) -> str:
    return f'{{"number":{number}}}'


@pytest.mark.parametrize("seed", range(50))
def test_a_power_cut_leaves_the_version_that_was_saved_last(seed: int) -> None:
    disk = FakeDisk()
    for number in range(5):
        save(disk, PATH, numbered(number))
        assert load(disk.crashed(seed), PATH) == numbered(number)


@pytest.mark.parametrize("operation", ["rename", "sync", "sync_directory", "pwrite", "open"])
@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_while_saving_leaves_one_of_the_two_versions(operation: str, seed: int) -> None:
    disk = FakeDisk()
    save(disk, PATH, numbered(0))
    save(disk, PATH, numbered(1))
    disk.fail_next(operation, OSError(errno.EIO, "gone"))
    with pytest.raises(StoreError):
        save(disk, PATH, numbered(2))
    assert load(disk.crashed(seed), PATH) in (numbered(1), numbered(2))
