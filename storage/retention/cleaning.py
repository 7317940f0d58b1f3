"""The choice of log files that may go; whether the disk has room for more messages.

Decides only: nothing here deletes or waits. A file goes when it was last written to so long ago
as fileReservedTime says, and one of these holds: it is the hour of deleteWhen, the disk is fuller
than diskMaxUsedSpaceRatio, an operator has asked. Past diskSpaceCleanForciblyRatio files go
whatever their age. Always the oldest first, and never the file that the log ends in.

What somebody holds (TroupeMQ's own) does not go by its age. Past diskSpaceCleanForciblyRatio it
goes all the same; when an operator has asked, only leases give way, not an archive.

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
"""How many rounds delete at any hour after an operator has asked (DELETE_EXPIRED_COMMITLOG)."""
UNKNOWN_RATIO = -1.0
_HOUR_MS = 3_600_000


def used_ratio(disk: Disk, path: str) -> float:
    """Used part of the file system that holds `path`, rounded up to whole hundredths.

    As 4.9.7 counts and shows it; UNKNOWN_RATIO where the disk does not say.
    """
    try:
        ratio = disk.usage_ratio(path)
    except OSError:
        return UNKNOWN_RATIO
    return ceil(round(ratio * 100, 6)) / 100


@dataclass(frozen=True, slots=True)
class DiskUse:
    """How full the disks are, 0 to 1, and what follows; UNKNOWN_RATIO where no folder is."""

    log: float
    queues: float
    index: float
    wants_room: bool
    """Past diskMaxUsedSpaceRatio: files that are old enough go at any hour."""
    wants_room_at_once: bool
    """Past diskSpaceCleanForciblyRatio: files go whatever their age."""
    is_full: bool
    """Past diskSpaceWarningLevelRatio: no more messages are taken."""

    def __str__(self) -> str:
        """As 4.9.7 says it to a client whose message it refuses."""
        return f"CL: {self.log:5.2f} CQ: {self.queues:5.2f} INDEX: {self.index:5.2f}"


def disk_use(config: StoreConfig, disk: Disk) -> DiskUse:
    """Asks the disks of the log and of the store's root. What is not known never counts as full."""
    log, rest = used_ratio(disk, config.commit_log_dir), used_ratio(disk, config.root)
    most = max(log, rest)
    return DiskUse(
        log,
        rest if disk.is_dir(config.consume_queue_dir) else UNKNOWN_RATIO,
        rest if disk.is_dir(config.index_dir) else UNKNOWN_RATIO,
        wants_room=most > config.disk_max_used_percent / 100,
        wants_room_at_once=most > config.disk_clean_forcibly_ratio,
        is_full=most > config.disk_warning_ratio,
    )


@dataclass(frozen=True, slots=True)
class RetentionHold:
    """Somebody needs the log from an offset on."""

    offset: int
    who: str
    """For log lines: the lease, or the archive."""
    is_lease: bool = True


@dataclass(frozen=True, slots=True)
class Expired:
    """A file that may go."""

    file: MappedFile
    reason: str
    """`old at deleteWhen`, `old and the disk fills up`, `old, on request`, `the disk is full`."""
    losers: tuple[RetentionHold, ...] = ()
    """Who needs it, and has to do without."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one round deletes, and what it would but for those who hold it."""

    expired: Sequence[Expired]
    kept_file: MappedFile | None = None
    """Old enough, and held."""
    kept_for: tuple[RetentionHold, ...] = ()


class Cleaning:
    """The decisions of one store; counts the rounds that an operator has asked for."""

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self._config, self._disk, self._clock = config, disk, clock
        self._rounds_on_request = 0

    def request(self) -> None:
        """An operator wants old files to go now: in the next ROUNDS_ON_REQUEST rounds."""
        self._rounds_on_request = ROUNDS_ON_REQUEST

    def decide(
        self,
        files: Sequence[MappedFile],
        needed_from: int,
        held: Callable[[], Sequence[RetentionHold]] = lambda: (),
    ) -> Decision:
        """One round: the files that may go now, the oldest first, at most FILES_PER_ROUND_MAX.

        `needed_from` is the first offset that must stay, whatever is asked; the last file stays
        anyway. `held` is asked once, when there is a file that may go. Raises OSError when the disk
        does not tell a file's age.
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
        """Why files that are old enough may go now; None when they may not."""
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).hour
        if hour in self._config.delete_hours:
            return "old at deleteWhen"
        if use.wants_room or use.wants_room_at_once:
            return "old and the disk fills up"
        return "old, on request" if self._rounds_on_request else None
