"""Readable output for any file of a store, or a whole store: `troupemq store dump`.

It only reads, takes no lock, and needs neither settings nor the other files of the store. A file is
recognized by its path, or by its content if it was copied elsewhere. A broker may be writing.

    log            commit log               small_files  checkpoint, config, marks, own records
    units          queues, transactions     store        a directory
    index          index                    text         output as lines
"""

from collections.abc import Callable, Iterator

from protocol.message import BLANK_MAGIC, RECORD_MAGIC, SIZE_AND_MAGIC
from storage.dump.index import dump_index
from storage.dump.item import DumpError, Item, opened
from storage.dump.log import dump_log
from storage.dump.small_files import (
    dump_checkpoint,
    dump_clean_stop,
    dump_config,
    dump_format,
    dump_left_out,
    dump_mark,
    dump_offset_journal,
    dump_queue_list,
    dump_redo_log,
    dump_sidecar,
    dump_sinks,
)
from storage.dump.store import dump_directory
from storage.dump.units import (
    EMPTY_UNITS,
    EXT_UNIT,
    STATE_WORDS,
    dump_ext,
    dump_queue,
    dump_transactions,
)
from storage.errors import StoreError, reason_of
from storage.files.disk import Disk
from storage.files.mapped_file import first_offset_of
from storage.index.index_layout import HEADER_BYTES, IndexHeader
from storage.queues.queue_units import UNIT, UNIT_BYTES
from storage.tables.crc_sidecar import Sidecar
from storage.tables.offset_journal import JOURNAL_MAGIC
from storage.transactions.units import UNIT as STATE_UNIT

Dump = Callable[[Disk, str, int | None], Iterator[Item]]

_HEAD_BYTES = 4096
_INDEX_NAME_DIGITS = 17
_TIMES_MS = range(1_000_000_000_000, 10_000_000_000_000)
"""2001 to 2286: the range of a store's timestamps."""
_CHECKPOINT_BYTES = 4096
_LEAST_RECORD_BYTES = 91

_PLACES = {
    "commitlog": dump_log,
    "consumequeue": dump_queue,
    "consumequeue_ext": dump_ext,
    "statetable": dump_transactions,
}
"""Dumps by parent directory, for files named by their first offset."""


def _whole(dump: Callable[[Disk, str], Iterator[Item]]) -> Dump:
    """Return a dump of a small file, which is always shown from its beginning."""

    def dump_whole(disk: Disk, path: str, from_number: int | None) -> Iterator[Item]:
        if from_number is not None:
            raise DumpError(f"{path} is shown as a whole: omit --from.")
        return dump(disk, path)

    return dump_whole


_NAMES: dict[str, Dump] = {
    "checkpoint": _whole(dump_checkpoint),
    "abort": _whole(dump_mark),
    "lock": _whole(dump_mark),
    "covered_offset": _whole(dump_redo_log),
    "replica": _whole(dump_mark),
    "rebuild": _whole(dump_mark),
    "clean_stop.json": _whole(dump_clean_stop),
    "queues.json": _whole(dump_queue_list),
    "sinks.json": _whole(dump_sinks),
    "format.json": _whole(dump_format),
}


def dump(
    disk: Disk, path: str, *, from_number: int | None = None, limit: int | None = None
) -> Iterator[Item]:
    """Yield the items of a file or directory, at most `limit` records, units or lines.

    `from_number` is an offset of the commit log, or the number of a unit or entry. Raise DumpError
    before the first item if the file is unknown or ends before `from_number`.
    """
    shown = _whole(dump_directory) if disk.is_dir(path) else _recognised(disk, path)
    items = shown(disk, path, from_number)
    if from_number:
        items = _from(items, path, from_number)
    return _limited(items, path, limit)


def _from(items: Iterator[Item], path: str, from_number: int) -> Iterator[Item]:
    """Yield the same items. Raise DumpError without one to show."""
    before: list[Item] = []
    for item in items:
        if item.counted and item.kind != EMPTY_UNITS:
            yield from before
            yield item
            yield from items
            return
        before.append(item)
    raise DumpError(f"{path} ends before {from_number}: there is nothing to show.")


