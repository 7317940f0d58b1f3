"""Checks a store against itself, each wrong record by its name: log, consume queues, index, CRCs.

    argument           meaning                                                 default
    store              storePathRootDir                                        must be given
    commit_log         storePathCommitLog                                      <store>/commitlog
    published_offset   where a live broker's log ends: never look past it      all there is
    delay_levels       messageDelayLevel, if the broker has its own            RocketMQ's
    with_spark         whether Spark shares the work out                       from 256 MiB of log

Every record is read: magic, lengths, its own offset, the CRC of its body. Every unit of every queue
is compared with the record that it means, in both directions, and every index file with the keys
of the records. It is what `troupemq store check` does, on all cores or machines; it changes nothing
and takes no lock. Beside a broker that writes, the newest part of the index may look unfinished.
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
"""Lines for people of each part; --json has them all, up to 1,000 of each."""

NAMED_MAX = 10_000

_HEADINGS = {
    "topic": "topic",
    "queue_id": "queue",
    "queue_offset": "message",
    "physical_offset": "at byte",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfShared):
    """The table is above."""

    delay_levels: str | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Raises StoreError for what is no store."""
    wanted = checked(Arguments, "audit", given)
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Whether the log is long enough for it."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Reads everything once. Raises StoreError where the directory cannot be read."""
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
            yield f"{part}: {count:,} are wrong in all; --json names the first 1,000"
    yield (
        "Nothing is wrong." if report["clean"] else "troupemq store rebuild mends what is derived."
    )
