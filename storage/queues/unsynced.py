"""Changes of derived files that are not on disk yet, for whoever may block to sync them.

The owner of the files hands it out, any thread syncs it (only system calls, on descriptors of its
own), and the owner is told when that has worked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from storage.errors import SyncFailed
from storage.files.disk import Disk
from storage.queues.stored_units import StoredUnits


@dataclass(slots=True)
class Unsynced:
    """Files with unsynced bytes, and directories with unsynced names."""

    paths: list[str] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)


class UnsyncedQueues:
    """What one sync of the queues concerns; `files` is for the thread that does it."""

    def __init__(self, store_timestamp: int | None, covered_offset: int = 0) -> None:
        self.files = Unsynced()
        self.queues: list[tuple[StoredUnits, int]] = []
        self.store_timestamp = store_timestamp
        """Set when everything up to this store timestamp is in `files`."""
        self.covered_offset = covered_offset
        """The units of all records of the log below are in `files`; 0 when that is not known."""
        self.names: list[tuple[str, int]] = []
        """The queues that have units, when everything is in `files`."""


def sync_files(disk: Disk, unsynced: Unsynced) -> None:
    """Brings files and names to disk. A file that was deleted meanwhile needs nothing.

    Raises SyncFailed when the disk refuses.
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
        raise SyncFailed(f"{path} could not be flushed ({error}): check the disk.") from error
    finally:
        file.close()


def sync_directories(disk: Disk, directories: Iterable[str]) -> None:
    """Brings the names in these directories to disk; those that are gone need nothing.

    Raises SyncFailed when the disk refuses.
    """
    for directory in sorted(directories):
        try:
            disk.sync_directory(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SyncFailed(f"{directory} could not be flushed ({error}).") from error
