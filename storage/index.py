"""The run of index files `index/<yyyyMMddHHmmssSSS>`: finds messages by key and time.

A file's name is the local time at which it was made. Only the last one is written to; full ones
are closed, and opened for a query. New keys stay in memory until `write_out`, and are put into the
files in bulk: an entry put alone costs 7 µs, one of 500 costs 0.4.

Source: store/index/IndexService.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.clock import Clock
from storage.config import StoreConfig
from storage.consume_queues import DispatchEntry
from storage.disk import Disk
from storage.errors import StoreError
from storage.index_file import IndexFile
from storage.key_hash import FAST_BYTES_MAX, HIGH, LOW, MASK, POWERS, SIGN, TopicHashes, extend_hash
from storage.unsynced import Unsynced

PENDING_MAX = 2048
"""Keys in memory alone; then they are written out, which takes about a millisecond."""
QUERY_COUNT_MAX = 64
"""More is never found by one query (maxMsgsNumBatch)."""
_NAME_DIGITS = 17
_ROLLED_BACK = 0xC
"""Both transaction bits: such records are not indexed."""


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
    """All index files of a store. One owner."""

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self.directory = config.index_dir
        self.files: list[IndexFile] = []
        self._config, self._disk, self._clock = config, disk, clock
        self._topic_hashes = TopicHashes()
        self._unsynced: list[IndexFile] = []
        self._hashes: list[int] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._covered = 0  # records below have all their keys here; the one at it may have some

    # -- start-up and end ---------------------------------------------------------------------

    def load(self, clean: bool, safe_timestamp: int) -> list[str]:
        """Reads the headers; returns the paths of the files it removed.

        After a crash only full files that end by `safe_timestamp` stay (the checkpoint's, set when
        a full file was synced), and of those that end at that very time the first: the log is to
        be indexed again from `end_physical_offset`. Raises StoreError for a file of another size.
        """
        removed: list[str] = []
        is_vouched_for = True
        for name in self._disk.listdir(self.directory):
            if len(name) != _NAME_DIGITS or not (name.isascii() and name.isdigit()):
                continue
            file = self._file(name)
            if clean:
                file.load()
            else:
                is_vouched_for = is_vouched_for and self._is_safe(file, safe_timestamp)
            if is_vouched_for:
                self.files.append(file)
                is_vouched_for = clean or file.end_timestamp < safe_timestamp
            else:
                self._disk.unlink(file.path)
                removed.append(file.path)
        if removed:
            self._disk.sync_directory(self.directory)
        self._covered = self.end_physical_offset
        if self.files and not self.files[-1].is_full:
            self.files[-1].open_for_writing()
        return removed

    @staticmethod
    def _is_safe(file: IndexFile, safe_timestamp: int) -> bool:
        try:
            file.load()
        except StoreError:
            return False
        return file.is_full and file.end_timestamp <= safe_timestamp

    def truncate_behind(self, physical_end: int) -> None:
        """Takes note that the log ends here, so that what comes to lie behind it gets indexed.

        Entries are not removed; those of lost records may be found as false hits.
        """
        self._covered = min(self._covered, physical_end)
        for file in self.files:
            if file.end_physical_offset >= physical_end:
                was_closed = not file.is_open
                if was_closed:
                    file.open_for_writing()
                file.end_at(physical_end)
                if was_closed:
                    file.sync()
                    file.close()

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

    def put_many(self, entries: Sequence[DispatchEntry]) -> None:
        """Takes the keys of records, in the order of the log; those it covers already are skipped.

        Rolled back records have none. Keys stay in memory until `write_out`, which this calls when
        there are many; so it may raise DiskFull or StoreError, and repeating the call is harmless.
        Only the newest record before a restart gets its keys twice when it is dispatched again.
        """
        covered = self._covered
        hashes, offsets, timestamps = self._hashes, self._offsets, self._timestamps
        last_topic, topic_hash = b"", 0
        for topic, _, _, physical_offset, _, _, timestamp, sys_flag, keys in entries:
            if physical_offset < covered or sys_flag & _ROLLED_BACK == _ROLLED_BACK:
                continue
            if topic != last_topic:
                last_topic, topic_hash = topic, self._topic_hashes.of(topic)
            for key in keys:
                length = len(key)
                if length <= FAST_BYTES_MAX and key.isascii():
                    # TopicHashes.index_hash, unrolled: 0.55 → 0.35 µs a key.
                    value = (
                        topic_hash * POWERS[length]
                        + 31 * int(key.translate(HIGH), 31)
                        + int(key.translate(LOW), 31)
                    ) & MASK
                else:
                    value = extend_hash(topic_hash, key)
                hashes.append((-value & SIGN) if value > SIGN else value)
                offsets.append(physical_offset)
                timestamps.append(timestamp)
        if entries:
            self._covered = max(covered, entries[-1][3] + 1)
        if len(hashes) >= PENDING_MAX:
            self.write_out()

    @property
    def end_physical_offset(self) -> int:
        """The newest record that has keys here, in memory or in a file; 0 without one."""
        if self._offsets:
            return self._offsets[-1]
        return self.files[-1].end_physical_offset if self.files else 0

    def write_out(self) -> None:
        """Puts the keys that are only in memory into the files, as many as it takes.

        Raises DiskFull or StoreError; what could not be written stays in memory.
        """
        hashes, offsets, timestamps = self._hashes, self._offsets, self._timestamps
        while hashes:
            file = self._file_with_room()
            count = min(file.room, len(hashes))
            file.put(hashes[:count], offsets[:count], timestamps[:count])
            del hashes[:count], offsets[:count], timestamps[:count]

    def _file_with_room(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        self._disk.make_dirs(self.directory)
        file = self._file(self._new_name())
        if last is None:
            file.create(0, 0)
        else:
            file.create(last.end_physical_offset, last.end_timestamp)
            last.close()
            self._unsynced.append(last)
        self.files.append(file)
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
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Records of a topic with a key, stored between two times (both included)."""
        self.write_out()
        result = QueryResult([], 0, 0)
        if not self.files:
            return result
        result.last_timestamp = self.files[-1].end_timestamp
        result.last_physical_offset = self.files[-1].end_physical_offset
        key_hash = self._topic_hashes.index_hash(topic.encode(), key.encode())
        wanted = min(max_count, QUERY_COUNT_MAX)
        found = result.physical_offsets
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                found += file.find(key_hash, wanted - len(found), begin_ms, end_ms)
            if file.begin_timestamp < begin_ms or len(found) >= wanted:
                break
        return result

    # -- cleaning -----------------------------------------------------------------------------

    def delete_before(self, min_physical: int) -> int:
        """Removes files, but never the last, whose records are all gone; returns how many."""
        count = 0
        while len(self.files) > 1 and self.files[0].end_physical_offset < min_physical:
            file = self.files.pop(0)
            self._unsynced = [each for each in self._unsynced if each is not file]
            file.close()
            self._disk.unlink(file.path)
            count += 1
        return count


def local_name(now_ms: int) -> str:
    """Local time to the millisecond, 17 digits."""
    moment = datetime.fromtimestamp(now_ms // 1000)
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
