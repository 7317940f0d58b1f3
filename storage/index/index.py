"""The run of index files `index/<yyyyMMddHHmmssSSS>`: finds messages by key and time.

A file's name is the local time of its creation. Only the last one is written to; full ones are
closed, and opened for a query. New keys stay in memory until `write_out`, which puts them into the
files in bulk. An entry put alone costs 7 µs, one of 500 costs 0.4.

Source: store/index/IndexService.java.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from storage.clock import Clock
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import Disk
from storage.index.index_file import CLOCK_STEP_MS, IndexFile
from storage.index.key_columns import KeyColumns, KeyPart
from storage.index.key_hash import TopicHashes
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, single_entries
from storage.queues.unsynced import Unsynced

PENDING_MAX = 2048
"""Limit of keys in memory only; writing them out takes about a millisecond."""
_NAME_DIGITS = 17


@dataclass(slots=True)
class QueryResult:
    """Offsets of the records with a key, and the end of the indexed log."""

    physical_offsets: list[int]
    """Newest file first, newest first in each; may contain other keys with the same hash."""
    last_timestamp: int
    last_physical_offset: int


@dataclass(slots=True)
class FullFiles:
    """Full files that are not on disk yet; see `Index.unsynced`."""

    files: Unsynced
    end_timestamp: int
    """The checkpoint's index timestamp once the files are on disk."""
    full: list[IndexFile]


