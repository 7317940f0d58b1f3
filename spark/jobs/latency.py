"""Report the time of messages from producer to store, and to consumers with message traces.

    argument           meaning                                              default
    store              storePathRootDir                                     required
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   end of a live broker's log                           end of the log
    output             directory of latency.html                            no page
    topics             list of topics                                       all but system ones
    system_topics      also measure delayed, half and retry messages        false
    since, until       range of store times: ISO 8601 (UTC) or ms           no limit
    trace_topic        topic of the clients' traces                         RMQ_SYS_TRACE_TOPIC
    slot_minutes       minutes per point of the plot                        10
    range_bytes        record bytes of one part                             67108864
    with_spark         whether to run the parts on Spark                    from 256 MiB of log

Born is a time of the producer's clock, stored one of the broker's. A message that was stored before
it was born proves that the clocks differ, and is counted apart. Percentiles are exact below 1 s,
and at most 0.8 % too large above. A delayed message is stored again in its topic when it is due, a
dead letter after its tries. Both have ways of their own, as their times include the wait.

Consumed is the start of a traced consumption; messages without a trace are not measured. If more
than 100,000 messages have traces, an even share of them is measured. The report states the share:
one in 2, 4, 8, …
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.topic_names import TRACE_TOPIC
from spark.arguments import OfMessages, check_output, check_topics, checked, pays, topic_names
from spark.report import Report, text_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACED_MAX = 100_000
"""Maximum traced messages, sampled evenly; they travel with each part, 8 MB of them."""

_MINUTE_MS = 60_000
_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
_HEADINGS = {
    "way": "from → to",
    "name": "topic",
    "messages": "messages",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "largest_ms": "largest ms",
    "negative": "clocks differ",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfMessages):
    output: str | None = None
    topics: tuple[str, ...] | None = None
    system_topics: bool = False
    trace_topic: str = TRACE_TOPIC
    slot_minutes: int = 10


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store, topic or output."""
    wanted = checked(Arguments, "latency", given)
    check_topics(wanted.store, wanted.topics)
    if wanted.output is not None:
        check_output(wanted.output)
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Return whether the log is long enough for Spark."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Read every message once. Raises StoreError."""
    from spark.analysis.latency import (
        COLUMNS,
        COLUMNS_WITH_KEYS,
        TRACE_COLUMNS,
        LatencyPart,
        Traces,
        measure_part,
        merged,
        trace_bodies,
        traces_in,
    )
    from spark.analysis.scan import scan_parts
    from spark.parts import run_parts

    wanted = check(given)
    traces = Traces(TRACED_MAX)
    if wanted.trace_topic in topic_names(wanted.store):
        of_traces = replace(wanted, topics=(wanted.trace_topic,), since=None, until=None)
        told = scan_parts(of_traces, TRACE_COLUMNS)
        # Without Spark, as its tasks would return everything they read.
        bodies = run_parts(None, trace_bodies, told, "reading traces", lambda part: part.rows)
        traces = traces_in(bodies, TRACED_MAX)
    slot_ms = max(1, wanted.slot_minutes) * _MINUTE_MS
    scans = scan_parts(wanted, COLUMNS_WITH_KEYS if traces.begun else COLUMNS)
    parts = [LatencyPart(scan, slot_ms, traces.begun) for scan in scans]
    found = merged(run_parts(spark, measure_part, parts, "measuring", lambda part: part.scan.rows))
    rows = rows_of(found)
    page = _page(wanted.output, found) if rows else None
    report: Report = {
        "output": None if page is None else str(page),
        "rows": sum(histogram.total + histogram.negative for histogram in found.values()),
        "bytes": 0 if page is None else page.stat().st_size,
        "latencies": rows,
        "traced_consumptions": traces.consumptions,
        "traced_every": traces.every,
    }
    report["text"] = "\n".join(_text(rows, traces.every, page))
    print(report["text"], flush=True)
    return report


def rows_of(found: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Return each topic and way over its whole time."""
    from spark.analysis.latency import Histogram

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
    from spark.report import Chart, write_page

    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (name, way, slot), histogram in sorted(found.items(), key=lambda each: each[0][2]):
        p99 = histogram.percentile(_SHARES["p99_ms"])
        if p99 is not None:
            charts.setdefault(way, {}).setdefault(name, []).append((slot, p99))
    page = Path(output) / "latency.html"
    drawn = [Chart(f"{way}, p99 in ms", series) for way, series in charts.items()]
    write_page(page, "Latency", drawn)
    return page


def _text(rows: list[dict[str, Any]], every: int, page: Path | None) -> Iterator[str]:
    if not rows:
        yield "No messages were stored in that time."
        return
    yield from text_table(rows, _HEADINGS)
    if every > 1:
        yield f"stored → consumed: of one in {every:,} messages, because of the number of traces."
    if page is not None:
        yield f"Plot: {page}"
