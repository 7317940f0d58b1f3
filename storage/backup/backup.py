"""A run of `troupemq store backup`: copies a store in use, in a fixed order.

1. Full files of the commit log, which no longer change.
2. The checkpoint, and files that must not be ahead of the rest: consumer offsets with their
   journal, delay offsets, progress of the transaction table and the sinks.
3. Files that have grown since: transaction table, full index files, consume queues. Below the
   checkpoint's durable offset all units are in their files; a start rebuilds the rest.
4. The commit log up to its present end: the cut. No file above points behind the cut.
5. Topics and groups: a topic is in its file before the log has a message of it.

The copy is a state that a crash at the cut might leave, and a start on it recovers as from one.
Everything acknowledged before the run is below the cut, whether flushed by the broker or not.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from protocol.message import RecordHead
from storage.backup.copying import Pace, Share
from storage.backup.record import ALSO, LOG_DIRECTORY, BackupFolder, BackupRecord
from storage.backup.run_files import RunFiles
from storage.clock import Clock
from storage.config import StoreConfig
from storage.errors import DiskFull, StoreError, store_error
from storage.files.disk import Disk
from storage.files.mapped_file import file_name, first_offset_of, wrong_size
from storage.log.reader import NamedLogReader, walk
from storage.queues.queue_run import size_of
from storage.queues.queue_units import UNIT_BYTES
from storage.recovery.checkpoint import durable_offset, require_log
from storage.recovery.store_format import require_finished_copy, require_known_format
from storage.retention.leases import FileLease, holder_text
from storage.retention.reserve import in_words
from storage.tables.offset_journal import generations, journal_directory

_QUEUES, _EXTENSIONS, _INDEX = "consumequeue", "consumequeue_ext", "index"
_TRANSACTIONS = "transaction/statetable"
_LATE_TABLES = ("topics.json", "subscriptionGroup.json")
_OFFSETS = "config/consumerOffset.json"
_TABLE_ENDS = (".json", ".json.bak", ".json.crc")
_EARLY = (
    "checkpoint",
    "transaction/redolog/covered_offset",
    "troupemq/format.json",
    "troupemq/queues.json",
    "troupemq/rebuild",
    "troupemq/replica",
    "troupemq/sinks.json",
)


@dataclass(slots=True)
class BackupReport:
    log_start: int = 0
    log_end: int = 0
    """The cut: end of the copied log."""
    copied_bytes: int = 0
    shared_bytes: int = 0
    """Bytes of files that take no space of their own."""
    file_count: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences for the operator."""


