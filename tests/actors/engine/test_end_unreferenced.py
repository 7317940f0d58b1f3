"""Tests of end_unreferenced: unreferenced files end at once, or with PyPy's collector."""

import os
from pathlib import Path
from types import SimpleNamespace

from actors.engine.short_collections import PAUSE_S, end_unreferenced
from storage.files.disk import RealDisk


def test_a_whole_collection_follows_the_one_under_way_with_pauses_between_its_steps() -> None:
    is_done = iter([False, True, False, False, True])
    pauses: list[float] = []
    end_unreferenced(lambda: SimpleNamespace(major_is_done=next(is_done)), pauses.append)
    assert list(is_done) == []
    assert pauses == [PAUSE_S] * 3


def test_reference_counting_pythons_need_no_collection() -> None:
    end_unreferenced(None)


def test_map_and_descriptor_of_a_deleted_file_are_released(tmp_path: Path) -> None:
    path, disk = str(tmp_path / "deleted"), RealDisk()
    file = disk.open(path, create=True)
    file.set_size(8)
    view = file.view()[2:4]
    disk.unlink(path)
    assert bytes(view) == bytes(2) and _uses(path)
    del file, view
    end_unreferenced()
    assert not _uses(path)


def _uses(path: str) -> bool:
    """Whether this process has the file open or mapped."""
    links = [entry.path for entry in os.scandir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.islink(link)]
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return path in maps or any(each.startswith(path) for each in opened)
