"""Archive messages as Parquet or a table, partitioned by topic and UTC day, each message once.

    argument           meaning                                               default
    store              storePathRootDir                                      required
    output             the archive's directory (spark/archive/files.py)      required
    commit_log         storePathCommitLog                                    <store>/commitlog
    published_offset   end of a live broker's log: never read beyond it      end of the log
    topics             list of topics                                        all but system ones
    system_topics      also archive delayed, half and retry messages         false
    range_bytes        record bytes of one task                              67108864
    format             parquet, or a table format of the session: delta      parquet
    verify             compare the archive with the log, write nothing       false
    compact            join small files, archive nothing                     false
    grace_hours        hours that compact keeps the files it has replaced    1

The CRC of every body is compared. A damaged message between intact ones is left out. Report and
manifest count and name it, with the reason.

`verify` (`--verify`) compares every file with its manifest, and every row with the log, as far as
the log still has it. The report names the differences.

`compact=true` joins the files of each topic and day up to 128 MiB, as one run that replaces those
before. Runs of an older version get the current columns. The replaced runs stay for `grace_hours`
for readers in progress; the next run after that removes them.

Any other `format` is a table in <output>/table, with the number of the run in its column `run`. Its
own commits add one run each (spark/archive/table.py). `verify` and `compact` are for Parquet.

The job needs no broker and takes no lock of the store. A run starts where the last manifest ended.
One task reads a contiguous range of one queue, so nothing is shuffled.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.arguments import check_output, check_store, check_topics
from spark.parts import PAYS_BYTES, spark_pays
from spark.report import Report
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(given: Mapping[str, Any]) -> None:
    """Raise StoreError for an invalid argument, store, topic or output."""
    # Imported late: the broker process imports this module for its name, but never numpy.
    from spark.archive.run import Arguments
    from spark.archive.table import check_format, check_is_parquet

    wanted = Arguments.of(given)
    if wanted.compact and wanted.verify:
        raise StoreError("compact and verify exclude each other: give one of them")
    if wanted.compact:
        _check_archive(wanted.output, "compact")
        check_is_parquet(wanted.output, "compact", "use the tools of the table format")
        check_output(wanted.output)
        return
    check_store(wanted.store, wanted.commit_log)
    check_topics(wanted.store, wanted.topics)
    if wanted.verify:
        _check_archive(wanted.output, "verify")
        instead = "each run was compared with the log before it went into the table"
        check_is_parquet(wanted.output, "verify", instead)
        return
    check_output(wanted.output)
    check_format(wanted.output, wanted.format)


def _check_archive(output: str, what: str) -> None:
    if not any(Path(output).glob("run=*")):
        raise StoreError(f"there is no archive at {output}: nothing to {what}")


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Return whether Spark is needed: not to compare or compact a small archive."""
    if given.get("compact"):
        files = Path(given["output"]).glob("run=*/topic=*/day=*/*.parquet")
        return sum(path.stat().st_size for path in files) >= PAYS_BYTES
    return not given.get("verify") or spark_pays(given["store"], given.get("commit_log"))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Archive new messages. Raises StoreError, and then nothing is published."""
    # Imported late: the broker process imports this module for its name, but never Spark.
    from spark.archive.compact import compact
    from spark.archive.run import Arguments, archive
    from spark.archive.verify import verify

    wanted = Arguments.of(given)
    if wanted.verify:
        return verify(spark, wanted)
    if wanted.compact:
        report = compact(spark, wanted.output, grace_ms=wanted.grace_ms)
    else:
        assert spark is not None
        report = archive(spark, wanted)
    print(report["text"], flush=True)
    return report
