"""How long messages took from producer to store, and from store to consumers where traces tell.

    argument           meaning                                              default
    store              storePathRootDir                                     must be given
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   where a live broker's log ends                       all there is
    output             where latency.html goes                              none is written
    topics             list of topics                                       all but system ones
    system_topics      due, half and retry messages, too                    false
    since, until       stored from … to before …: ISO 8601 (UTC) or ms      all there is
    trace_topic        where clients' traces lie                            RMQ_SYS_TRACE_TOPIC
    slot_minutes       length of a point of the plot                        10
    range_bytes        record bytes of one part                             67108864
    with_spark         whether Spark shares the work out                    from 256 MiB of log

Born is the producer's clock, stored the broker's: a message that was stored before it was born says
that the two differ, and is counted apart. Percentiles are exact below 1 s, and at most 0.8 % too
large above. Consumed is the begin of a consumption that a client has traced, of the first 100,000
messages with a trace; of others nothing is known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.topic_names import TRACE_TOPIC
from spark.arguments import check_output, check_store, check_topics, read_arguments, topic_names
from spark.jobs import Report
from spark.parts import spark_pays
from spark.report import text_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACED_MAX = 100_000
"""Messages whose traces are looked at: they travel with each part, 8 MB of them."""

_MINUTE_MS = 60_000
_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
_HEADINGS = {
    "way": "from → to",
    "name": "topic",
    "messages": "messages",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "largest_ms": "most ms",
    "negative": "clocks differ",
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The table is above."""

    store: str
    commit_log: str | None = None
    published_offset: int | None = None
    output: str | None = None
    topics: tuple[str, ...] | None = None
    system_topics: bool = False
    since: Any = None
    until: Any = None
    trace_topic: str = TRACE_TOPIC
    slot_minutes: int = 10
    range_bytes: int = 64 * 1024 * 1024
    with_spark: bool | None = None


def check(given: Mapping[str, Any]) -> Arguments:
    """Refuses what is no store, a topic that is not there, an output that cannot be written."""
    wanted = read_arguments(Arguments, "latency", given)
    check_store(wanted.store, wanted.commit_log)
    check_topics(wanted.store, wanted.topics)
    if wanted.output is not None:
        check_output(wanted.output)
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Whether the log is long enough for it."""
    wanted = check(given)
    return spark_pays(wanted.store, wanted.commit_log, wanted.with_spark)


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Reads every message once. Raises StoreError."""
    from spark.latency import (
        COLUMNS,
        COLUMNS_WITH_KEYS,
        TRACE_COLUMNS,
        LatencyPart,
        begun_in,
        measure_part,
        merged,
    )
    from spark.parts import run_parts
    from spark.scan import scan_parts

    wanted = check(given)
    begun: dict[str, list[tuple[str, int]]] = {}
    if wanted.trace_topic in topic_names(wanted.store):
        traces = replace(wanted, topics=(wanted.trace_topic,), since=None, until=None)
        begun = begun_in(scan_parts(traces, TRACE_COLUMNS), TRACED_MAX)
    slot_ms = max(1, wanted.slot_minutes) * _MINUTE_MS
    scans = scan_parts(wanted, COLUMNS_WITH_KEYS if begun else COLUMNS)
    parts = [LatencyPart(scan, slot_ms, begun) for scan in scans]
    found = merged(run_parts(spark, measure_part, parts))
    rows = rows_of(found)
    page = _page(wanted.output, found) if rows else None
    report: Report = {
        "output": None if page is None else str(page),
        "rows": sum(histogram.total + histogram.negative for histogram in found.values()),
        "bytes": 0 if page is None else page.stat().st_size,
        "latencies": rows,
    }
    report["text"] = "\n".join(_text(rows, page))
    print(report["text"], flush=True)
    return report


def rows_of(found: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Each topic and way over all of its time."""
    from spark.latency import Histogram

    whole: dict[tuple[str, str], Histogram] = {}
    for (name, way, _), histogram in found.items():
        whole.setdefault((way, name), Histogram()).merge(histogram)
    return [
        {
            "way": way,
            "name": name,
            "messages": histogram.total + histogram.negative,
            **{label: histogram.percentile(share) for label, share in _SHARES.items()},
            "largest_ms": histogram.largest_ms,
            "negative": histogram.negative,
        }
        for (way, name), histogram in sorted(whole.items())
    ]


def _page(output: str | None, found: Mapping[Any, Any]) -> Path | None:
    if output is None:
        return None
    from spark.plot import Chart, write_page

    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (name, way, slot), histogram in sorted(found.items(), key=lambda each: each[0][2]):
        p99 = histogram.percentile(_SHARES["p99_ms"])
        if p99 is not None:
            charts.setdefault(way, {}).setdefault(name, []).append((slot, p99))
    page = Path(output) / "latency.html"
    drawn = [Chart(f"{way}, p99 in ms", series) for way, series in charts.items()]
    write_page(page, "Latency", drawn)
    return page


def _text(rows: list[dict[str, Any]], page: Path | None) -> Iterator[str]:
    if not rows:
        yield "No message was stored in that time."
        return
    yield from text_table(rows, _HEADINGS)
    if page is not None:
        yield f"Plot: {page}"
