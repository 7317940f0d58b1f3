"""Run of files in a queue's directory, and its used part. Reads only.

A missing file or one of a wrong size makes the queue incomplete. The run lists the unusable files;
the caller removes them and rebuilds the units from the log.

Source: store/MappedFileQueue.java (load), ConsumeQueue.java (recover).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from storage.errors import StoreError
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import file_name, first_offset_of
from storage.queues.queue_units import FILLER, UNIT, UNIT_BYTES, is_stray, used_units

_CHUNK_BYTES = 3276 * UNIT_BYTES
"""Read size of the search for the end, about 64 KiB."""


@dataclass(slots=True)
class QueueRun:
    directory: str
    firsts: list[int] = field(default_factory=list)
    """First byte of each file of the run."""
    begin: int | None = None
    """Required first byte of the run, where an unusable file was found."""
    sizes: list[int] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    fault: str = ""
    """First fault found, as text."""

    def blame(self, fault: str) -> None:
        self.fault = self.fault or fault


def read_run(
    disk: Disk, directory: str, file_bytes: int, is_gone: Callable[[int], bool]
) -> QueueRun:
    """Return the run in `directory`; only names of 20 digits count.

    Files before a missing one are leftovers of a power failure between deletions if `is_gone`
    confirms it. `is_gone` gets the first byte of the last of them.
    """
    run = QueueRun(directory)
    for name in disk.listdir(directory):
        first = first_offset_of(name)
        if first is None:
            continue
        path = f"{directory}/{name}"
        if disk.is_dir(path):
            run.unfit.append(path)
            continue
        size = size_of(disk, path)
        run.sizes.append(size)
        expected = run.firsts[-1] + file_bytes if run.firsts else run.begin
        expected = first if expected is None else expected
        if first != expected and run.firsts and is_gone(run.firsts[-1]):
            run.unfit += [f"{directory}/{file_name(each)}" for each in run.firsts]
            run.firsts, run.begin = [], None
            expected = first
        if first == expected and not first % file_bytes and size == file_bytes:
            run.firsts.append(first)
            continue
        run.unfit.append(path)
        if size != file_bytes:
            run.blame(f"{path} has {size} bytes")
            run.begin = expected
        elif first == expected:
            run.blame(f"{path} does not begin at a multiple of {file_bytes}")
        else:
            run.blame(f"a file is missing before {path}")
    return run


def size_of(disk: Disk, path: str) -> int:
    """Return the bytes of a file."""
    file = disk.open(path, read_only=True)
    try:
        return file.size()
    finally:
        file.close()


def ends_before(disk: Disk, path: str, file_bytes: int, min_physical: int) -> bool:
    """Return whether the last unit of a full file belongs to a record before the log."""
    file = disk.open(path, read_only=True)
    try:
        data = file.pread(UNIT_BYTES, file_bytes - UNIT_BYTES)
    finally:
        file.close()
    if len(data) < UNIT_BYTES:
        return False
    physical_offset, record_bytes, _ = UNIT.unpack(data)
    return bool(record_bytes > 0 and 0 <= physical_offset < min_physical)


def read_queue_run(disk: Disk, directory: str, file_bytes: int, min_physical: int) -> QueueRun:
    """Return the run of a queue in a log that begins at `min_physical`."""

    def is_gone(first: int) -> bool:
        return ends_before(disk, f"{directory}/{file_name(first)}", file_bytes, min_physical)

    return read_run(disk, directory, file_bytes, is_gone)


def read_queue_runs(
    disk: Disk, root: str, file_bytes: int, min_physical: int
) -> list[tuple[tuple[str, int], QueueRun]]:
    """Return topic, queue id and run of every directory `<topic>/<queue id>` below `root`."""
    runs = []
    for topic in disk.listdir(root):
        if not disk.is_dir(f"{root}/{topic}"):
            continue
        for name in disk.listdir(f"{root}/{topic}"):
            directory = f"{root}/{topic}/{name}"
            is_id = name.isascii() and name.isdigit() and name == str(int(name))
            if is_id and disk.is_dir(directory):
                run = read_queue_run(disk, directory, file_bytes, min_physical)
                runs.append(((topic, int(name)), run))
    return runs


def check_sizes(sizes: Iterable[int], file_bytes: int, directory: str, size_key: str) -> None:
    """Raise StoreError if the setting has the wrong size, not a file.

    The setting is wrong when all files have one other size. A single shorter file counts as
    damaged.
    """
    found = [size for size in sizes if size]
    size = found[0] if found else file_bytes
    if size == file_bytes or any(each != size for each in found):
        return
    if size < file_bytes and len(found) == 1:
        return
    raise StoreError(
        f"the files below {directory} have {size} bytes, but {size_key} is {file_bytes}: "
        "set it to the size of the files that are there."
    )


def begins_with_filler(file: DiskFile) -> bool:
    """Return whether the queue began in this file, so that no earlier file is missing."""
    return file.pread(UNIT_BYTES, 0) == FILLER


def count_used(file: DiskFile, file_bytes: int) -> int:
    """Return the number of units up to the last non-zero one, without reading holes."""
    position = _last_data(file, file_bytes)
    while position >= 0:
        data = file.pread(min(_CHUNK_BYTES, file_bytes - position), position)
        used = used_units(data)
        if used == 1 and position and data[:UNIT_BYTES] != bytes(UNIT_BYTES):
            pair = file.pread(2 * UNIT_BYTES, position - UNIT_BYTES)
            used = 0 if is_stray(pair[: 2 * UNIT_BYTES]) else used
        if used:
            return position // UNIT_BYTES + used
        position -= _CHUNK_BYTES
    return 0


def _last_data(file: DiskFile, file_bytes: int) -> int:
    """Return the beginning of the last chunk that may have data; negative without data."""
    low, high = -1, (file_bytes - 1) // _CHUNK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if file.data_after(middle * _CHUNK_BYTES) is None:
            high = middle - 1
        else:
            low = middle
    return low * _CHUNK_BYTES
