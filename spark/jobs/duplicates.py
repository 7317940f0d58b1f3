"""Report messages that are stored more than once, by equal UNIQ_KEY or equal KEYS.

    argument           meaning                                              default
    store              storePathRootDir                                     required
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   end of a live broker's log                           end of the log
    topics             list of topics                                       all but system ones
    since, until       range of store times: ISO 8601 (UTC) or ms           no limit
    by                 uniqKey, keys, or both                               both
    limit              most frequent keys that the report names             1000
    range_bytes        record bytes of one part                             67108864
    with_spark         whether to run the parts on Spark                    from 256 MiB of log

A UNIQ_KEY is the client's own id of a message. Several messages with one UNIQ_KEY in a topic come
from a send that was repeated after a timeout, or from a retry of the producer. KEYS are set by the
application, which may share them on purpose. Messages are compared within one topic.
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
    topics: tuple[str, ...] | None = None
    by: str = "both"
    limit: int = 1000

    @property
    def system_topics(self) -> bool:
        """False, as retries and half messages are copies by design."""
        return False


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store or topic."""
    wanted = checked(Arguments, "duplicates", given)
    check_topics(wanted.store, wanted.topics)
    if wanted.by not in _BY:
        raise StoreError(f"duplicates: invalid by {wanted.by!r}: use one of {', '.join(_BY)}")
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Return whether the log is long enough for Spark."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Read every message once for each kind of key. Raises StoreError."""
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
        yield "No message is stored twice."
        return
    shown = [
        {**row, "first_at": _place(row["first"]), "last_at": _place(row["last"])}
        for row in rows[:SHOWN_MAX]
    ]
    yield from text_table(shown, _HEADINGS)
    if len(rows) > SHOWN_MAX:
        yield f"and {len(rows) - SHOWN_MAX:,} more; --json has them"
    for by, count in report["too_many"].items():
        yield f"{count:,} surplus messages by {by}" + (" at least" if report["is_cut"] else "")


def _place(place: Mapping[str, Any]) -> str:
    return f"{place['queue_id']}/{place['queue_offset']} {place['stored']}"
