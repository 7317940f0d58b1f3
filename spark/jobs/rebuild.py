"""Rebuild consume queues and index from the log in a separate folder; optionally swap them in.

    argument           meaning                                                default
    store              storePathRootDir                                       required
    commit_log         storePathCommitLog                                     <store>/commitlog
    output             the folder, empty or missing                           required
    swap               put the files into the store of a stopped broker       false
    delay_levels       messageDelayLevel, if the broker has its own           RocketMQ's

The log is only read, so a broker may run unless the files are swapped in. The job writes what the
broker itself writes, and reports the files that differ from those of the store. If queues have
expired at their heads, or if a broker is running, some files differ without being wrong. The job
takes some 10 s per GiB in one process, without Spark. `troupemq store rebuild` does it in place.
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
    output: str
    swap: bool = False
    delay_levels: str | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store, or an output folder that is not empty."""
    wanted = checked(Arguments, "rebuild", given)
    check_output(wanted.output)
    if any(Path(wanted.output).iterdir()):
        raise StoreError(f"{wanted.output} is not empty: name another output, or empty it")
    if wanted.swap and (Path(wanted.store) / "consumequeue_ext").is_dir():
        raise StoreError(
            f"{wanted.store} has extended queues, which this job does not support: use "
            "`troupemq store rebuild`"
        )
    return wanted


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Read the whole log. Raises StoreError, and then the store is unchanged."""
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
        yield "The files are identical to those of the store."
    place = "the store now" if report["swapped"] else report["output"]
    yield f"The files are in {place}."
