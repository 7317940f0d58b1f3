"""Choice of log files to delete, and disk usage limits for new messages.

This module only decides; it never deletes or waits. A file expires when its last write is older
than fileReservedTime and one of these holds: it is the hour of deleteWhen, the disk exceeds
diskMaxUsedSpaceRatio, or an operator has requested it. Beyond diskSpaceCleanForciblyRatio, files
expire at any age. The oldest file is always first; the file with the log's end is never deleted.

A retention hold (TroupeMQ extension) keeps a file from expiring by age. Beyond
diskSpaceCleanForciblyRatio, holds are ignored. On an operator's request, only leases are ignored,
not an archive.

Source: store/DefaultMessageStore.java (CleanCommitLogService), UtilAll.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil

from storage.clock import Clock
from storage.config import StoreConfig
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFile

FILES_PER_ROUND_MAX = 10
ROUNDS_ON_REQUEST = 20
"""Rounds that delete at any hour after a request (DELETE_EXPIRED_COMMITLOG)."""
UNKNOWN_RATIO = -1.0
_HOUR_MS = 3_600_000


def used_ratio(disk: Disk, path: str) -> float:
    """Return the used part of the file system that holds `path`, rounded up to whole hundredths.

    4.9.7 computes and shows it in the same way. UNKNOWN_RATIO means that the disk gives no answer.
    """
    try:
        ratio = disk.usage_ratio(path)
    except OSError:
        return UNKNOWN_RATIO
    return ceil(round(ratio * 100, 6)) / 100


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk usage, 0 to 1, and its consequences; UNKNOWN_RATIO for a missing directory."""

    log: float
    queues: float
    index: float
    most: float
    """Usage of the fuller disk, which decides about the consequences."""
    wants_room: bool
    """Usage beyond diskMaxUsedSpaceRatio: old files are deleted at any hour."""
    wants_room_at_once: bool
    """Usage beyond diskSpaceCleanForciblyRatio: files are deleted at any age."""
    is_full: bool
    """Usage beyond diskSpaceWarningLevelRatio: sends are rejected."""

    def __str__(self) -> str:
        """Return the text of 4.9.7 for a client with a rejected message."""
        return f"CL: {self.log:5.2f} CQ: {self.queues:5.2f} INDEX: {self.index:5.2f}"


def disk_use(config: StoreConfig, disk: Disk) -> DiskUse:
    """Return the usage of the disks of log and store root; unknown usage never counts as full."""
    log, rest = used_ratio(disk, config.commit_log_dir), used_ratio(disk, config.root)
    most = max(log, rest)
    return DiskUse(
        log,
        rest if disk.is_dir(config.consume_queue_dir) else UNKNOWN_RATIO,
        rest if disk.is_dir(config.index_dir) else UNKNOWN_RATIO,
        most,
        wants_room=most > config.disk_max_used_percent / 100,
        wants_room_at_once=most > config.disk_clean_forcibly_ratio,
        is_full=most > config.disk_warning_ratio,
    )


@dataclass(frozen=True, slots=True)
class RetentionHold:
    """Claim that retains the commit log from an offset."""

    offset: int
    who: str
    """Name of the lease or archive, for log lines."""
    is_lease: bool = True


@dataclass(frozen=True, slots=True)
class Expired:
    file: MappedFile
    reason: str
    """Reason to delete it, for log lines."""
    losers: tuple[RetentionHold, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Files to delete in one round, and the first file that a hold retains."""

    expired: Sequence[Expired]
    kept_file: MappedFile | None = None
    """Expired file that is retained."""
    kept_for: tuple[RetentionHold, ...] = ()


class Cleaning:
    """Decisions of one store; counts the rounds left of an operator's request."""

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self._config, self._disk, self._clock = config, disk, clock
        self._rounds_on_request = 0

    def request(self) -> None:
        """Delete old files at any hour in the next ROUNDS_ON_REQUEST rounds."""
        self._rounds_on_request = ROUNDS_ON_REQUEST

    def decide(
        self,
        files: Sequence[MappedFile],
        needed_from: int,
        held: Callable[[], Sequence[RetentionHold]] = lambda: (),
    ) -> Decision:
        """Decide one round: files to delete, oldest first, at most FILES_PER_ROUND_MAX.

        `needed_from` is the first offset that must stay in any case; the last file always stays.
        `held` is called once, if any file could be deleted. Raises OSError when a file's age is
        unavailable.
        """
        use = disk_use(self._config, self._disk)
        reason = self._reason(use)
        is_requested = self._rounds_on_request > 0
        if is_requested:
            self._rounds_on_request -= 1
        if reason is None:
            return Decision(())
        at_once = use.wants_room_at_once and self._config.clean_file_forcibly_enable
        kept_ms = self._config.file_reserved_hours * _HOUR_MS
        holds: Sequence[RetentionHold] | None = None
        found: list[Expired] = []
        for file in files[:-1]:
            if file.end_offset > needed_from or len(found) == FILES_PER_ROUND_MAX:
                break
            is_old = self._clock.now_ms() >= self._disk.modified_ms(file.path) + kept_ms
            if not is_old and not at_once:
                break
            holds = held() if holds is None else holds
            needing = tuple(hold for hold in holds if hold.offset < file.end_offset)
            if is_old and not needing:
                found.append(Expired(file, reason))
            elif at_once:
                found.append(Expired(file, "the disk is full", needing))
            elif is_requested and all(hold.is_lease for hold in needing):
                found.append(Expired(file, "old, on request", needing))
            else:
                return Decision(found, file, needing)
        return Decision(found)

    def _reason(self, use: DiskUse) -> str | None:
        """Return why old files may be deleted now, or None."""
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).hour
        if hour in self._config.delete_hours:
            return "old at deleteWhen"
        if use.wants_room or use.wants_room_at_once:
            return "old and the disk fills up"
        return "old, on request" if self._rounds_on_request else None
