"""Makes consume queues and index anew from the log, in a folder of their own; can swap them in.

    argument           meaning                                                default
    store              storePathRootDir                                       must be given
    commit_log         storePathCommitLog                                     <store>/commitlog
    output             the folder: it must be empty, or not there             must be given
    swap               put them into the store, whose broker is stopped       false
    delay_levels       messageDelayLevel, if the broker has its own           RocketMQ's

The log is only read, so a broker may run as long as nothing is swapped in. What is made is what the
broker itself writes; the report names the files that differ from those that the store has. Where
queues have expired at their heads, or a broker is running, some differ without being wrong. In one
process, without Spark: some 10 s a GiB. `troupemq store rebuild` does the same in place.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from spark.arguments import OfStore, check_output, checked
from spark.progress import PROGRESS
from spark.report import Report
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDS_SPARK = False
SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(OfStore):
    """The table is above."""

    output: str
    swap: bool = False
    delay_levels: str | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Raises StoreError for what is no store, and a folder that has something in it."""
    wanted = checked(Arguments, "rebuild", given)
    check_output(wanted.output)
    if any(Path(wanted.output).iterdir()):
        raise StoreError(f"{wanted.output} is not empty: name another output, or remove it")
    if wanted.swap and (Path(wanted.store) / "consumequeue_ext").is_dir():
        raise StoreError(
            f"{wanted.store} has extended queues, which this job does not make: use "
            "`troupemq store rebuild`"
        )
    return wanted


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Reads the whole log. Raises StoreError; the store is as it was then."""
    from spark.analysis.rebuild import differing, offline, rebuild, swap
    from storage.checking.store_layout import with_sizes_of_files
    from storage.config import StoreConfig
    from storage.files.disk import RealDisk

    wanted, begun_s = check(given), monotonic()
    store = str(Path(wanted.store).absolute())
    log = wanted.commit_log or f"{store}/commitlog"
    config = with_sizes_of_files(RealDisk(), StoreConfig(root=store, commit_log_dir=log))
    if wanted.delay_levels is not None:
        config = replace(config, message_delay_level=wanted.delay_levels)
    staging = str(Path(wanted.output).absolute())
    with offline(config) if wanted.swap else nullcontext():
        PROGRESS.begin("reading the log")
        made = rebuild(config, staging)
        PROGRESS.begin("comparing")
        names = differing(store, staging)
        if wanted.swap:
            swap(config, staging)
    report: Report = {
        "output": store if wanted.swap else staging,
        "rows": made.records,
        "bytes": 0,
        "log_end": made.log_end,
        "differing": names,
        "damaged": [list(each) for each in made.damaged],
        "swapped": wanted.swap,
        "seconds": round(monotonic() - begun_s, 2),
    }
    report["text"] = "\n".join(_text(report))
    print(report["text"], flush=True)
    return report


def _text(report: Report) -> Iterator[str]:
    yield (
        f"{report['rows']:,} records, up to {report['log_end']} in the log, in "
        f"{report['seconds']:.1f} s"
    )
    for start, end, why in report["damaged"][:SHOWN_MAX]:
        yield f"commit log: damaged from {start} to {end}: {why}"
    for name in report["differing"][:SHOWN_MAX]:
        yield f"differs: {name}"
    if len(report["differing"]) > SHOWN_MAX:
        yield f"and {len(report['differing']) - SHOWN_MAX:,} more; --json names them"
    if not report["differing"]:
        yield "They are the same as those of the store."
    place = "the store now" if report["swapped"] else report["output"]
    yield f"They are in {place}."
