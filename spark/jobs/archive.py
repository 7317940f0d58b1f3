"""Archives messages as Parquet or a table, partitioned by topic and UTC day, each message once.

    argument           meaning                                               default
    store              storePathRootDir                                      must be given
    output             the archive's directory (spark/archive/files.py)      must be given
    commit_log         storePathCommitLog                                    <store>/commitlog
    published_offset   where a live broker's log ends: never look past it    all there is
    topics             list of topics                                        all but system ones
    system_topics      archive due, half and retry messages, too             false
    range_bytes        record bytes of one task                              67108864
    format             parquet, or a table format of the session: delta      parquet
    verify             compare what is archived with the log, write nothing  false
    compact            make few files of many small ones, archive nothing    false
    grace_hours        how long files that compact has replaced stay         1

The CRC of every body is compared. A message that is damaged, between others that are not, is left
out, counted and named in report and manifest, with the reason.

With `verify` (`--verify`) every file is compared with its manifest, and every row with the log as
far as that still has it; what differs is named.

With `compact=true` the files of each topic and day are joined up to 128 MiB, as one run in the
place of those before; runs of an older version come out with the columns of today. Those before
stay for `grace_hours`, as somebody may be reading them; the next run after that removes them.

Any other `format` is a table in <output>/table, with the number of the run in its column `run`; it
takes each run by one commit of its own (spark/archive/table.py). `verify` and `compact` are for
Parquet.

It needs no broker and takes no lock of the store's. A run goes on where the last manifest ended,
and reads in one task what lies together in one queue, so that nothing is shuffled.
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
    """Raises StoreError for what is no store, a topic that is not there, an output that cannot be
    written."""
    for name in ("store", "output"):
        if not given.get(name):
            raise StoreError(f"archive needs the argument {name}")
    if given.get("compact") and given.get("verify"):
        raise StoreError("archive does one of both at a time: leave compact or verify out")
    # Only here: the broker's process imports this module for its name, but never numpy.
    from spark.archive.table import PARQUET, check_format, check_is_parquet

    if given.get("compact"):
        _check_archive(given["output"], "compact")
        check_is_parquet(given["output"], "compact", "such tables have means of their own")
        check_output(given["output"])
        return
    check_store(given["store"], given.get("commit_log"))
    check_topics(given["store"], given.get("topics"))
    if given.get("verify"):
        _check_archive(given["output"], "verify")
        instead = "each run was compared with the log before it went into the table"
        check_is_parquet(given["output"], "verify", instead)
        return
    check_output(given["output"])
    check_format(given["output"], given.get("format", PARQUET))


def _check_archive(output: str, what: str) -> None:
    if not any(Path(output).glob("run=*")):
        raise StoreError(f"there is no archive at {output}: nothing to {what}")


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Comparing or compacting a small archive does not."""
    if given.get("compact"):
        files = Path(given["output"]).glob("run=*/topic=*/day=*/*.parquet")
        return sum(path.stat().st_size for path in files) >= PAYS_BYTES
    return not given.get("verify") or spark_pays(given["store"], given.get("commit_log"))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Archives what is new. Raises StoreError; nothing is published then."""
    # Only here: the broker's process imports this module for its name, but never Spark.
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
