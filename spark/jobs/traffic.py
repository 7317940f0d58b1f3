"""Report the traffic of a store: rates and sizes by topic and minute, tags, producers.

    argument           meaning                                              default
    store              storePathRootDir                                     required
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   end of a live broker's log                           end of the log
    output             directory of traffic.html and traffic.parquet        no files
    topics             list of topics                                       all but system ones
    system_topics      also count delayed, half and retry messages          false
    since, until       range of store times: ISO 8601 (UTC) or ms           no limit
    top                tags and producers shown for each topic              5
    range_bytes        record bytes of one part                             67108864
    with_spark         whether to run the parts on Spark                    from 256 MiB of log

A producer is the address that a message came from. traffic.parquet has a row for each topic and
minute; traffic.html plots them. Damaged messages are not counted; the audit job names them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.arguments import OfMessages, check_output, check_topics, checked, pays
from spark.report import Report, moment, text_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MINUTE_S = 60
_HEADINGS = {
    "topic": "topic",
    "messages": "messages",
    "body_bytes": "body bytes",
    "average": "average",
    "largest_body": "largest",
    "peak_messages": "peak per minute",
    "peak_at": "peak minute (UTC)",
    "top_tags": "tags",
    "top_producers": "producers",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfMessages):
    output: str | None = None
    topics: tuple[str, ...] | None = None
    system_topics: bool = False
    top: int = 5


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store, topic or output."""
    wanted = checked(Arguments, "traffic", given)
    check_topics(wanted.store, wanted.topics)
    if wanted.output is not None:
        check_output(wanted.output)
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Return whether the log is long enough for Spark."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Read every message once. Raises StoreError."""
    from spark.analysis.scan import scan_parts
    from spark.analysis.traffic import COLUMNS, Traffic, count_part, merged, topics_of
    from spark.parts import run_parts

    wanted = check(given)
    parts = scan_parts(wanted, COLUMNS)
    found: Traffic = merged(run_parts(spark, count_part, parts, "counting", lambda part: part.rows))
    topics = topics_of(found, wanted.top)
    page, size = _written(wanted.output, found) if topics else (None, 0)
    report: Report = {
        "output": None if page is None else str(page),
        "rows": sum(topic["messages"] for topic in topics),
        "bytes": size,
        "topics": topics,
    }
    report["text"] = "\n".join(_text(topics, page))
    print(report["text"], flush=True)
    return report


def _written(output: str | None, found: Any) -> tuple[Path | None, int]:
    if output is None:
        return None, 0
    from pyarrow import parquet  # type: ignore[import-untyped]

    from spark.report import Chart, write_page

    directory = Path(output)
    minutes = found.minutes.sort_by([("topic", "ascending"), ("minute", "ascending")])
    parquet.write_table(minutes, directory / "traffic.parquet", compression="zstd")
    rates: dict[str, list[tuple[float, float]]] = {}
    sizes: dict[str, list[tuple[float, float]]] = {}
    for row in minutes.to_pylist():
        rates.setdefault(row["topic"], []).append((row["minute"], row["messages"] / _MINUTE_S))
        sizes.setdefault(row["topic"], []).append((row["minute"], row["body_bytes"] / _MINUTE_S))
    page = directory / "traffic.html"
    charts = [Chart("Messages per second", rates), Chart("Body bytes per second", sizes)]
    write_page(page, "Traffic by topic and minute", charts)
    return page, page.stat().st_size + (directory / "traffic.parquet").stat().st_size


def _text(topics: list[dict[str, Any]], page: Path | None) -> Iterator[str]:
    if not topics:
        yield "No messages were stored in that time."
        return
    shown = [
        {
            **topic,
            "average": topic["body_bytes"] // topic["messages"],
            "peak_at": moment(topic["peak_minute_ms"])[:16],
            "top_tags": _names(topic["tags"], "tags"),
            "top_producers": _names(topic["producers"], "host"),
        }
        for topic in topics
    ]
    yield from text_table(shown, _HEADINGS)
    if page is not None:
        yield f"Plot: {page}"


def _names(rows: list[dict[str, Any]], name: str) -> str:
    return ", ".join(f"{row[name] or '(none)'} {row['messages']:,}" for row in rows)
