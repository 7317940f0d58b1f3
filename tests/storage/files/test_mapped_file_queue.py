"""A run of mapped files: loading, finding, removing."""

import pytest

from storage.errors import OffsetError, StoreError
from storage.files.mapped_file import MappedFileQueue, create_mapped_file, file_name
from troupemq.testing.fake_disk import FakeDisk

FILE_BYTES = 4096


def a_queue(disk: FakeDisk, files: int = 0) -> MappedFileQueue:
    disk.make_dirs("/log")
    queue = MappedFileQueue(disk, "/log", FILE_BYTES, "mappedFileSizeCommitLog")
    for number in range(files):
        add_file(queue, number * FILE_BYTES)
    return queue


def add_file(queue: MappedFileQueue, first_offset: int) -> None:
    queue.add(create_mapped_file(queue.disk, "/log", first_offset, FILE_BYTES, sparse=False))


def reloaded(disk: FakeDisk) -> MappedFileQueue:
    queue = a_queue(disk)
    queue.load()
    return queue


def test_files_are_found_by_any_offset_inside_them() -> None:
    queue = a_queue(FakeDisk(), files=3)
    for offset, first in [(0, 0), (4095, 0), (4096, 4096), (12_287, 8192)]:
        file = queue.find(offset)
        assert file is not None and file.first_offset == first
    assert queue.find(12_288) is None
    assert queue.find(-1) is None


def test_written_bytes_are_found_after_reloading() -> None:
    disk = FakeDisk()
    queue = a_queue(disk, files=2)
    queue.files[1].write(b"hello", 7)
    queue.close()
    queue = reloaded(disk)
    assert bytes(queue.slice(4096 + 7, 5)) == b"hello"
    assert (queue.min_offset, queue.capacity_end) == (0, 8192)


def test_a_slice_must_lie_in_one_file() -> None:
    queue = a_queue(FakeDisk(), files=2)
    with pytest.raises(OffsetError):
        queue.slice(4090, 10)
    with pytest.raises(OffsetError):
        queue.slice(8192, 1)


def test_a_file_of_another_size_is_a_one_sentence_error() -> None:
    disk = FakeDisk()
    a_queue(disk, files=2)
    other = MappedFileQueue(disk, "/log", 8192, "mappedFileSizeCommitLog")
    with pytest.raises(StoreError) as caught:
        other.load()
    assert "has 4096 bytes, but mappedFileSizeCommitLog is 8192" in str(caught.value)


def test_an_empty_last_file_is_removed() -> None:
    for size in (0, 1000):
        disk = FakeDisk()
        a_queue(disk, files=1)
        disk.open("/log/" + file_name(4096), create=True).set_size(size)
        queue = a_queue(disk)
        assert queue.load() == ["/log/" + file_name(4096)]
        assert disk.listdir("/log") == [file_name(0)]


def test_a_short_last_file_with_data_is_refused() -> None:
    disk = FakeDisk()
    a_queue(disk, files=1)
    disk.open("/log/" + file_name(4096), create=True).pwrite(b"data", 0)
    with pytest.raises(StoreError):
        reloaded(disk)
    assert disk.exists("/log/" + file_name(4096))


def test_a_missing_file_is_named_in_the_error() -> None:
    disk = FakeDisk()
    a_queue(disk, files=3)
    disk.unlink("/log/" + file_name(4096))
    with pytest.raises(StoreError, match=f"{file_name(4096)} is missing between"):
        reloaded(disk)


def test_files_with_foreign_names_are_left_alone() -> None:
    disk = FakeDisk()
    a_queue(disk, files=1)
    disk.open("/log/notes.txt", create=True)
    assert len(reloaded(disk).files) == 1
    assert disk.exists("/log/notes.txt")


def test_a_file_must_begin_where_the_previous_one_ends() -> None:
    queue = a_queue(FakeDisk(), files=1)
    with pytest.raises(OffsetError):
        add_file(queue, 8192)


def test_files_after_an_offset_are_removed() -> None:
    disk = FakeDisk()
    queue = a_queue(disk, files=3)
    assert queue.remove_from(4096) == ["/log/" + file_name(4096), "/log/" + file_name(8192)]
    assert disk.listdir("/log") == [file_name(0)]


def test_dropped_files_stay_open_and_on_the_disk() -> None:
    disk = FakeDisk()
    queue = a_queue(disk, files=3)
    (dropped,) = queue.drop_below(8191)
    assert (dropped.first_offset, queue.min_offset) == (0, 4096)
    assert disk.exists(dropped.path) and dropped.file.size() == 4096
    assert [file.first_offset for file in queue.drop_below(1 << 40)] == [4096]
    assert queue.find(0) is None and len(queue.files) == 1


def test_a_power_cut_while_files_are_deleted_leaves_no_hole() -> None:
    for deleted in range(1, 4):
        for seed in range(10):
            disk = FakeDisk()
            queue = a_queue(disk, files=5)
            _delete_until(disk, queue, deleted)
            offsets = [file.first_offset for file in reloaded(disk.crashed(seed)).files]
            assert offsets == list(range(offsets[0], offsets[-1] + 1, 4096))


def _delete_until(disk: FakeDisk, queue: MappedFileQueue, count: int) -> None:
    """Deletes some files; the power fails right behind the unlink of the last of them."""
    unlink, left = disk.unlink, [count]

    def unlink_then_fail(path: str) -> None:
        unlink(path)
        left[0] -= 1
        if not left[0]:
            raise OSError(5, "the power fails")

    disk.unlink = unlink_then_fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the power fails"):
        queue.remove_from(4096)


def test_a_reader_can_still_read_files_dropped_after_it_listed_them() -> None:
    queue = a_queue(FakeDisk(), files=1)
    seen = queue.files
    add_file(queue, 4096)
    assert len(seen) == 1 and len(queue.files) == 2
