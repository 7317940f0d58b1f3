"""Tests of storage/backup/record.py: a copy that was in other hands does not reach out of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.backup.backup import StoreBackup
from storage.backup.record import BackupFolder
from storage.backup.restore import StoreRestore
from storage.config import StoreConfig
from storage.files.below import OutsideFolder
from storage.files.checked_json import read_checked, write_checked
from storage.files.disk import RealDisk
from tests.support.clock import ManualClock
from tests.support.store import CONFIG, SmallStore

LEADING_OUT = (
    "../outside",
    "/outside",
    "commitlog/../../outside",
    "consumequeue/../../outside",
    "./../outside",
    "config//../../outside",
    "a\0b",
    "n" * 256,
    "",
)


class Copy:
    """A copy of a small store on a real disk, with a file beside it."""

    def __init__(self, folder: Path) -> None:
        self.small, self.disk = SmallStore(), RealDisk()
        self.small.send(3)
        self.root, self.new = folder / "copy", folder / "new"
        self.outside = folder / "outside"
        self.outside.write_bytes(b"mine")
        self.backup()

    def backup(self) -> None:
        self.small.send(1)
        clock = ManualClock(self.small.clock.now_ms())
        StoreBackup(CONFIG, self.small.disk, self.folder(), clock).run()

    def restore(self) -> None:
        StoreRestore(self.disk, str(self.root), StoreConfig(root=str(self.new))).run()

    def folder(self) -> BackupFolder:
        return BackupFolder(self.disk, str(self.root))

    def forge(self, file: str, name: str) -> None:
        """Adds a name to one of its records, with a checksum that is right."""
        path = f"{self.root}/troupemq/{file}"
        found = read_checked(self.disk, f"{self.root}/troupemq/backup.json")
        found["files"][name] = [5, 5, -1]
        write_checked(self.disk, path, found)

    def is_alone(self) -> bool:
        """Whether nothing outside of copy and store was made, written or deleted."""
        names = {each.name for each in self.outside.parent.iterdir()}
        return names <= {"copy", "new", "outside"} and self.outside.read_bytes() == b"mine"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.parametrize("run", [Copy.backup, Copy.restore])
@pytest.mark.parametrize("file", ["backup.json", "backup.next.json", "backup.running.json"])
@pytest.mark.parametrize("name", LEADING_OUT)
def test_a_backup_record_with_paths_outside_the_copy_is_refused(
    copy: Copy, name: str, file: str, run: Callable[[Copy], None]
) -> None:
    """`../x` in backup.json was written to, and deleted."""
    copy.forge(file, name)
    if file == "backup.running.json" and run is Copy.restore:
        with pytest.raises(OutsideFolder):
            copy.folder().under_way()
        return
    with pytest.raises(OutsideFolder, match=rf"{file} is damaged or forged: .* Use another copy"):
        run(copy)
    assert copy.is_alone()


@pytest.mark.parametrize("run", [Copy.backup, Copy.restore])
@pytest.mark.parametrize("linked", ["commitlog", "troupemq"])
def test_a_folder_of_a_copy_that_links_outside_is_refused(
    copy: Copy, linked: str, run: Callable[[Copy], None]
) -> None:
    elsewhere = copy.outside.parent / "elsewhere"
    (copy.root / linked).rename(elsewhere)
    (copy.root / linked).symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")}
    with pytest.raises(OutsideFolder, match="is a link that leads out of"):
        run(copy)
    assert {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")} == before


def test_a_file_of_a_copy_that_links_outside_is_not_restored(copy: Copy) -> None:
    """The link's target, such as an operator's key, would have become part of the store."""
    path = next((copy.root / "commitlog").iterdir())
    path.unlink()
    path.symlink_to(copy.outside)
    with pytest.raises(OutsideFolder, match="is a link that leads out of"):
        copy.restore()


@pytest.mark.parametrize("run", [Copy.backup, Copy.restore])
@pytest.mark.parametrize("linked", ["troupemq/backup.next", "troupemq/backup.next/config"])
def test_files_beside_a_copy_are_not_moved_into_it_through_a_link(
    copy: Copy, linked: str, run: Callable[[Copy], None]
) -> None:
    """A run that was ending moved what a link in backup.next led to into the copy."""
    elsewhere = copy.outside.parent / "elsewhere"
    key = elsewhere / "key" if linked.endswith("config") else elsewhere / "config" / "key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"mine")
    link = copy.root / linked
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    copy.forge("backup.next.json", "config/key")
    with pytest.raises(OutsideFolder, match="is a link that leads out of"):
        run(copy)
    assert key.read_bytes() == b"mine"


def test_no_path_of_a_copy_links_outside(copy: Copy) -> None:
    """A copy is cleared behind the end of its log, which would also clear the linked file."""
    first = next((copy.root / "commitlog").iterdir())
    first.unlink()
    first.symlink_to(copy.outside)
    with pytest.raises(OutsideFolder, match="is a link that leads out of"):
        copy.folder().path(f"commitlog/{first.name}")


def test_a_store_is_restored_into_folders_that_the_operator_linked(copy: Copy) -> None:
    disk_of_the_log = copy.outside.parent / "log"
    disk_of_the_log.mkdir()
    copy.new.mkdir()
    (copy.new / "commitlog").symlink_to(disk_of_the_log)
    copy.restore()
    assert [*disk_of_the_log.iterdir()]
