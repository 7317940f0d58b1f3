"""Tests of storage/files/below.py: no name leads out of its folder, and no link."""

import os
from pathlib import Path

import pytest

from storage.files.below import OutsideFolder, below
from storage.queues.queue_files import QueueList
from storage.recovery.clean_stop import CleanStop, read_clean_stop, write_clean_stop
from storage.retention.leases import lowest_offset
from tests.storage.derived import config
from troupemq.testing.fake_disk import FakeDisk

FORGED = ("", ".", "..", "a/b", "/etc", "../x", "a\0b", "n" * 256, "ü" * 128, "\ud800")


@pytest.mark.parametrize("name", FORGED)
def test_an_invalid_name_is_refused(name: str) -> None:
    for names in ((name,), ("a", name), (name, "b")):
        with pytest.raises(OutsideFolder, match="a path below /folder cannot be made"):
            below("/folder", *names)


@pytest.mark.parametrize("name", ["a", "...", "..a", "%RETRY%g", "n" * 255, "\udcff", "a\\b", "~"])
def test_any_other_name_stays_below_its_folder(name: str) -> None:
    assert below("/folder", "a", name) == f"/folder/a/{name}"


def test_a_link_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "folder-beside"
    for each in (folder, outside, folder / "inside"):
        each.mkdir()
    (folder / "out").symlink_to(outside)
    (folder / "in").symlink_to(folder / "inside")
    (tmp_path / "link").symlink_to(folder)
    for root in (folder, tmp_path / "link"):
        assert below(str(root), "in", "x", real_path=os.path.realpath) == f"{root}/in/x"
        for names in (("out",), ("out", "x")):
            with pytest.raises(OutsideFolder, match="is a link that leads out of"):
                below(str(root), *names, real_path=os.path.realpath)


@pytest.mark.parametrize("topic", FORGED)
def test_a_topic_that_is_not_a_folder_name_is_skipped_in_stored_lists(topic: str) -> None:
    disk = FakeDisk()
    QueueList(config(), disk).save([("A", 0), (topic, 0)])
    assert QueueList(config(), disk).load() == frozenset()
    write_clean_stop(config(), disk, CleanStop(0, 0, 0, (0, 0, 0), {(topic, 0): (0, 1, 0)}))
    assert read_clean_stop(config(), disk) is None
    with pytest.raises(OutsideFolder):
        lowest_offset(disk, "/store/consumequeue", {(topic, 0): 0}, 0)
