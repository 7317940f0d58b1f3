"""Keeps log files until an archive has their messages: the setting retentionArchivePath.

An archive that is not there or cannot be read keeps everything. Cheap when nothing has changed: the
queues are looked at again when the archive has another manifest, or the log another file.
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
    """Of one store; any one thread."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._config, self._disk = config, disk
        self._archive = ArchiveEnds(disk, config.retention_archive_dir)
        self._ends: Ends | None = None
        self._log_files = (-1, -1)
        self._looked_up_to = -1
        self._missing: list[Unarchived] = []

    def hold(self, first: MappedFile, last: MappedFile, needed_from: int) -> RetentionHold | None:
        """From where on the log must stay; None if that is nowhere, or the policy is off.

        `first` and `last` files of the log. Before `needed_from` all queue units are on the disk.
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
        """What goes with a file that is deleted all the same: queues, and how many messages.

        As far as that is known; raises OSError.
        """
        for each in self._missing:
            if each.physical_offset >= file.end_offset:
                break
            count = self._store().count_between(each, file.first_offset, file.end_offset)
            if count:
                yield each, count

    def _look(self, ends: Ends, first: MappedFile, last: MappedFile, needed_from: int) -> None:
        log_files = (first.first_offset, last.first_offset)
        # What comes later lies in the last file or behind it, which is never deleted.
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
