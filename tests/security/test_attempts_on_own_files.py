"""Attempts with small files of a store whose checksums are right, A50: no value fails a reader."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from storage.backup.record import BackupFolder
from storage.dispatching.sink_table import SinkTable
from storage.errors import StoreError
from storage.files.checked_json import read_checked, write_checked
from storage.queues.queue_files import QueueList
from storage.recovery.clean_stop import CleanStop, read_clean_stop, write_clean_stop
from storage.recovery.store_format import require_known_format
from storage.retention.leases import LeaseFiles, leases_dir
from tests.storage.derived import config
from tests.support.odd_values import odd_documents
from troupemq.testing.fake_disk import FakeDisk

CONFIG = config()
LANE = ["query", 0, "Topic", 1, 2, "00" * 8, 5, "owner"]
Read = Callable[[FakeDisk], object]


def read_sinks(disk: FakeDisk) -> str:
    return SinkTable(CONFIG, disk, lambda offset, size: memoryview(b""), lambda: 0).load(0, 0)


FILES: dict[str, tuple[str, Any, Read]] = {
    "queues": (
        CONFIG.queue_list_path,
        {"A": [0, 1], "B": [3]},
        lambda disk: QueueList(CONFIG, disk).load(),
    ),
    "sinks": (CONFIG.sinks_path, {"covered": [0, -1, 0], "lanes": [LANE]}, read_sinks),
    "clean stop": (CONFIG.clean_stop_path, None, lambda disk: read_clean_stop(CONFIG, disk)),
    "backup": (
        "/copy/troupemq/backup.json",
        {
            "source": "/store",
            "taken_ms": 1,
            "log_start": 0,
            "log_end": 9,
            "files": {"a/b": [1, 1, -1]},
        },
        lambda disk: BackupFolder(disk, "/copy").done(),
    ),
    "unfinished backup": (
        "/copy/troupemq/backup.running.json",
        {"files": {"a/b": [1, 1, -1]}},
        lambda disk: BackupFolder(disk, "/copy").under_way(),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a50_unusual_values_in_own_files_do_not_fail_the_reader(name: str) -> None:
    """A start or a command ended in a traceback."""
    path, document, read = FILES[name]
    disk = FakeDisk()
    if name == "clean stop":
        queues = {("A", 0): (0, 9, 100)}
        stop = CleanStop(0, 9, 5, (1, 2, 3), queues, {"i": "00"}, 9, ("f",), {"t": 1})
        write_clean_stop(CONFIG, disk, stop)
        assert read_clean_stop(CONFIG, disk) == stop
        document = read_checked(disk, path)
    for each in odd_documents(document):
        write_checked(disk, path, each)
        try:
            found = read(disk)
        except StoreError:
            continue
        if isinstance(found, CleanStop):
            numbers = found.min_offset, found.end_offset, *found.queues.get(("A", 0), ())
            assert {*map(type, numbers)} == {int}, each


def put(disk: FakeDisk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.set_size(0)
    file.pwrite(data, 0)
    file.close()


@pytest.mark.parametrize("name", FILES)
def test_a50_deep_nesting_in_own_files_does_not_fail_the_reader(name: str) -> None:
    path, _, read = FILES[name]
    disk, deep = FakeDisk(), b"[" * 100_000 + b"]" * 100_000
    put(disk, path, b"%s\n%08x\n" % (deep, crc32(deep)))
    read(disk)
    put(disk, CONFIG.format_path, deep)
    require_known_format(CONFIG, disk)


@pytest.mark.parametrize("text", [b"[" * 1024, b'{"job":"j","offset":Infinity}', b'{"offset":[]}'])
def test_a50_unusual_values_in_leases_do_not_fail_the_reader(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor that deletes old files failed at each look. Everything is kept instead."""
    disk, path = FakeDisk(), f"{leases_dir(CONFIG.root)}/a.lease"
    put(disk, path, text)
    monkeypatch.setattr(type(disk.open(path)), "lock_byte", lambda *_, **__: False)
    assert [each.offset for each in LeaseFiles(disk, CONFIG.root).read(0)] == [0]
