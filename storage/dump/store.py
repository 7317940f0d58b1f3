"""Readable output for a directory of a store: its files, their sizes and ranges."""

from collections.abc import Iterator

from storage.checking.store_layout import queue_names
from storage.config import StoreConfig
from storage.dump.item import DumpError, Item, opened, plain, utc
from storage.files.disk import Disk
from storage.files.mapped_file import first_offset_of
from storage.index.index_layout import HEADER_BYTES, IndexHeader
from storage.queues.queue_units import UNIT, UNIT_BYTES

_ROOT_NAMES = {"commitlog", "consumequeue", "checkpoint", "config"}
_STATE_DIR = "transaction/statetable"
_READ_BYTES = UNIT_BYTES << 12


def dump_directory(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the sums of a whole store, or the files of any other directory."""
    names = disk.listdir(path)
    if not _ROOT_NAMES & set(names):
        yield from _files(disk, path)
        return
    config = StoreConfig(root=path)
    state = "there: in use, or not stopped cleanly" if "abort" in names else "not there"
    yield Item("store", {"path": path, "abort": state})
    yield from _run(disk, "commit log", config.commit_log_dir)
    yield from _queues(disk, config.consume_queue_dir)
    yield from _ext(disk, f"{path}/consumequeue_ext")
    yield from _index(disk, config.index_dir)
    yield from _run(disk, "transaction table", f"{path}/{_STATE_DIR}")
    for directory in (config.config_dir, f"{path}/transaction/redolog", f"{path}/troupemq"):
        yield from _files(disk, directory)
    for name in names:
        if not disk.is_dir(f"{path}/{name}"):
            yield _file(disk, path, name)


def _size(disk: Disk, path: str) -> int:
    """Return the size of a file; 0 if a broker has just deleted it."""
    try:
        file = opened(disk, path)
    except DumpError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def _run_of(disk: Disk, directory: str) -> list[tuple[int, int]]:
    """Return first offset and size of each file that is named by an offset."""
    return [
        (int(name), _size(disk, f"{directory}/{name}"))
        for name in disk.listdir(directory)
        if first_offset_of(name) is not None
    ]


def _run(disk: Disk, kind: str, directory: str) -> Iterator[Item]:
    files = _run_of(disk, directory)
    if files:
        first, (last, size) = files[0][0], files[-1]
        sizes = sum(each for _, each in files)
        fields = {"files": len(files), "bytes": sizes, "from": first, "room_until": last + size}
        yield Item(kind, dict(fields))


def _queues(disk: Disk, root: str) -> Iterator[Item]:
    """Yield each queue, from its first file's number to its last unit that is not all zeros."""
    topics = queues = messages = 0
    for topic in disk.listdir(root):
        if not disk.is_dir(f"{root}/{topic}"):
            continue
        topics += 1
        directories = [name for name in disk.listdir(f"{root}/{topic}") if name.isdecimal()]
        directories = [name for name in directories if disk.is_dir(f"{root}/{topic}/{name}")]
        for queue_id in sorted(directories, key=int):
            directory = f"{root}/{topic}/{queue_id}"
            files = _run_of(disk, directory)
            if not files:
                continue
            first, end = files[0][0] // UNIT_BYTES, 0
            fields: dict[str, object] = {"topic": plain(topic), "queue_id": int(queue_id)}
            fields["files"] = len(files)
            for start, _ in reversed(files):
                unit = _last_unit(disk, f"{directory}/{start:020d}")
                if unit is not None:
                    end = start // UNIT_BYTES + unit[0] + 1
                    fields.update(
                        {"from": first, "to": end, "last_offset": unit[1], "last_bytes": unit[2]}
                    )
                    break
            queues += 1
            messages += max(0, end - first)
            yield Item("queue", fields, counted=True)
    yield Item("consume queues", {"topics": topics, "queues": queues, "units": messages})


def _last_unit(disk: Disk, path: str) -> tuple[int, int, int] | None:
    """Return number, physical offset and length of a file's last unit that is not all zeros."""
    try:
        file = opened(disk, path)
    except DumpError:
        return None
    try:
        end = file.size() // UNIT_BYTES * UNIT_BYTES
        while end > 0:
            start = max(0, end - _READ_BYTES)
            used = len(file.pread(end - start, start).rstrip(b"\0"))
            if used:
                number = (start + used - 1) // UNIT_BYTES
                unit = UNIT.unpack(file.pread(UNIT_BYTES, number * UNIT_BYTES))
                return number, unit[0], unit[1]
            end = start
    finally:
        file.close()
    return None


def _ext(disk: Disk, root: str) -> Iterator[Item]:
    runs = [
        _run_of(disk, f"{root}/{topic}/{queue_id}") for topic, queue_id in queue_names(disk, root)
    ]
    if runs:
        files = [each for run in runs for each in run]
        fields = {"queues": len(runs), "files": len(files), "bytes": sum(b for _, b in files)}
        yield Item("consume queue extensions", dict(fields))


def _index(disk: Disk, directory: str) -> Iterator[Item]:
    count = entries = size = 0
    newest = 0
    for name in disk.listdir(directory):
        try:
            file = opened(disk, f"{directory}/{name}")
        except DumpError:
            continue
        try:
            data = file.pread(HEADER_BYTES, 0)
            size += file.size()
        finally:
            file.close()
        count += 1
        if len(data) == HEADER_BYTES:
            header = IndexHeader.of(data)
            entries += max(0, header.next_entry - 1)
            newest = max(newest, header.end_timestamp)
    if count:
        fields = {"files": count, "bytes": size, "entries": entries, "until": utc(newest)}
        yield Item("index", dict(fields))


def _files(disk: Disk, directory: str) -> Iterator[Item]:
    for name in disk.listdir(directory):
        yield _file(disk, directory, name)


def _file(disk: Disk, directory: str, name: str) -> Item:
    path = f"{directory}/{name}"
    fields: dict[str, object] = {"path": plain(path)}
    if disk.is_dir(path):
        fields["names"] = len(disk.listdir(path))
        return Item("directory", fields, counted=True)
    try:
        fields["bytes"] = _size(disk, path)
        fields["changed"] = utc(disk.modified_ms(path))
    except OSError as error:
        fields["meaning"] = f"cannot be read: {error.strerror}"
    return Item("file", fields, counted=True)