class StoreBackup:
    """One run; the only change to the store is a lease."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        folder: BackupFolder,
        clock: Clock,
        *,
        pace: Pace = lambda _: None,
        share: Share | None = None,
        spare_bytes: int = 0,
        also: Sequence[str] = (),
    ) -> None:
        """Create a run that leaves `spare_bytes` free; `also` names further files to keep."""
        self._config, self._disk, self._folder, self._clock = config, disk, folder, clock
        self._files = RunFiles(config, disk, folder, clock, pace, share)
        self._spare_bytes, self._also = spare_bytes, also
        self._lease: FileLease | None = None
        self._has_room = self._was_whole = False
        self.report = BackupReport()

    def run(self) -> BackupReport:
        """Make the copy or bring it up to date.

        Raise StoreError, and DiskFull without space for the copy. Then the run must be repeated;
        until then the result of the run before can be restored.
        """
        require_known_format(self._config, self._disk)
        require_finished_copy(self._config, self._disk)
        require_log(self._config, self._disk)
        folder = self._folder
        try:
            self._require_its_file_size()
            self._require_a_place()
            folder.take()
            folder.settle()
            before = folder.done()
            if before is not None:
                self._require_same_log(before)
            self._take_lease()
            interrupted = folder.under_way()
            self._was_whole = before is not None and interrupted is None
            self._files.begin(before, interrupted or {})
            self._copy_all()
            self._end(self._clock.now_ms())
        except OSError as error:
            raise store_error("cannot copy the store", error) from error
        finally:
            if self._lease is not None:
                self._lease.release()
            folder.release()
        return self.report

    def _copy_all(self) -> None:
        files = self._files
        self._copy_full_log_files()
        files.copy_small([*_EARLY, *self._tables(late=False)])
        self._copy_offsets()
        files.copy_aside(_TRANSACTIONS)
        for name in self._disk.listdir(self._config.index_dir)[:-1]:
            self._copied(f"{_INDEX}/{name}")
        for root in (_QUEUES, _EXTENSIONS):
            for directory in self._queue_directories(root):
                self._copy_queue(directory)
        last = self._copy_log_end()
        files.copy_small(self._tables(late=True))
        self._mend_queues()
        self._keep_also()
        if last is not None:  # the broker has finished writing it by now
            self._copy_log(last, self.report.log_end, again=True)

    def _end(self, taken_ms: int) -> None:
        report, found, copier = self.report, self._files.found, self._files.copier
        first = min(self._log_files(), default=0)
        for name in [each for each in found if each.startswith(f"{LOG_DIRECTORY}/")]:
            if int(name.rpartition("/")[2]) < first:
                del found[name]
        report.log_start = min(first, report.log_end)
        self._files.note()  # drop what has left the copy after all
        root = self._config.root
        self._folder.finish(
            BackupRecord(root, taken_ms, report.log_start, report.log_end, dict(found))
        )
        report.file_count, report.copied_bytes = len(found), copier.copied_bytes
        report.shared_bytes = self._files.shared_bytes
        if copier.unreadable_bytes:
            report.notes.append(
                f"{copier.unreadable_bytes} bytes are unreadable, and zeros in the copy:"
                " check the disk of the store; `troupemq store check` of the copy shows what is"
                " lost."
            )

    # -- before anything is copied ---------------------------------------------------------------

    def _require_its_file_size(self) -> None:
        """Require log files of the size that the settings give; others would be copied in part.

        The last one may be shorter while a broker makes it.
        """
        wanted, firsts = self._config.commit_log_file_bytes, self._log_files()
        for first in firsts:
            path = self._files.source(self._log_name(first))
            with suppress(FileNotFoundError):
                size = size_of(self._disk, path)
                if size > wanted or (size < wanted and first != firsts[-1]):
                    raise wrong_size(path, size, "mappedFileSizeCommitLog", wanted)

    def _require_a_place(self) -> None:
        """Require an empty folder, or a copy that no broker has used as a store."""
        folder = self._folder
        disk, root = folder.disk, folder.root
        here, there = disk.real_path(root), self._disk.real_path(self._config.root)
        if f"{here}/".startswith(f"{there}/"):
            raise StoreError(f"{root} is inside the store itself: name a folder elsewhere.")
        is_new = disk.listdir(root) in ([], ["troupemq"]) and (
            disk.listdir(f"{root}/troupemq") in ([], ["backup.lock"])
        )
        if is_new or folder.is_ending() or folder.under_way() is not None:
            return
        if folder.done() is None:
            raise StoreError(
                f"{root} is neither empty nor a copy made by `troupemq store backup`: name"
                " another folder."
            )
        if disk.exists(f"{root}/lock"):
            raise StoreError(
                f"a broker has been started on the copy {root}: name an empty folder, and next time"
                " restore by `troupemq store restore`."
            )

    def _require_same_log(self, before: BackupRecord) -> None:
        """Require that the copy is of this log, as far as both reach."""
        firsts, cut = self._log_files(), before.log_end
        first = self._file_of(max(0, cut - 1))
        if not cut or (firsts and firsts[0] > first):
            return  # the whole copy is older than the log
        name = self._log_name(first)
        source, target = self._files.source(name), self._folder.path(name)
        if first in firsts and self._files.copier.is_alike(source, target, cut - first):
            return
        raise StoreError(
            f"{self._folder.root} is a copy of another log than that of {self._config.root}, or"
            " this one has lost its end since: name an empty folder, and keep that copy until the"
            " new one is there."
        )

    def _take_lease(self) -> None:
        """Make the broker retain the log files until they are copied."""
        root, firsts = self._config.root, self._log_files()
        lease_id, first = f"backup-{self._clock.now_ms()}", min(firsts, default=0)
        with suppress(OSError):
            self._lease = FileLease.acquire(
                self._disk, root, lease_id, holder_text("backup"), first
            )
        if self._lease is None and self._disk.exists(self._config.abort_path):
            self.report.notes.append(
                "no lease acquired: files that the broker deletes meanwhile are not in the copy."
            )

    def _hold(self, offset: int) -> None:
        if self._lease is not None:
            with suppress(OSError):
                self._lease.move(offset)

    def _require_room(self) -> None:
        """Check the space for the whole log, before copying the first file that takes any."""
        if self._has_room:
            return
        self._has_room = True
        file_bytes, wanted = self._config.commit_log_file_bytes, 0
        for first in self._log_files()[:-1]:
            known = self._files.known.get(self._log_name(first))
            wanted += file_bytes - (known.through if known else 0)
        total, free = self._folder.disk.capacity(self._folder.root)
        if total and wanted + self._spare_bytes > free:
            if self._was_whole and not self._files.copier.copied_bytes:
                self._folder.unmark()  # the copy is unchanged
            spare = f", of which the broker needs {in_words(self._spare_bytes)}"
            raise DiskFull(
                f"the copy takes {in_words(wanted)} more, and {in_words(free)} are free in"
                f" {self._folder.root}{spare if self._spare_bytes else ''}: make room, or name"
                " another folder."
            )

    # -- the log ---------------------------------------------------------------------------------

    def _log_files(self) -> list[int]:
        """Return the first offset of each file of the log, in order."""
        names = self._disk.listdir(self._config.commit_log_dir)
        found = (first_offset_of(name) for name in names)
        return [first for first in found if first is not None]

    def _file_of(self, offset: int) -> int:
        return offset - offset % self._config.commit_log_file_bytes

    def _log_name(self, first: int) -> str:
        return f"{LOG_DIRECTORY}/{file_name(first)}"

    def _current(self, firsts: Sequence[int]) -> int:
        """Return the first offset of the file being written: the last with a record."""
        for first in reversed(firsts[1:]):
            path = self._files.source(self._log_name(first))
            with (
                suppress(FileNotFoundError),
                closing(self._disk.open(path, read_only=True)) as file,
            ):
                if any(file.pread(8, 0)):
                    return first
        return firsts[0]

    def _copy_full_log_files(self) -> list[int]:
        """Copy the files that are full now, the oldest first; return the others.

        Files that fill up meanwhile do not count: a broker may write faster than this copies.
        """
        files, firsts = self._files, self._log_files()
        if not firsts:
            return []
        current = self._current(firsts)
        for first in firsts[: firsts.index(current)]:
            name = self._log_name(first)
            if name in files.found:
                continue
            self._hold(first)
            try:
                if not files.share(name):
                    self._require_room()
                    files.go_on(name, self._config.commit_log_file_bytes)
            except FileNotFoundError:
                self.report.notes.append(
                    f"{files.source(name)} was deleted before it was copied: its messages are"
                    " missing from store and copy."
                )
        self._hold(current)
        return firsts[firsts.index(current) :]

    def _copy_log_end(self) -> int | None:
        """Copy the log up to its present end; return the offset of its last record, or None."""
        firsts = self._copy_full_log_files()
        if not firsts:
            return None
        file_bytes, current = self._config.commit_log_file_bytes, firsts[0]
        durable = durable_offset(self._disk, self._config.checkpoint_path)
        end = durable if current <= durable < current + file_bytes else current
        last = None
        capacity_end = self._log_files()[-1] + file_bytes
        reader = NamedLogReader(self._disk, self._config, capacity_end)
        try:
            for item in walk(reader, end, reader.end_offset):
                if isinstance(item, RecordHead):
                    last, end = item.physical_offset, item.physical_offset + item.record_bytes
        finally:
            reader.close()
        self.report.log_end = end
        self._copy_log(current, end)
        self._clear_behind(max(current, self._file_of(end - 1)), end)
        return last

    def _clear_behind(self, last_file: int, end: int) -> None:
        """Remove what an interrupted run may have left behind the cut."""
        folder = self._folder
        self._files.copier.clear_behind(folder.path(self._log_name(last_file)), end - last_file)
        for name in folder.disk.listdir(folder.path(LOG_DIRECTORY)):
            first = first_offset_of(name)
            if first is not None and first > last_file:
                folder.disk.unlink(folder.path(f"{LOG_DIRECTORY}/{name}"))

    def _copy_log(self, start: int, end: int, *, again: bool = False) -> None:
        """Copy the log from `start` to `end`; with `again`, also what is there already."""
        file_bytes, first = self._config.commit_log_file_bytes, self._file_of(start)
        again_from = start - first if again else None
        while True:
            name = self._log_name(first)
            self._files.go_on(name, min(file_bytes, end - first), again_from=again_from)
            first, again_from = first + file_bytes, None
            if first >= end:
                return

    # -- the rest --------------------------------------------------------------------------------

    def _copy_offsets(self) -> None:
        """Copy the consumer offsets again, with the journal that belongs to them.

        The journal grows with each acknowledgement; an entry that is cut off does not count.
        """
        names = [name for name in self._tables(late=False) if name.startswith(_OFFSETS)]
        directory = journal_directory(self._config)
        place = directory.removeprefix(f"{self._config.root}/")
        self._files.copy_with(
            names,
            lambda: [f"{place}/{each}" for each in generations(self._disk, directory)],
        )

    def _tables(self, *, late: bool) -> list[str]:
        return [
            f"config/{name}"
            for name in self._disk.listdir(self._config.config_dir)
            if name.endswith(_TABLE_ENDS) and name.startswith(_LATE_TABLES) == late
        ]

    def _queue_directories(self, root: str) -> list[str]:
        above = f"{self._config.root}/{root}"
        return [
            f"{root}/{topic}/{queue_id}"
            for topic in self._disk.listdir(above)
            if self._disk.is_dir(f"{above}/{topic}")
            for queue_id in self._disk.listdir(f"{above}/{topic}")
        ]

    def _copy_queue(self, directory: str) -> None:
        path = f"{self._config.root}/{directory}"
        for name in self._disk.listdir(path) if self._disk.is_dir(path) else ():
            if first_offset_of(name) is not None:
                self._copied(f"{directory}/{name}")

    def _copied(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.go_on(name)

    def _mend_queues(self) -> None:
        """Copy again the queues that were deleted, and perhaps recreated, during the run."""
        found = self._files.found
        firsts: dict[str, str] = {}
        for name in sorted(each for each in found if each.startswith(f"{_QUEUES}/")):
            firsts.setdefault(name.rpartition("/")[0], name)
        for directory, name in firsts.items():
            if self._is_as_copied(name):
                continue
            gone = [each for each in found if each.startswith(f"{directory}/")]
            for each in gone:
                del found[each]
            self._copy_queue(directory)

    def _is_as_copied(self, name: str) -> bool:
        """Return whether the first unit of a file is still the copied one."""
        source, folder = self._files.source(name), self._folder
        with suppress(FileNotFoundError):
            if folder.disk.exists(folder.aside(name)):
                return self._files.copier.is_alike(source, folder.aside(name), UNIT_BYTES)
            return self._files.copier.is_alike(source, folder.path(name), UNIT_BYTES)
        return False

    def _keep_also(self) -> None:
        """Copy settings, accounts and the like under their base names; of a folder, its files."""
        for path in self._also:
            place = f"{ALSO}/{path.rstrip('/').rpartition('/')[2]}"
            if not self._disk.is_dir(path):
                self._files.put_aside(place, self._disk.read_bytes(path))
                continue
            for name in self._disk.listdir(path):
                if not self._disk.is_dir(f"{path}/{name}"):
                    data = self._disk.read_bytes(f"{path}/{name}")
                    self._files.put_aside(f"{place}/{name}", data)
