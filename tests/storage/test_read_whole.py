"""One record by its place: whole and true, or nothing."""

import errno

from protocol.message import decode_record
from storage.read_whole import read_whole
from tests.support.store import SmallStore


def test_a_record_is_read_by_its_place_whatever_its_length() -> None:
    made = SmallStore()
    for offset, size in made.send(6):
        data = read_whole(made.log, made.store.damage, offset)
        assert data is not None and len(data) == size
        assert decode_record(data).physical_offset == offset


def test_where_no_record_begins_there_is_nothing() -> None:
    made = SmallStore()
    (offset, size), *_ = made.send(1)
    for wrong in (-1, offset + 1, offset + size, made.log.end_offset, 1 << 40):
        assert read_whole(made.log, made.store.damage, wrong) is None


def test_a_damaged_record_is_none() -> None:
    made = SmallStore()
    placed = made.send(3)
    path = f"{made.config.commit_log_dir}/{0:020d}"
    offset, size = placed[1]
    made.disk.flip_bit(path, offset + 90, 0)  # of its body or behind it
    found = [read_whole(made.log, made.store.damage, at) is not None for at, _ in placed]
    assert found == [True, False, True]
    made.disk.flip_bit(path, offset + 90, 0)
    assert read_whole(made.log, made.store.damage, offset) is not None
    made.store.damage.add(offset + size - 1, offset + size, "seen before")
    assert read_whole(made.log, made.store.damage, offset) is None


def test_a_disk_that_does_not_read_gives_nothing() -> None:
    made = SmallStore()
    (offset, _), *_ = made.send(1)
    made.disk.fail_next("pread", OSError(errno.EIO, "broken"))
    assert read_whole(made.log, made.store.damage, offset) is None
    assert read_whole(made.log, made.store.damage, offset) is not None
