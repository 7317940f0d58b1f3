"""Report what deleting log files before a given time would remove, and what of it no archive has.

    argument           meaning                                              default
    store              storePathRootDir                                     required
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   end of a live broker's log                           end of the log
    before             time, ISO 8601 (UTC) or ms: a file is deletable if   72 hours ago, as
                       its last message is older                            fileReservedTime has it
    archive            directory of the archive job                         no archive
    now_ms             start of the 72 hours, ms since 1970                 the clock's

The job deletes nothing. Like a broker, it counts whole files of the log from the oldest on, and
never the last one.

A message counts as archived by the rule of a broker with `retentionArchivePath`
(storage/retention/unarchived.py). The archive's newest manifest must have it or a later one of its
queue, and that one must be unchanged. Topics that the archive job leaves out (retry, half and
delayed messages) are listed apart; cleaning does not wait for them. `kept_files` are the old files
that such a broker keeps until the archive has their messages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any

from spark.arguments import OfStore, checked, time_ms
from spark.report import Report, moment, text_table
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDS_SPARK = False
RESERVED_MS = 72 * 3_600_000

_HEADINGS = {
    "topic": "topic",
    "messages": "deletable",
    "bytes": "bytes",
    "not_archived": "not archived",
    "note": "",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfStore):
    published_offset: int | None = None
    before: Any = None
    archive: str | None = None
    now_ms: int | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store, or a missing archive."""
    from pathlib import Path

    wanted = checked(Arguments, "retention", given)
    if wanted.archive is not None and not Path(wanted.archive).is_dir():
        raise StoreError(
            f"there is no archive at {wanted.archive}: name where the archive job writes"
        )
    return wanted


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Read units and the last message of each file. Raises StoreError."""
    from spark.analysis.retention import expiring, removed, unarchived

    wanted = check(given)
    now_ms = wanted.now_ms or time_ns() // 1_000_000
    before_ms = time_ms("before", wanted.before)
    if before_ms is None:
        before_ms = now_ms - RESERVED_MS
    files = expiring(wanted, before_ms)
    end = files[-1].end if files else 0
    missing = unarchived(wanted) if files else []
    topics = removed(wanted, end, missing) if files else []
    first = missing[0] if missing and missing[0].physical_offset < end else None
    kept = [file.path for file in files if first is not None and first.physical_offset < file.end]
    report: Report = {
        "output": None,
        "rows": sum(topic["messages"] for topic in topics),
        "bytes": 0,
        "before_ms": before_ms,
        "files": [file.path for file in files],
        "file_bytes": sum(file.size for file in files),
        "log_offset": end,
        "kept_files": kept if wanted.archive is not None else [],
        "first_not_archived": None if first is None else asdict(first),
        "topics": topics,
        "not_archived": sum(topic["not_archived"] for topic in topics if not topic["is_system"]),
    }
    report["text"] = "\n".join(_text(report))
    print(report["text"], flush=True)
    return report


def _text(report: Report) -> Iterator[str]:
    when = moment(report["before_ms"])
    if not report["files"]:
        yield f"No file of the log has only messages from before {when}."
        return
    yield (
        f"{len(report['files'])} files of the log ({report['file_bytes']:,} bytes, up to offset "
        f"{report['log_offset']}) have only messages from before {when}."
    )
    shown = [
        {**topic, "note": "never archived by default" if topic["is_system"] else ""}
        for topic in report["topics"]
    ]
    yield from text_table(shown, _HEADINGS)
    if report["not_archived"]:
        yield f"{report['not_archived']:,} messages would be lost: no archive has them."
        if report["kept_files"]:
            first = report["first_not_archived"]
            yield (
                f"A broker with retentionArchivePath keeps {len(report['kept_files'])} of these "
                f"files: from message {first['queue_offset']} in queue {first['queue_id']} of "
                f"{first['topic']} on, unless its disk is full."
            )
    else:
        yield "All messages that the archive job keeps are archived."
