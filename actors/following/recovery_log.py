"""What a start found, in one line of the log."""

from structlog import get_logger

from storage.recovery import RecoveryReport

log = get_logger(__name__)


def log_recovery(report: RecoveryReport) -> None:
    """One line; a warning when the store was not left as a clean stop leaves it."""
    doubtful = (
        not report.clean
        or report.zeroed_bytes
        or report.rebuilt
        or report.dispatched_count
        or report.gaps
    )
    if not doubtful:
        log.info("store opened", end=report.end_offset)
        return
    log.warning(
        "store recovered",
        clean=report.clean,
        end=report.end_offset,
        end_reason=report.end_reason,
        zeroed_bytes=report.zeroed_bytes,
        removed_files=report.removed_files,
        redispatched=report.dispatched_count,
        damaged=[f"{start} to {end}: {reason}" for start, end, reason in report.gaps],
        rebuilt=report.rebuilt,
    )
