"""The record of a copy of a store: its files, how far each reaches, and whether the run ended.

    <copy>/troupemq/backup.json            of the last completed run (checked_json)
    <copy>/troupemq/backup.running.json    exists during a run and after an interrupted one, with
                                           what it has copied; prevents a start on the copy
    <copy>/troupemq/backup.next/<path>     replacements of files, moved when the run ends
    <copy>/troupemq/backup.next.json       the record of a run that is ending
    <copy>/troupemq/backup.lock            locked by the process that works on the copy

A run appends to files only behind what the record says of them, and puts everything else aside. So
an interrupted run leaves the copy of the run before intact. Once backup.next.json is on disk, the
run has ended; the next process completes the remaining steps (`settle`).

A copy may come from an untrusted place. A record with a name that leads out of the copy is refused,
and so is a link in the copy that does.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from storage.config import StoreConfig
from storage.errors import StoreError, StoreLocked, store_error
from storage.files.below import OutsideFolder, below
from storage.files.checked_json import ODD_VALUES, read_checked, write_checked
from storage.files.disk import Disk, DiskFile
from storage.files.lock_file import create_abort
from storage.recovery.store_format import mark_path

_DIRECTORY = "troupemq"
LOG_DIRECTORY = "commitlog"
ALSO = "also"
"""Folder in a copy for files from outside the store."""


class CopiedFile(NamedTuple):
    size: int
    """Size of the original, bytes."""
    through: int
    """The copy has everything below this position; zeros behind it do not count."""
    modified_ms: int
    """Last modification of the original; -1 if it may have been modified since."""


@dataclass(slots=True)
class BackupRecord:
    source: str
    """Root of the store."""
    taken_ms: int
    log_start: int
    log_end: int
    """The cut: records below it are in the copy, none behind."""
    files: dict[str, CopiedFile] = field(default_factory=dict)
    """The files by path below the root of the copy."""


class BackupFolder:
    """The directory of a copy. One owner, ensured by `take`."""

    def __init__(
        self, disk: Disk, root: str, log_dir: str = "", *, follows_links: bool = False
    ) -> None:
        """Create the closed folder.

        `log_dir` is the directory of the log if it is not below `root`. `follows_links` is for a
        store, in which folders may be links of its operator.
        """
        self.disk, self.root = disk, root
        self._log_dir = log_dir
        own = f"{root}/{_DIRECTORY}"
        self._done_path, self._next_path = f"{own}/backup.json", f"{own}/backup.next.json"
        self._mark_path, self._lock_path = mark_path(root), f"{own}/backup.lock"
        self._aside = f"{own}/backup.next"
        self._lock: DiskFile | None = None
        self._real_path = None if follows_links else disk.real_path
        self._checked: set[str] = set()
        """Directories known not to lead out of the copy."""
        self._changed: set[str] = set()
        """Directories with names that may not be on disk yet."""

    # -- lock

    def take(self) -> None:
        """Lock the copy until `release`. Raise StoreLocked, StoreError."""
        below(self.root, _DIRECTORY, real_path=self._real_path)
        try:
            self.disk.make_dirs(f"{self.root}/{_DIRECTORY}")
            file = self.disk.open(self._lock_path, create=True)
            is_free = file.lock_byte()
        except OSError as error:
            raise store_error(f"cannot use {self.root}", error) from error
        if not is_free:
            file.close()
            raise StoreLocked(f"another process copies to or from {self.root}: wait for its end.")
        self._lock = file

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    # -- content

    def done(self) -> BackupRecord | None:
        """Return the last completed run, or None. Raise OutsideFolder."""
        return self._record(self._done_path)

    def _record(self, path: str) -> BackupRecord | None:
        record = _record_of(read_checked(self.disk, path))
        if record is not None:
            self._check(record.files, path)
        return record

    def _check(self, names: Iterable[str], path: str) -> None:
        for name in names:
            try:
                self.path(name)
            except OutsideFolder as error:
                raise OutsideFolder(
                    f"{path} is damaged or forged: {error}. Use another copy."
                ) from None

    def is_ending(self) -> bool:
        """Return whether a run has ended but is not settled."""
        return self.disk.exists(self._next_path)

    def under_way(self) -> dict[str, CopiedFile] | None:
        """Return what an interrupted run had copied; None without one."""
        if not self.disk.exists(self._mark_path):
            return None
        found = read_checked(self.disk, self._mark_path)
        with suppress(*ODD_VALUES):
            files = _files_of(found["files"])
            self._check(files, self._mark_path)
            return files
        return {}

    def path(self, name: str) -> str:
        """Return the path of a file of the copy. Raise OutsideFolder."""
        folder, names = self.root, name.split("/")
        if self._log_dir and names[0] == LOG_DIRECTORY:
            folder, names = self._log_dir, names[1:]
        path = below(folder, *names)
        directory, _, last = path.rpartition("/")
        if directory not in self._checked:
            below(folder, *names[:-1], real_path=self._real_path)
            self._checked.add(directory)
        return below(directory, last, real_path=self._real_path)

    def aside(self, name: str) -> str:
        """Return the path that holds a replacement until the end of the run.

        Raise OutsideFolder, also where a link leads out of the copy: its target would be moved into
        it.
        """
        path = below(self._aside, *name.split("/"))
        if self._real_path is not None:
            names = path.removeprefix(f"{self.root}/").split("/")
            below(self.root, *names, real_path=self._real_path)
        return path

    # -- a run

    def begin(self, copied: dict[str, CopiedFile]) -> None:
        """Mark the copy as unfinished. Raise StoreError."""
        self.note(copied)
        try:
            self.disk.remove_tree(self._aside)
        except OSError as error:
            raise store_error(f"cannot use {self.root}", error) from error

    def note(self, copied: dict[str, CopiedFile]) -> None:
        """Record what has been copied and synced. Raise StoreError."""
        try:
            self.sync_names()
        except OSError as error:
            raise store_error(f"cannot write to {self.root}", error) from error
        write_checked(self.disk, self._mark_path, {"files": copied})

    def will_change(self, path: str) -> None:
        """Announce a change in the directory of `path`, and create the directory. Raise OSError."""
        directory = path.rpartition("/")[0]
        if directory not in self._changed:
            self.disk.make_dirs(directory)
            self._changed.add(directory)

    def sync_names(self) -> None:
        """Bring the changed names to disk. Raise OSError."""
        for directory in sorted(self._changed):
            if self.disk.is_dir(directory):
                self.disk.sync_directory(directory)
        self._changed.clear()

    def finish(self, record: BackupRecord) -> None:
        """Record that the run has ended, with all files on disk. Raise StoreError."""
        try:
            self.sync_names()
        except OSError as error:
            raise store_error(f"cannot write to {self.root}", error) from error
        write_checked(self.disk, self._next_path, asdict(record))
        self.settle()

    def settle(self) -> None:
        """Complete the remaining steps of a run that has ended. Raise StoreError."""
        record = self._record(self._next_path)
        if record is None:
            return
        before = self.done()
        known = {*(before.files if before else ()), *(self.under_way() or ())}
        asides = {name: self.aside(name) for name in record.files}
        try:
            for name, aside in asides.items():
                if self.disk.exists(aside):
                    self.will_change(self.path(name))
                    self.disk.rename(aside, self.path(name))
            self.remove(known - record.files.keys())
            self.sync_names()
            create_abort(StoreConfig(root=self.root), self.disk)
            self.disk.rename(self._next_path, self._done_path)
            self.disk.sync_directory(f"{self.root}/{_DIRECTORY}")
            self.unmark()
            self.disk.remove_tree(self._aside)
        except OSError as error:
            raise store_error(f"cannot finish the copy {self.root}", error) from error

    def remove(self, names: Iterable[str]) -> None:
        """Delete files that left the copy, and directories left empty. Raise OSError."""
        for name in sorted(names):
            path = self.path(name)
            if self.disk.exists(path):
                self.disk.unlink(path)
            directory = path.rpartition("/")[0]
            if "/consumequeue" in directory and not self.disk.listdir(directory):
                self.disk.remove_tree(directory)

    def hand_over(self) -> None:
        """Allow starts on a store that was restored completely. Raise OSError."""
        self.unmark()
        self.disk.unlink(self._lock_path)

    def unmark(self) -> None:
        """Remove the mark of an unfinished copy. Raise OSError."""
        if self.disk.exists(self._mark_path):
            self.disk.unlink(self._mark_path)
            self.disk.sync_directory(f"{self.root}/{_DIRECTORY}")


def require_done(folder: BackupFolder) -> BackupRecord:
    """Return the last completed run. Raise StoreError without one."""
    folder.settle()
    record = folder.done()
    if record is not None:
        return record
    if folder.under_way() is not None:
        raise StoreError(
            f"the copy {folder.root} is not finished: run `troupemq store backup` again."
        )
    raise StoreError(f"{folder.root} is not a copy made by `troupemq store backup`.")


def _files_of(found: dict[str, Any]) -> dict[str, CopiedFile]:
    return {str(name): CopiedFile(*map(int, values)) for name, values in found.items()}


def _record_of(found: Any) -> BackupRecord | None:
    try:
        return BackupRecord(
            str(found["source"]),
            int(found["taken_ms"]),
            int(found["log_start"]),
            int(found["log_end"]),
            _files_of(found["files"]),
        )
    except ODD_VALUES:
        return None
