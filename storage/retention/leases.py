"""Leases of readers of a store directory: files that retain the log from an offset.

    <storePathRootDir>/troupemq/leases/<id>.json     {"job": …, "offset": …}, padded with blanks
    <storePathRootDir>/troupemq/leases/.<id>         lease under construction

A TroupeMQ broker creates the directory at its start; without the directory, no broker honors
leases. A POSIX record lock on byte 0 holds a lease and ends with its process in any case. A lease
lasts at most LEASE_MS_MAX after its last write. The broker removes unlocked files, because their
readers have ended.
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
"""Maximum leases of one broker; each takes a few system calls per round of cleaning."""
LEASE_MS_MAX = 24 * 3_600_000
"""Maximum age of a lease, so that a hanging job does not retain the log forever."""
JOB_CHARS_MAX = 200
_FILE_BYTES = 1024
_SUFFIX = ".json"


def leases_dir(root: str) -> str:
    return f"{root}/troupemq/leases"


@dataclass(frozen=True, slots=True)
class Lease:
    id: str
    job: str
    offset: int
    until_ms: int
    """Expiry if not renewed, wall clock in ms."""


class FileLease:
    """Lease of this process, until `release` or the end of the process."""

    def __init__(self, disk: Disk, path: str, file: DiskFile, job: str) -> None:
        self._disk, self._path, self._file, self._job = disk, path, file, job

    @classmethod
    def acquire(
        cls, disk: Disk, root: str, lease_id: str, job: str, offset: int
    ) -> "FileLease | None":
        """Acquire a lease on the log from byte `offset`.

        Return None if no TroupeMQ broker has created the directory. Raises OSError on failure.
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
        """Release the log before `offset`. Raises OSError."""
        text = json.dumps({"job": self._job[:JOB_CHARS_MAX], "offset": offset})
        self._file.pwrite(text.encode()[:_FILE_BYTES].ljust(_FILE_BYTES), 0)

    def release(self) -> None:
        """Release the lease; further calls do nothing."""
        with suppress(OSError):  # the broker removes unlocked files
            self._disk.unlink(self._path)
        self._file.close()


class LeaseFiles:
    """Leases of a store's readers, as the broker sees them."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._directory = disk, leases_dir(root)
        self.trouble: str | None = None
        """Fault of an unreadable lease, which then retains nothing."""

    def make(self) -> None:
        """Create the directory, so that readers can take leases. Raises OSError."""
        self._disk.make_dirs(self._directory, durable=False)

    def read(self, now_ms: int) -> list[Lease]:
        """Return the active leases; remove files of ended readers."""
        self.trouble = None
        found = []
        for name in self._disk.listdir(self._directory)[:LEASES_MAX]:
            try:
                lease = self._read(name, now_ms)
            except FileNotFoundError:
                continue  # just released
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
        except OutsideFolder:  # closing the store's own lock file would release its lock
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
        except (*ODD_VALUES, RecursionError):  # being written: retain everything
            return Lease(lease_id, lease_id, 0, until_ms)


def lowest_offset(
    disk: Disk, queues_dir: str, queues: Mapping[tuple[str, int], int], end_offset: int
) -> int:
    """Return the first log byte needed by a reader of these queues from these offsets.

    Missing units will not point before `end_offset`. Raises OSError, OutsideFolder.
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
    """Return the first log byte needed by a reader of directory `root`, with logs in `log_dirs`.

    Raises like `lowest_offset`.
    """
    log = LogFilesOnDisk(disk, log_dirs, None)
    return lowest_offset(disk, f"{root}/consumequeue", queues, log.last_file_offset)


def holder_text(job: str, process_id: int | None = None) -> str:
    """Return the job with the process and host that hold its lease."""
    return f"{job} (process {process_id or os.getpid()} of {os.uname().nodename})"
