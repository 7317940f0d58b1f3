"""Messages that are stored more than once: with the same UNIQ_KEY, or with the same of their KEYS.

    argument           meaning                                              default
    store              storePathRootDir                                     must be given
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   where a live broker's log ends                       all there is
    topics             list of topics                                       all but system ones
    since, until       stored from … to before …: ISO 8601 (UTC) or ms      all there is
    by                 uniqKey, keys, or both                               both
    limit              keys that the report names, the most frequent ones   1000
    range_bytes        record bytes of one part                             67108864
    with_spark         whether Spark shares the work out                    from 256 MiB of log

A UNIQ_KEY is the client's own id of a message: several with the same one in a topic are a send that
was repeated after a timeout, or a retry of the producer. KEYS are the application's; what
several messages share there may be meant. Compared within one topic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark.arguments import OfMessages, check_topics, checked, pays
from spark.report import Report, text_table
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN_MAX = 50
_BY = {"uniqKey": ("uniqKey",), "keys": ("keys",), "both": ("uniqKey", "keys")}
_HEADINGS = {
    "by": "by",
    "topic": "topic",
    "key": "key",
    "count": "times",
    "first_at": "first (queue/message)",
    "last_at": "last (queue/message)",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfMessages):
    """The table is above."""

    topics: tuple[str, ...] | None = None
    by: str = "both"
    limit: int = 1000

    @property
    def system_topics(self) -> bool:
        """Retries and half messages are copies by design."""
        return False


def check(given: Mapping[str, Any]) -> Arguments:
    """Raises StoreError for what is no store, and a topic that is not there."""
    wanted = checked(Arguments, "duplicates", given)
    check_topics(wanted.store, wanted.topics)
    if wanted.by not in _BY:
        raise StoreError(f"duplicates: by = {wanted.by} is none of {', '.join(_BY)}")
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Whether the log is long enough for it."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Reads every message once for each of the two. Raises StoreError."""
    from spark.analysis.duplicates import COLUMNS, found_by_spark, found_here, messages_of
    from spark.analysis.scan import scan_parts

    wanted = check(given)
    rows: list[dict[str, Any]] = []
    messages = None if spark is not None else messages_of(scan_parts(wanted, COLUMNS))
    for by in _BY[wanted.by]:
        found = found_here(messages, by) if spark is None else found_by_spark(spark, wanted, by)
        found.sort(key=lambda row: (-row["count"], row["topic"], row["key"]))
        rows += found[: wanted.limit]
    report: Report = {
        "output": None,
        "rows": len(rows),
        "bytes": 0,
        "duplicates": rows,
        "too_many": {
            by: sum(row["count"] - 1 for row in rows if row["by"] == by) for by in _BY[wanted.by]
        },
        "is_cut": any(sum(row["by"] == by for row in rows) >= wanted.limit for by in _BY["both"]),
    }
    report["text"] = "\n".join(_text(report, rows))
    print(report["text"], flush=True)
    return report


def _text(report: Report, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        yield "No message is there twice."
        return
    shown = [
        {**row, "first_at": _place(row["first"]), "last_at": _place(row["last"])}
        for row in rows[:SHOWN_MAX]
    ]
    yield from text_table(shown, _HEADINGS)
    if len(rows) > SHOWN_MAX:
        yield f"and {len(rows) - SHOWN_MAX:,} more; --json has them"
    for by, count in report["too_many"].items():
        yield f"{count:,} messages too many by {by}" + (" at least" if report["is_cut"] else "")


def _place(place: Mapping[str, Any]) -> str:
    return f"{place['queue_id']}/{place['queue_offset']} {place['stored']}"
