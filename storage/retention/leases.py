"""Leases of readers of a store directory: files that keep the log from an offset on.

    <storePathRootDir>/troupemq/leases/<id>.json     {"job": …, "offset": …}, padded with blanks
    <storePathRootDir>/troupemq/leases/.<id>         the same while it is being made

The directory is made by a broker of ours when it starts: where there is none, nobody would look. A
lease is held by a POSIX record lock on byte 0, which ends with its process, whatever ends that; and
no longer than LEASE_MS_MAX after it was last written. A file that nobody locks is a dead reader's,
and the broker removes it.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from storage.errors import os_sentence
from storage.files.below import OutsideFolder, below
from storage.files.checked_json import ODD_VALUES
from storage.files.disk import Disk, DiskFile
from storage.retention.unarchived import LogFilesOnDisk, QueueOnDisk

LEASES_MAX = 1000
"""Of one broker: each costs some system calls in every round of cleaning."""
LEASE_MS_MAX = 24 * 3_600_000
"""A job that hangs does not keep the log for ever."""
JOB_CHARS_MAX = 200
_FILE_BYTES = 1024
_SUFFIX = ".json"


def leases_dir(root: str) -> str:
    """Where the leases of a store's readers lie."""
    return f"{root}/troupemq/leases"


@dataclass(frozen=True, slots=True)
class Lease:
    """Who needs the log from an offset on."""

    id: str
    job: str
    offset: int
    until_ms: int
    """Its end, unless it is renewed; wall clock."""


class FileLease:
    """A lease of this process, until `release` or the end of the process."""

    def __init__(self, disk: Disk, path: str, file: DiskFile, job: str) -> None:
        """Made by `take`."""
        self._disk, self._path, self._file, self._job = disk, path, file, job

    @classmethod
    def acquire(
        cls, disk: Disk, root: str, lease_id: str, job: str, offset: int
    ) -> "FileLease | None":
        """None where no broker of ours has made the directory. Raises OSError if it cannot be had.

        `offset`: the first byte of the log that is needed.
        """
        directory = leases_dir(root)
        if not disk.is_dir(directory):
            return None
        if len(disk.listdir(directory)) >= LEASES_MAX:
            raise OSError(f"{directory} has {LEASES_MAX} leases already")
        new, path = below(directory, f".{lease_id}"), below(directory, f"{lease_id}{_SUFFIX}")
        file = disk.open(new, create=True)
        lease = cls(disk, path, file, job)
        try:
            if not file.lock_byte():
                raise OSError(f"{new} is locked by another process")
            lease.move(offset)
            disk.rename(new, path)
        except OSError:
            file.close()
            with suppress(OSError):
                disk.unlink(new)
            raise
        return lease

    def move(self, offset: int) -> None:
        """What lies before `offset` is not needed any more. Raises OSError."""
        text = json.dumps({"job": self._job[:JOB_CHARS_MAX], "offset": offset})
        self._file.pwrite(text.encode()[:_FILE_BYTES].ljust(_FILE_BYTES), 0)

    def release(self) -> None:
        """Ends it; once more does nothing."""
        with suppress(OSError):  # the broker removes what nobody locks
            self._disk.unlink(self._path)
        self._file.close()


class LeaseFiles:
    """What readers of a store have leased, as its broker sees it."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._directory = disk, leases_dir(root)
        self.trouble: str | None = None
        """Why some lease could not be looked at; it is not kept then."""

    def make(self) -> None:
        """Lets readers take leases from now on. Raises OSError."""
        self._disk.make_dirs(self._directory, durable=False)

    def read(self, now_ms: int) -> list[Lease]:
        """Those that are held; removes what dead readers have left."""
        self.trouble = None
        found = []
        for name in self._disk.listdir(self._directory)[:LEASES_MAX]:
            try:
                lease = self._read(name, now_ms)
            except FileNotFoundError:
                continue  # released meanwhile
            except OSError as error:
                self.trouble = os_sentence(error)
                continue
            if lease is not None:
                found.append(lease)
        return found

    def _read(self, name: str, now_ms: int) -> Lease | None:
        path = f"{self._directory}/{name}"
        try:
            below(self._directory, name, real_path=self._disk.real_path)
        except OutsideFolder:  # to close the store's own lock file would give the lock up
            self._disk.unlink(path)
            return None
        if name.startswith("."):
            if now_ms > self._disk.modified_ms(path) + LEASE_MS_MAX:
                self._disk.unlink(path)
            return None
        until_ms = self._disk.modified_ms(path) + LEASE_MS_MAX
        file = self._disk.open(path)
        try:
            if file.lock_byte():
                self._disk.unlink(path)
                return None
            text = file.pread(_FILE_BYTES, 0)
        finally:
            file.close()
        if now_ms >= until_ms:
            return None
        lease_id = name.removesuffix(_SUFFIX)
        try:
            content = json.loads(text)
            return Lease(lease_id, str(content["job"]), int(content["offset"]), until_ms)
        except (*ODD_VALUES, RecursionError):  # being written: everything is kept
            return Lease(lease_id, lease_id, 0, until_ms)


def lowest_offset(
    disk: Disk, queues_dir: str, queues: Mapping[tuple[str, int], int], end_offset: int
) -> int:
    """The first byte of the log that somebody needs who reads these queues from these offsets on.

    `end_offset`: no unit that is missing yet will point before it. Raises OSError, OutsideFolder.
    """
    lowest = end_offset
    for (topic, queue_id), queue_offset in queues.items():
        queue = QueueOnDisk(disk, below(queues_dir, topic, str(queue_id)))
        wanted = max(queue.first, queue_offset)
        if wanted < queue.end:
            unit = queue.unit(wanted)
            lowest = min(lowest, 0 if unit is None or unit[1] <= 0 else max(0, unit[0]))
    return lowest


def lowest_in_store(
    disk: Disk, root: str, log_dirs: list[str], queues: Mapping[tuple[str, int], int]
) -> int:
    """The same for a reader of the directory `root`, whose log lies in `log_dirs`."""
    log = LogFilesOnDisk(disk, log_dirs, None)
    return lowest_offset(disk, f"{root}/consumequeue", queues, log.last_file_offset)


def holder_text(job: str, process_id: int | None = None) -> str:
    """A job as its lease names it: with the process that holds it."""
    return f"{job} (process {process_id or os.getpid()} of {os.uname().nodename})"
