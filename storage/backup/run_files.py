"""The files of a backup run: what the copy has of each, and what it lacks.

A file that only grows is extended in place. A file that is small, or that changes anywhere, is
copied whole and put aside until the run ends. So is a growing file that was replaced since the last
run.
"""

from collections.abc import Callable, Iterable
from contextlib import closing, suppress

from storage.backup.copying import FileCopier, Pace, Share
from storage.backup.record import ALSO, LOG_DIRECTORY, BackupFolder, BackupRecord, CopiedFile
from storage.clock import Clock
from storage.config import StoreConfig
from storage.files.disk import Disk

_NOTE_BYTES = 256 << 20
"""Bytes, besides one log file, that an interrupted run copies twice at most."""
_NOTE_FILES = 2000
_SURE_MS = 2000
"""Age after which a later write is sure to change a file's modification time."""
_READS_MAX = 10
"""Reads of small files until two in a row agree."""


class RunFiles:
    """The files of one run by name in the copy. One owner; raises OSError, StoreError."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        folder: BackupFolder,
        clock: Clock,
        pace: Pace,
        share: Share | None,
    ) -> None:
        self._config, self._disk, self._folder, self._clock = config, disk, folder, clock
        self.copier = FileCopier(disk, folder, pace)
        self._share = share
        self.found: dict[str, CopiedFile] = {}
        """Content of the copy at the end of the run."""
        self.known: dict[str, CopiedFile] = {}
        """Content of the folder at the start of the run."""
        self._in_place: dict[str, CopiedFile] = {}
        """Files in place, copied by this run or by an interrupted one."""
        self._kept: frozenset[str] = frozenset()
        """Files that the last completed run needs unchanged, as far as its record says."""
        self._noted = (0, 0)
        self.shared_bytes = 0

    def begin(self, before: BackupRecord | None, interrupted: dict[str, CopiedFile]) -> None:
        """Mark the copy as unfinished."""
        known = before.files if before is not None else {}
        self._kept = frozenset(known)
        self.known = {**known, **interrupted}
        self._in_place = dict(interrupted)
        self._folder.begin(self._in_place)

    def source(self, name: str) -> str:
        """Return the path of a file in the store."""
        if name.startswith(f"{LOG_DIRECTORY}/"):
            return f"{self._config.commit_log_dir}/{name.removeprefix(f'{LOG_DIRECTORY}/')}"
        return f"{self._config.root}/{name}"

    def share(self, name: str) -> bool:
        """Try to share a constant file without space of its own; return whether that worked."""
        if self._share is None or name in self.known:
            return False
        source, target = self.source(name), self._folder.path(name)
        size, modified_ms = self._size(source), self._modified_ms(source)
        self._folder.will_change(target)
        if self._folder.disk.exists(target):
            self._folder.disk.unlink(target)
        if not self._share(source, target):
            self._share = None
            return False
        self.shared_bytes += size
        self._took(name, CopiedFile(size, size, modified_ms))
        return True

    def go_on(self, name: str, end: int | None = None, *, again_from: int | None = None) -> None:
        """Copy what the copy lacks of a file that only grows, up to `end`.

        What is there from `again_from` on is copied again.
        """
        source, target = self.source(name), self._folder.path(name)
        modified_ms, size = self._modified_ms(source), self._size(source)
        known = self.found.get(name) or self.known.get(name)
        if known is not None and known.size == size:
            has_all = end is None or end <= known.through
            if again_from is None and has_all and 0 <= modified_ms == known.modified_ms:
                self.found[name] = known
                return
            if self.copier.is_alike(source, target, known.through):
                start = known.through if again_from is None else again_from
                through = self.copier.add(source, target, start, size if end is None else end)
                through = max(known.through, through) if end is None else end
                self._took(name, CopiedFile(size, through, modified_ms))
                return
        is_kept = name in self._kept
        through = self.copier.copy(source, self._folder.aside(name) if is_kept else target, end)
        copied = CopiedFile(size, through if end is None else end, modified_ms)
        if is_kept:
            self.found[name] = copied
        else:
            self._took(name, copied)

    def _took(self, name: str, copied: CopiedFile) -> None:
        """Note a file in place; at times, save the notes for a run after an interruption."""
        self.found[name] = self._in_place[name] = copied
        count, copied_bytes = self._noted
        if (
            len(self._in_place) >= count + _NOTE_FILES
            or self.copier.copied_bytes >= copied_bytes + _NOTE_BYTES
        ):
            self.note()

    def note(self) -> None:
        """Save the list of files in place for the next run."""
        self._folder.note(self._in_place)
        self._noted = len(self._in_place), self.copier.copied_bytes

    def copy_small(self, names: Iterable[str]) -> None:
        """Copy files that are replaced or written as a whole, all at one moment."""
        wanted = list(names)
        found = self._read_all(wanted)
        for _ in range(_READS_MAX):
            again = self._read_all(wanted)
            if again == found:
                break
            found = again
        for name, data in found.items():
            self.put_aside(name, data)

    def copy_with(self, names: Iterable[str], others: Callable[[], Iterable[str]]) -> None:
        """Copy small files, and others that were there while the first ones did not change."""
        wanted = list(names)
        for _ in range(_READS_MAX):
            found, more = self._read_all(wanted), self._read_all(others())
            if found == self._read_all(wanted):
                break
        for name, data in {**found, **more}.items():
            self.put_aside(name, data)

    def _read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = self._disk.read_bytes(self.source(name))
        return found

    def put_aside(self, name: str, data: bytes) -> None:
        """Put aside a small file for the end of the run; one from outside the store is private."""
        path = self._folder.aside(name)
        self._folder.will_change(path)
        with closing(self._folder.disk.open(path, create=True)) as file:
            if name.startswith(f"{ALSO}/"):
                self._folder.disk.make_private(path)
            file.set_size(0)
            file.pwrite(data, 0)
            file.sync()
        self.found[name] = CopiedFile(len(data), len(data), -1)
        self.copier.copied_bytes += len(data)

    def copy_aside(self, directory: str) -> None:
        """Put aside files that are written at any position."""
        for each in self._disk.listdir(f"{self._config.root}/{directory}"):
            name = f"{directory}/{each}"
            with suppress(FileNotFoundError):
                through = self.copier.copy(self.source(name), self._folder.aside(name))
                size = self._size(self.source(name))
                self.found[name] = CopiedFile(size, through, -1)

    def _size(self, path: str) -> int:
        with closing(self._disk.open(path, read_only=True)) as file:
            return file.size()

    def _modified_ms(self, path: str) -> int:
        found = self._disk.modified_ms(path)
        return found if found + _SURE_MS < self._clock.now_ms() else -1
