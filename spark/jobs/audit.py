"""Check a store for consistency and name each damaged record: log, consume queues, index, CRCs.

    argument           meaning                                                 default
    store              storePathRootDir                                        required
    commit_log         storePathCommitLog                                      <store>/commitlog
    published_offset   end of a live broker's log: never read beyond it        end of the log
    delay_levels       messageDelayLevel, if the broker has its own            RocketMQ's
    with_spark         whether to run the parts on Spark                       from 256 MiB of log

Every record is read: magic, lengths, its own offset, the CRC of its body. Every unit of every queue
is compared with its record, in both directions, and every index file with the keys of the records.
It does what `troupemq store check` does, on all cores or machines. It changes nothing and takes no
lock. Beside a writing broker, the newest part of the index may look unfinished.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from spark.arguments import OfShared, checked, pays
from spark.report import Report, text_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.analysis.audit import Audit

SHOWN_MAX = 20
"""Maximum lines of text for each part; --json has up to 1,000."""

NAMED_MAX = 10_000

_HEADINGS = {
    "topic": "topic",
    "queue_id": "queue",
    "queue_offset": "message",
    "physical_offset": "at byte",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfShared):
    delay_levels: str | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError if the store is missing."""
    wanted = checked(Arguments, "audit", given)
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Return whether the log is long enough for Spark."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Check the store in one pass. Raises StoreError if the directory cannot be read."""
    from spark.analysis.audit import Audit
    from storage.checking.store_layout import with_sizes_of_files
    from storage.config import StoreConfig
    from storage.files.disk import RealDisk

    wanted, begun_s = check(given), monotonic()
    config = StoreConfig(root=wanted.store, commit_log_dir=wanted.commit_log or "")
    if wanted.delay_levels is not None:
        config = replace(config, message_delay_level=wanted.delay_levels)
    config = with_sizes_of_files(RealDisk(), config)
    audit = Audit(RealDisk(), config, spark, wanted.published_offset)
    found = audit.run()
    counts = found.counts
    report: Report = {
        "output": None,
        "rows": counts.record_count,
        "bytes": 0,
        "clean": found.is_clean,
        "wrong": dict(found.wrong_counts),
        "findings": [each._asdict() for each in found.findings],
        "messages": [asdict(each) for each in audit.named[:NAMED_MAX]],
        "damaged_messages": len(audit.named),
        "log_bytes": counts.log_bytes,
        "units": counts.unit_count,
        "queues": found.queue_count,
        "index_files": found.index_file_count,
        "seconds": round(monotonic() - begun_s, 2),
    }
    report["text"] = "\n".join(_text(report, audit))
    print(report["text"], flush=True)
    return report


def _text(report: Report, audit: "Audit") -> Iterator[str]:
    yield (
        f"{report['rows']:,} records, {report['units']:,} units of {report['queues']} queues and "
        f"{report['index_files']} index files compared in {report['seconds']:.1f} s"
    )
    if report["messages"]:
        yield f"{report['damaged_messages']:,} damaged messages:"
        yield from text_table(report["messages"][:SHOWN_MAX], _HEADINGS)
        if report["damaged_messages"] > SHOWN_MAX:
            yield f"and {report['damaged_messages'] - SHOWN_MAX:,} more"
    shown: Counter[str] = Counter()
    for each in audit.report.findings:
        shown[each.part] += 1
        if shown[each.part] <= SHOWN_MAX:
            yield f"{each.part}: {each.text}"
    for part, count in report["wrong"].items():
        if count > SHOWN_MAX:
            yield f"{part}: {count:,} faults in total; --json lists the first 1,000"
    yield (
        "No faults found."
        if report["clean"]
        else "To repair queues and index, run troupemq store rebuild."
    )
