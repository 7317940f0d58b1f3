"""The run of index files `index/<yyyyMMddHHmmssSSS>`: finds messages by key and time.

A file's name is the local time at which it was made. Only the last one is written to; full ones
are closed, and opened for a query. New keys stay in memory until `write_out`, and are put into the
files in bulk: an entry put alone costs 7 µs, one of 500 costs 0.4.

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
"""Keys in memory alone; then they are written out, which takes about a millisecond."""
_NAME_DIGITS = 17


@dataclass(slots=True)
class QueryResult:
    """Where the records with a key are, and up to where the index knows the log."""

    physical_offsets: list[int]
    """Newest file first, newest first in each; may hold other keys with the same hash."""
    last_timestamp: int
    last_physical_offset: int


@dataclass(slots=True)
class FullFiles:
    """Files that filled up and are not on disk yet; see `Index.unsynced`."""

    files: Unsynced
    end_timestamp: int
    """For the checkpoint's index timestamp, once they are."""
    full: list[IndexFile]


class Index:
    """All index files of a store; a Follower of its log (storage/dispatching/dispatch.py).

    One owner; any thread may call `query`: `files` is a tuple that is replaced as a whole.
    """

    name = "index"

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self.directory = config.index_dir
        self.files: tuple[IndexFile, ...] = ()
        self.doubts: list[str] = []
        """Which files could not be trusted, and why, in words; for the log line of a start."""
        self._config, self._disk, self._clock = config, disk, clock
        self._columns = KeyColumns()
        self._unsynced: list[IndexFile] = []
        self._covered = 0
        self._begun = (0, 0)
        """A record of which only so many keys are here: the rest was lost with a newer file."""

    # -- start-up and end ---------------------------------------------------------------------

    def load(
        self,
        clean: bool,
        safe_timestamp: int,
        covered_offset: int | None = None,
        doubtful: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Reads the headers; returns the paths of the files it removed.

        A file that contradicts itself goes, and so do all newer ones: they are made again from the
        log. After a crash only full files that end by `safe_timestamp` stay (the checkpoint's, set
        when a full file was synced), and of those that end at that very time the first.
        `covered_offset` is what it was at a clean stop, when that is known; `doubtful` files, by
        name, contradict what is known of that stop.

        Raises StoreError when whole files have another size than the settings ask for.
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
        """A file of another size is damaged, unless all are: then the settings are wrong."""
        for file in found:
            file.load()
        sizes = {file.found_bytes for file in found}
        if len(sizes) > 1 or sizes <= {0, found[0].size_bytes}:
            return
        if len(found) > 1 or found[0].has_other_layout():
            raise StoreError(
                f"{found[0].path} has {found[0].found_bytes} bytes, but maxHashSlotNum and "
                f"maxIndexNum make {found[0].size_bytes}: set them to what the files were made "
                "with, or remove them."
            )

    def truncate_behind(self, physical_end: int) -> list[str]:
        """The log ends here: files that know of records behind it go; returns their paths."""
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
            self.doubts.append(_doubt(first, "it knows more than the log"))
            removed = self.drop_from(first)
            self.unlink(removed)
        self._covered = min(self._covered, physical_end)
        return removed

    @property
    def full_until_ms(self) -> int:
        """The end of the newest full file; the checkpoint must not vouch for more."""
        return max((file.end_timestamp for file in self.files if file.is_full), default=0)

    def _cover_files(self) -> None:
        """Takes what the files know for covered, but for the newest record in them.

        That one may have more keys; how many of them are here is looked up.
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
        """Forgets a file and all newer ones, and what is in memory; returns the files to unlink.

        They are in the order in which they have to be unlinked: a crash in between leaves no hole.
        What they knew is no longer covered.
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
        """Removes files that the index has dropped; any thread. Raises OSError."""
        for path in sorted(paths, reverse=True):
            if self._disk.exists(path):
                self._disk.unlink(path)
        if paths:
            self._disk.sync_directory(self.directory)

    def sync(self) -> None:
        """Writes out and brings everything to disk. Raises StoreError."""
        self.write_out()
        for file in self.files:
            if file.is_dirty:
                file.sync()
        self._unsynced.clear()
        if self.files:
            self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Closes the last file. Sync before, or the log has to be indexed again."""
        for file in self.files:
            file.close()

    # -- syncing full files from another thread -----------------------------------------------

    def unsynced(self) -> FullFiles | None:
        """The full files that are not known to be on disk; None if there is none.

        Sync its `files`, tell `mark_synced`, then set the checkpoint's index timestamp.
        """
        if not self._unsynced:
            return None
        files = Unsynced([file.path for file in self._unsynced], {self.directory})
        return FullFiles(files, self._unsynced[-1].end_timestamp, list(self._unsynced))

    def mark_synced(self, taken: FullFiles) -> None:
        """Notes that what `unsynced` gave is on disk now."""
        for file in taken.full:
            file.is_dirty = False
        self._unsynced = [file for file in self._unsynced if file not in taken.full]

    # -- adding (hot) -------------------------------------------------------------------------

    @property
    def covered_offset(self) -> int:
        """Records that begin below it have all their keys here, in memory or in a file."""
        return self._covered

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Takes the keys of records, in the order of the log; those it covers already are skipped.

        Rolled back records have none. Keys stay in memory until `write_out`, which this calls when
        there are many; so it may raise DiskFull or StoreError, and repeating the call is harmless.
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
        """The same of keys that were read elsewhere, of records that it covers or that follow them.

        Not while `has_begun_record`. Raises DiskFull or StoreError; repeating the call is harmless.
        """
        self._columns.add_part(part, self._covered)
        self._covered = max(self._covered, part.end)
        if len(self._columns.hashes) >= PENDING_MAX:
            self.write_out()

    @property
    def has_begun_record(self) -> bool:
        """Whether of the record at `covered_offset` some keys are here and some are not."""
        return self._begun[1] > 0

    def _without_begun(self, entries: Sequence[DispatchEntry]) -> Sequence[DispatchEntry]:
        """The entries, that of a record half of whose keys are in a file without these keys."""
        offset, count = self._begun
        if entries[-1].physical_offset >= offset:
            self._begun = (0, 0)
        return [
            replace(each, keys=each.keys[count:]) if each.physical_offset == offset else each
            for each in entries
        ]

    def write_out(self) -> None:
        """Puts the keys that are only in memory into the files, as many as it takes.

        Raises DiskFull or StoreError; what could not be written stays in memory.
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
        self._disk.make_dirs(self.directory)
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
        """The present local time; later than the last file's name, whatever the clock says."""
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
        accepts: Callable[[int], bool] = lambda _: True,
    ) -> QueryResult:
        """Records of a topic with a key, stored between two times (both included).

        The index knows a hash and a second: `accepts` looks at the record. Any thread may ask.
        Keys in memory alone are not found: have them written out first. Raises OSError.
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
        """Forgets files, but never the last, whose records are all gone.

        Returns their paths, for somebody else to unlink.
        """
        files, count = self.files, 0
        while count < len(files) - 1 and files[count].end_physical_offset < min_physical:
            files[count].close()
            count += 1
        self.files = files[count:]
        self._unsynced = [file for file in self._unsynced if file in self.files]
        return [file.path for file in files[:count]]


def _doubt(path: str, fault: str) -> str:
    return f"{path}: {fault}: the index is made anew from there on"


def _is_name(name: str) -> bool:
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def local_name(now_ms: int) -> str:
    """Local time to the millisecond, 17 digits."""
    moment = datetime.fromtimestamp(now_ms // 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
