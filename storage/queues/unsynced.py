"""Unsynced changes of derived files, for a component that may block.

The owner of the files creates the list. Any thread may sync it, by system calls on its own
descriptors. The owner is informed of the success.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from errno import EMFILE, ENFILE

from storage.errors import SyncFailed
from storage.files.disk import Disk
from storage.queues.stored_units import StoredUnits


@dataclass(slots=True)
class Unsynced:
    """Files with unsynced bytes, and directories with unsynced names."""

    paths: list[str] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)


class UnsyncedQueues:
    """Queues and files of one sync; the syncing thread uses only `files`."""

    def __init__(self, store_timestamp: int | None, covered_offset: int = 0) -> None:
        self.files = Unsynced()
        self.queues: list[tuple[StoredUnits, int]] = []
        self.store_timestamp = store_timestamp
        """Store timestamp in ms up to which `files` has every unit, or None."""
        self.covered_offset = covered_offset
        """Log offset below which `files` has every unit; 0 if unknown."""
        self.names: list[tuple[str, int]] = []
        """Queues with units, if `files` is complete."""


def sync_files(disk: Disk, unsynced: Unsynced) -> None:
    """Sync files and directories; deleted files are skipped.

    Raises SyncFailed when the disk fails, OSError when a file cannot be opened.
    """
    for path in unsynced.paths:
        _sync(disk, path)
    sync_directories(disk, unsynced.directories)


def _sync(disk: Disk, path: str) -> None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    except OSError as error:
        raise SyncFailed(f"cannot sync {path} ({error}): check the disk.") from error
    finally:
        file.close()


def sync_directories(disk: Disk, directories: Iterable[str]) -> None:
    """Sync the names in `directories`; deleted directories are skipped.

    Raises SyncFailed when the disk fails, OSError when a directory cannot be opened.
    """
    for directory in sorted(directories):
        try:
            disk.sync_directory(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (EMFILE, ENFILE):
                raise  # at the open: nothing was synced
            raise SyncFailed(f"cannot sync {directory} ({error}): check the disk.") from error