class Index:
    """All index files of a store; a Follower of its log (storage/dispatching/dispatch.py).

    One owner, but any thread may call `query`: `files` is a tuple that is replaced as a whole.
    """

    name = "index"

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self.directory = config.index_dir
        self.files: tuple[IndexFile, ...] = ()
        self.doubts: list[str] = []
        """Untrusted files with reasons, for the log line of a start."""
        self._config, self._disk, self._clock = config, disk, clock
        self._columns = KeyColumns()
        self._unsynced: list[IndexFile] = []
        self._covered = 0
        self._begun = (0, 0)
        """Record with only some of its keys here; the others were lost with a newer file."""

    # -- start-up and end ---------------------------------------------------------------------

    def load(
        self,
        clean: bool,
        safe_timestamp: int,
        covered_offset: int | None = None,
        doubtful: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Read the headers; return the paths of the removed files.

        A file that contradicts itself is removed together with all newer ones; they are rebuilt
        from the commit log. After a crash, only full files that end by `safe_timestamp` stay (the
        checkpoint's, set when a full file was synced). Of those that end at that very time, only
        the first stays. `covered_offset` is the value at a clean stop, if known. `doubtful` files,
        by name, contradict the record of that stop.

        Raise StoreError if whole files have another size than the settings demand.
        """
        found = [self._file(name) for name in self._disk.listdir(self.directory) if _is_name(name)]
        kept: list[IndexFile] = []
        for file in found:
            fault = file.load() or (doubtful or {}).get(file.path.rpartition("/")[2], "")
            if not fault and kept and file.begin_physical_offset < kept[-1].end_physical_offset:
                fault = "it begins before the file before it ends"
            if fault:
                if clean:
                    self._refuse_other_settings(found)
                    self.doubts.append(_doubt(file.path, fault))
                break
            if not clean and not (file.is_full and file.end_timestamp <= safe_timestamp):
                break
            kept.append(file)
            if not clean and file.end_timestamp == safe_timestamp:
                break
        self.files = tuple(kept)
        removed = [file.path for file in found[len(kept) :]]
        self.unlink(removed)
        self._cover_files()
        if clean and not removed and covered_offset is not None:
            self._covered = max(self._covered, covered_offset)
        return removed

    def _refuse_other_settings(self, found: Sequence[IndexFile]) -> None:
        """Raise StoreError if all files have another size; a single one is just damaged."""
        for file in found:
            file.load()
        sizes = {file.found_bytes for file in found}
        if len(sizes) > 1 or sizes <= {0, found[0].size_bytes}:
            return
        if len(found) > 1 or found[0].has_other_layout():
            raise StoreError(
                f"{found[0].path} has {found[0].found_bytes} bytes, but maxHashSlotNum and "
                f"maxIndexNum make {found[0].size_bytes}: set them to the values that "
                "created the files, or remove the files."
            )

    def truncate_behind(self, physical_end: int) -> list[str]:
        """Remove files with records behind the end of the log; return their paths."""
        removed: list[str] = []
        first = next(
            (
                file.path
                for file in self.files
                if file.next_entry > 1 and file.end_physical_offset >= physical_end
            ),
            None,
        )
        if first is not None:
            self.doubts.append(_doubt(first, "it is ahead of the log"))
            removed = self.drop_from(first)
            self.unlink(removed)
        self._covered = min(self._covered, physical_end)
        return removed

    @property
    def full_until_ms(self) -> int:
        """End of the newest full file, the limit of the checkpoint's index timestamp."""
        return max((file.end_timestamp for file in self.files if file.is_full), default=0)

    def _cover_files(self) -> None:
        """Set the covered offset to the newest record in the files.

        That record may have more keys; the number of those in the files is counted.
        """
        self._begun = (0, 0)
        self._covered = 0
        for file in reversed(self.files):
            if file.next_entry <= 1:
                continue
            try:
                offset, count = file.last_of_record()
            except OSError:
                offset, count = file.end_physical_offset, 0
            if self._begun[1] and offset != self._begun[0]:
                break
            self._covered, self._begun = offset, (offset, self._begun[1] + count)
            if count < file.next_entry - 1:
                break

    def drop_from(self, path: str) -> list[str]:
        """Drop a file, all newer ones and the keys in memory; return the files to unlink.

        They must be unlinked in this order, so that a crash in between leaves no hole. Their
        records are no longer covered.
        """
        kept = [file for file in self.files if file.path < path]
        dropped = self.files[len(kept) :]
        if not dropped:
            return []
        self.files = tuple(kept)
        for file in dropped:
            file.close()
        self._unsynced = [file for file in self._unsynced if file not in dropped]
        self._columns.clear()
        self._cover_files()
        return [file.path for file in reversed(dropped)]

    def unlink(self, paths: Sequence[str]) -> None:
        """Delete dropped files; any thread. Raise OSError."""
        for path in sorted(paths, reverse=True):
            if self._disk.exists(path):
                self._disk.unlink(path)
        if paths:
            self._disk.sync_directory(self.directory)

    def sync(self) -> None:
        """Write out and bring everything to disk. Raise StoreError."""
        self.write_out()
        for file in self.files:
            if file.is_dirty:
                file.sync()
        self._unsynced.clear()
        if self.files:
            self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Close the last file; without a sync before, the log must be indexed again."""
        for file in self.files:
            file.close()

    # -- syncing full files from another thread -----------------------------------------------

    def unsynced(self) -> FullFiles | None:
        """Return the full files that may not be on disk yet, or None.

        Sync its `files`, call `mark_synced`, then set the checkpoint's index timestamp.
        """
        if not self._unsynced:
            return None
        files = Unsynced([file.path for file in self._unsynced], {self.directory})
        return FullFiles(files, self._unsynced[-1].end_timestamp, list(self._unsynced))

    def mark_synced(self, taken: FullFiles) -> None:
        """Note that the files from `unsynced` are on disk."""
        for file in taken.full:
            file.is_dirty = False
        self._unsynced = [file for file in self._unsynced if file not in taken.full]

    # -- adding (hot) -------------------------------------------------------------------------

    @property
    def covered_offset(self) -> int:
        """Offset below which records have all their keys in memory or in a file."""
        return self._covered

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Take the keys of records in the order of the log; skip covered records.

        Rolled back records have no keys. Keys stay in memory until `write_out`, which this calls at
        PENDING_MAX. So it may raise DiskFull or StoreError; repeating the call is harmless.
        """
        if not entries:
            return
        covered = self._covered
        if self._begun[1]:
            entries = self._without_begun(single_entries(entries))
        self._columns.add(entries, covered)
        last = entries[-1]
        self._covered = max(covered, last.physical_offset + last.record_bytes)
        if len(self._columns.hashes) >= PENDING_MAX:
            self.write_out()

    def dispatch_part(self, part: KeyPart) -> None:
        """Take keys read by another process, of records that are covered or come next.

        Not while `has_begun_record`. Raise DiskFull or StoreError; repeating the call is harmless.
        """
        self._columns.add_part(part, self._covered)
        self._covered = max(self._covered, part.end)
        if len(self._columns.hashes) >= PENDING_MAX:
            self.write_out()

    @property
    def has_begun_record(self) -> bool:
        """Whether the record at `covered_offset` has only some of its keys here."""
        return self._begun[1] > 0

    def _without_begun(self, entries: Sequence[DispatchEntry]) -> Sequence[DispatchEntry]:
        """Return the entries without the keys that are already in a file."""
        offset, count = self._begun
        if entries[-1].physical_offset >= offset:
            self._begun = (0, 0)
        return [
            replace(each, keys=each.keys[count:]) if each.physical_offset == offset else each
            for each in entries
        ]

    def write_out(self) -> None:
        """Write the keys that are only in memory to as many files as needed.

        Raise DiskFull or StoreError; unwritten keys stay in memory.
        """
        columns = self._columns
        while columns.hashes:
            file = self._file_with_room()
            count = min(file.room, len(columns.hashes))
            file.put(columns.hashes[:count], columns.offsets[:count], columns.timestamps[:count])
            columns.drop(count)

    def _file_with_room(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            if not last.is_open:
                last.open_for_writing()
            return last
        file = self._file(self._new_name())
        if last is None:
            file.create(0, 0)
        else:
            file.create(last.end_physical_offset, last.end_timestamp)
            last.close()
            self._unsynced.append(last)
        self.files = (*self.files, file)
        return file

    def _file(self, name: str) -> IndexFile:
        config = self._config
        return IndexFile(
            self._disk, f"{self.directory}/{name}", config.max_hash_slots, config.max_index_entries
        )

    def _new_name(self) -> str:
        """Return the local time, or the last file's name plus one if that is later."""
        name = local_name(self._clock.now_ms())
        last = self.files[-1].path.rpartition("/")[2] if self.files else ""
        return name if name > last else str(int(last) + 1)

    # -- searching ----------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        accepts: Callable[[int], bool | None] = lambda _: True,
    ) -> QueryResult:
        """Return records of a topic with a key, stored between two times (both included).

        The index knows a hash and a second; `accepts` verifies the record, and ends the
        search by None. Any thread. Keys in memory only are not found, so write them out first.
        Raise OSError.
        """
        files = self.files
        result = QueryResult([], 0, 0)
        if not files:
            return result
        result.last_timestamp = files[-1].end_timestamp
        result.last_physical_offset = files[-1].end_physical_offset
        key_hash = TopicHashes().index_hash(topic.encode(), key.encode())
        wanted = min(max_count, self._config.max_query_count)
        found = result.physical_offsets
        for file in reversed(files):
            if file.overlaps(begin_ms - CLOCK_STEP_MS, end_ms + CLOCK_STEP_MS):
                found += file.find(key_hash, wanted - len(found), begin_ms, end_ms, accepts)
            if file.begin_timestamp < begin_ms - CLOCK_STEP_MS or len(found) >= wanted:
                break
        return result

    # -- cleaning -----------------------------------------------------------------------------

    def trim_before(self, min_physical: int) -> list[str]:
        """Drop files, except the last, that have only deleted records.

        Return their paths; the caller unlinks them.
        """
        files, count = self.files, 0
        while count < len(files) - 1 and files[count].end_physical_offset < min_physical:
            files[count].close()
            count += 1
        self.files = files[count:]
        self._unsynced = [file for file in self._unsynced if file in self.files]
        return [file.path for file in files[:count]]


def _doubt(path: str, fault: str) -> str:
    return f"{path}: {fault}: the index is rebuilt from there on"


def _is_name(name: str) -> bool:
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def local_name(now_ms: int) -> str:
    """Return the local time to the millisecond, 17 digits."""
    moment = datetime.fromtimestamp(now_ms // 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
