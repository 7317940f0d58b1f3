"""Retention of log files until they are archived, for the setting retentionArchivePath.

A missing or unreadable archive retains everything. Without changes, calls are cheap. The queues are
read again only when the archive has a new manifest, or the log a new file.
"""

from collections.abc import Iterator

from storage.config import StoreConfig
from storage.errors import StoreError, os_sentence
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFile
from storage.retention.archive_manifest import ArchiveEnds, Ends
from storage.retention.cleaning import RetentionHold
from storage.retention.unarchived import StoreOnDisk, Unarchived


class ArchivePolicy:
    """Archive policy of one store. One thread at a time."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._config, self._disk = config, disk
        self._archive = ArchiveEnds(disk, config.retention_archive_dir)
        self._ends: Ends | None = None
        self._log_files = (-1, -1)
        self._looked_up_to = -1
        self._missing: list[Unarchived] = []

    def hold(self, first: MappedFile, last: MappedFile, needed_from: int) -> RetentionHold | None:
        """Return the hold of the archive on the log; None without one or with the policy off.

        `first` and `last` are the outer files of the log. All queue units before `needed_from` are
        in files.
        """
        name = self._archive.directory
        if not name:
            return None
        try:
            ends = self._archive.read()
            self._look(ends, first, last, needed_from)
        except StoreError as error:
            self._ends = None
            return RetentionHold(0, str(error), is_lease=False)
        except OSError as error:
            self._ends = None
            return RetentionHold(
                0, f"the queues cannot be read: {os_sentence(error)}", is_lease=False
            )
        if not self._missing:
            return None
        each = self._missing[0]
        return RetentionHold(
            each.physical_offset,
            f"the archive {name} has no message {each.queue_offset} in queue {each.queue_id} of "
            f"{each.topic}",
            is_lease=False,
        )

    def lost_with(self, file: MappedFile) -> Iterator[tuple[Unarchived, int]]:
        """Yield the queues that lose unarchived messages with a deleted file, and their counts.

        Only known losses are reported. Raises OSError.
        """
        for each in self._missing:
            if each.physical_offset >= file.end_offset:
                break
            count = self._store().count_between(each, file.first_offset, file.end_offset)
            if count:
                yield each, count

    def _look(self, ends: Ends, first: MappedFile, last: MappedFile, needed_from: int) -> None:
        log_files = (first.first_offset, last.first_offset)
        # Later messages are in the last file or behind it, which is never deleted.
        if (
            ends is self._ends
            and log_files == self._log_files
            and self._looked_up_to >= min(needed_from, last.first_offset)
        ):
            return
        self._missing = self._store().first_unarchived(ends)
        self._ends, self._log_files, self._looked_up_to = ends, log_files, needed_from

    def _store(self) -> StoreOnDisk:
        config = self._config
        return StoreOnDisk(self._disk, config.consume_queue_dir, [config.commit_log_dir])