def _limited(items: Iterator[Item], path: str, limit: int | None) -> Iterator[Item]:
    left = limit
    try:
        for item in items:
            if item.counted and left is not None:
                if left <= 0:
                    yield Item("more", {"meaning": f"only {limit} are shown"})
                    return
                left -= 1
            yield item
    except StoreError as error:
        raise DumpError(str(error)) from error
    except OSError as error:
        raise DumpError(f"Cannot read {error.filename or path}: {reason_of(error)}.") from error


def _recognised(disk: Disk, path: str) -> Dump:
    directories, _, name = path.rpartition("/")
    above = directories.split("/")
    if first_offset_of(name) is not None:
        for directory, dump_file in _PLACES.items():
            if directory in above[-3:]:
                return dump_file
    if len(name) == _INDEX_NAME_DIGITS and name.isascii() and name.isdigit():
        return dump_index
    whole_name = name.removesuffix(".tmp")
    if whole_name in _NAMES:
        return _NAMES[whole_name]
    if whole_name.endswith(".crc"):
        return _whole(dump_sidecar)
    if whole_name.endswith(".left-out"):
        return _whole(dump_left_out)
    if any(part in name for part in (".json", ".bak")):
        return _whole(dump_config)
    found = _by_content(disk, path)
    if found is None:
        raise DumpError(f"{path} is not a file of a store, by name and content.")
    return found


def _by_content(disk: Disk, path: str) -> Dump | None:
    file = opened(disk, path)
    try:
        size, head = file.size(), file.pread(_HEAD_BYTES, 0)
    except OSError as error:
        raise DumpError(f"Cannot read {path}: {reason_of(error)}.") from error
    finally:
        file.close()
    if len(head) >= SIZE_AND_MAGIC.size:
        _, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic in (RECORD_MAGIC, BLANK_MAGIC):
            return dump_log
    if head.startswith(b"TRPTXN01"):
        return _whole(dump_redo_log)
    if head.startswith(JOURNAL_MAGIC):
        return _whole(dump_offset_journal)
    if head.startswith(b'{"logMinOffset"'):
        return _whole(dump_clean_stop)
    if head.lstrip()[:1] == b"{":
        return _whole(dump_config)
    if Sidecar.decode(head) is not None:
        return _whole(dump_sidecar)
    return _by_numbers(size, head)


def _by_numbers(size: int, head: bytes) -> Dump | None:
    """Return the dump for a file without a mark, by values that fit only one kind."""
    if len(head) < HEADER_BYTES:
        return None
    times = [int.from_bytes(head[start : start + 8]) for start in (0, 8)]
    if size == _CHECKPOINT_BYTES and not any(head[128:]):
        return _whole(dump_checkpoint) if any(time in _TIMES_MS for time in times) else None
    index = IndexHeader.of(head[:HEADER_BYTES])
    if all(time in _TIMES_MS for time in times) and 0 <= index.used_slots < index.next_entry:
        return dump_index
    size_field, _, timestamp, bitmap_bytes = EXT_UNIT.unpack_from(head)
    if size_field == EXT_UNIT.size + bitmap_bytes and timestamp in _TIMES_MS:
        return dump_ext
    states = [unit for unit in STATE_UNIT.iter_unpack(_whole_units(head, STATE_UNIT.size))]
    used = [unit for unit in states if any(unit)]
    if used and all(unit[4] in STATE_WORDS and unit[1] >= _LEAST_RECORD_BYTES for unit in used):
        return dump_transactions
    units = [unit for unit in UNIT.iter_unpack(_whole_units(head, UNIT_BYTES)) if any(unit)]
    offsets = [unit[0] for unit in units]
    if units and offsets == sorted(offsets) and offsets[0] >= 0:
        return dump_queue if all(unit[1] >= _LEAST_RECORD_BYTES for unit in units) else None
    return None


def _whole_units(head: bytes, unit_bytes: int) -> bytes:
    return head[: len(head) // unit_bytes * unit_bytes]
