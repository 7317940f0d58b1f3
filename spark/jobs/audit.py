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

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from spark.arguments import check_store, read_arguments
from spark.jobs import Report
from spark.parts import spark_pays
from spark.report import text_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.audit import Audit

SHOWN_MAX = 100
"""Lines of the table for people; --json has them all, up to 1,000 of each part."""

NAMED_MAX = 10_000

_HEADINGS = {
    "topic": "topic",
    "queue_id": "queue",
    "queue_offset": "message",
    "physical_offset": "at byte",
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The table is above."""

    store: str
    commit_log: str | None = None
    published_offset: int | None = None
    delay_levels: str | None = None
    with_spark: bool | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Refuses what is no store."""
    wanted = read_arguments(Arguments, "audit", given)
    check_store(wanted.store, wanted.commit_log)
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Whether the log is long enough for it."""
    wanted = check(given)
    return spark_pays(wanted.store, wanted.commit_log, wanted.with_spark)


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Reads everything once. Raises StoreError where the directory cannot be read."""
    from spark.audit import Audit
    from storage.config import StoreConfig
    from storage.disk import RealDisk
    from storage.store_layout import with_sizes_of_files

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
    for each in audit.report.findings[:SHOWN_MAX]:
        yield f"{each.part}: {each.text}"
    yield (
        "Nothing is wrong." if report["clean"] else "troupemq store rebuild mends what is derived."
    )
