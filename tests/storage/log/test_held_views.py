"""A reader that holds a view of a deleted log file finishes safely: on the real disk."""

import os
from pathlib import Path

from protocol.message import scan_head
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.log.commit_log import CommitLog
from tests.support.puts import HOST, append, put
from tests.support.runtimes import end_views

FILE_BYTES = 8192


def filled_log(root: Path) -> CommitLog:
    """A log of several files."""
    config = StoreConfig(root=str(root), commit_log_file_bytes=FILE_BYTES)
    log = CommitLog(config, RealDisk())
    log.load()
    log.start_at(0, 0)
    log.store_host = HOST
    for number in range(30):
        record = put(bytes((number,)) * 1000, queue_offset=number)
        append(log, [record], 1000 + number)
    return log


def descriptors(path: str) -> int:
    """Return how many descriptors of this process belong to deleted files."""
    end_views()
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return links.count(f"{path} (deleted)")


def test_a_view_of_a_deleted_file_keeps_its_bytes(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    view = log.view(0, FILE_BYTES)
    copy = bytes(view)
    (dropped,) = log.drop_before(FILE_BYTES)
    path = dropped.path
    log.queue.disk.unlink(path)
    del dropped
    assert log.min_offset() == FILE_BYTES and not os.path.exists(path)
    assert view == copy
    assert scan_head(view, 0).physical_offset == 0
    assert descriptors(path) == 1  # the map's own
    del view
    assert descriptors(path) == 0
    log.close()


def test_a_reader_in_the_middle_of_the_log_continues_reading(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    walk = log.walk(0)
    seen = [next(walk).physical_offset]
    (dropped,) = log.drop_before(FILE_BYTES)
    path = dropped.path
    log.queue.disk.unlink(path)
    del dropped
    seen += [head.physical_offset for head in walk]
    assert len(seen) == 30
    del walk
    assert descriptors(path) == 0
    log.close()


def test_the_file_in_which_the_log_ends_is_never_dropped(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    ends_in = log.queue.find(log.end_offset)
    assert ends_in is not None
    dropped = log.drop_before(1 << 40)
    assert dropped and log.min_offset() == ends_in.first_offset
    assert log.drop_before(1 << 40) == []
    log.close()
