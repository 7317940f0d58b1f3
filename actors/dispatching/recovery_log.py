"""Log lines of a store's start: one for the store, one for each finding."""

from collections import Counter
from collections.abc import Iterable

from actors.engine.server_log import get_logger
from storage.config import StoreConfig
from storage.errors import Finding
from storage.recovery.recovery import RecoveryReport
from storage.retention.reserve import Reserve, in_words, little_room

log = get_logger(__name__)

LINES_MAX = 20
"""Maximum lines for each part of a store; `troupemq store check` prints all findings."""


def log_recovery(report: RecoveryReport) -> None:
    """Log how the store was opened, with a warning after a crash."""
    if report.clean:
        log.info("store opened", end=report.end_offset, read_from=report.scanned_from)
    else:
        log.warning(
            "store recovered",
            end=report.end_offset,
            end_reason=report.end_reason,
            read_from=report.scanned_from,
            zeroed_bytes=report.zeroed_bytes,
            removed_files=report.removed_files,
            redispatched=report.dispatched_count,
        )
    log_findings(report.all_findings())


def log_reserve(config: StoreConfig, reserve: Reserve) -> None:
    """Log the disk space that the store needs, with a warning if it is not free."""
    if reserve.fits:
        log.info("disk space reserved", reserved=in_words(reserve.total_bytes), free=_free(reserve))
    else:
        log.warning("disk space low", found=little_room(config, reserve))


def _free(reserve: Reserve) -> str:
    return "unknown" if reserve.free_bytes is None else in_words(reserve.free_bytes)


def log_findings(findings: Iterable[Finding]) -> None:
    """Log one line for each finding; past LINES_MAX of a part, only their number."""
    counts: Counter[str] = Counter()
    for part, found, is_wrong in findings:
        counts[part] += 1
        if counts[part] <= LINES_MAX:
            (log.warning if is_wrong else log.info)(
                "store finding reported", part=part, found=found
            )
    for part, count in counts.items():
        if count > LINES_MAX:
            more = f"{count - LINES_MAX} more: run troupemq store check"
            log.warning("store finding reported", part=part, found=more)
