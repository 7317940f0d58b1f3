"""What deleting log files of before a time would remove, and what of it no archive has.

    argument           meaning                                              default
    store              storePathRootDir                                     must be given
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   where a live broker's log ends                       all there is
    before             ISO 8601 (UTC) or ms: files whose last message is    72 hours ago, as
                       older would go                                       fileReservedTime has it
    archive            directory of the archive job                         none
    now_ms             the time that 72 hours are counted from              the clock's

Nothing is deleted here. A broker deletes whole files of the log, from the oldest on, and never the
last one: so does this count. A message counts as archived when the archive's newest manifest has it
or a later one of its queue. Topics that the archive job leaves out (retries, half and due messages)
are told apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any

from spark.arguments import check_store, read_arguments
from spark.jobs import Report
from spark.report import moment, text_table
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDS_SPARK = False
RESERVED_MS = 72 * 3_600_000

_HEADINGS = {
    "topic": "topic",
    "messages": "would go",
    "bytes": "bytes",
    "not_archived": "not archived",
    "note": "",
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The table is above."""

    store: str
    commit_log: str | None = None
    published_offset: int | None = None
    before: Any = None
    archive: str | None = None
    now_ms: int | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Refuses what is no store, and an archive that is not there."""
    from pathlib import Path

    wanted = read_arguments(Arguments, "retention", given)
    check_store(wanted.store, wanted.commit_log)
    if wanted.archive is not None and not Path(wanted.archive).is_dir():
        raise StoreError(
            f"there is no archive at {wanted.archive}: name where the archive job writes"
        )
    return wanted


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Looks at units and at the last message of each file. Raises StoreError."""
    from spark.retention import expiring, removed
    from spark.scan import time_ms

    wanted = check(given)
    now_ms = wanted.now_ms or time_ns() // 1_000_000
    before_ms = time_ms("before", wanted.before)
    if before_ms is None:
        before_ms = now_ms - RESERVED_MS
    files = expiring(wanted, before_ms)
    end = files[-1].end if files else 0
    topics = removed(wanted, end) if files else []
    report: Report = {
        "output": None,
        "rows": sum(topic["messages"] for topic in topics),
        "bytes": 0,
        "before_ms": before_ms,
        "files": [file.path for file in files],
        "file_bytes": sum(file.size for file in files),
        "log_offset": end,
        "topics": topics,
        "not_archived": sum(topic["not_archived"] for topic in topics if not topic["is_system"]),
    }
    report["text"] = "\n".join(_text(report))
    print(report["text"], flush=True)
    return report


def _text(report: Report) -> Iterator[str]:
    when = moment(report["before_ms"])
    if not report["files"]:
        yield f"No file of the log has only messages of before {when}."
        return
    yield (
        f"{len(report['files'])} files of the log ({report['file_bytes']:,} bytes, up to offset "
        f"{report['log_offset']}) have only messages of before {when}."
    )
    shown = [
        {**topic, "note": "never archived by default" if topic["is_system"] else ""}
        for topic in report["topics"]
    ]
    yield from text_table(shown, _HEADINGS)
    if report["not_archived"]:
        yield f"{report['not_archived']:,} messages would be lost: no archive has them."
    else:
        yield "Nothing would be lost that the archive job keeps."
