"""Report dead letters by consumer group: number, tries, age, original topic.

    argument           meaning                                              default
    store              storePathRootDir                                     required
    commit_log         storePathCommitLog                                   <store>/commitlog
    published_offset   end of a live broker's log                           end of the log
    groups             list of consumer groups                              all
    since, until       range of store times: ISO 8601 (UTC) or ms           no limit
    samples            newest messages shown for each group                 3
    now_ms             end of the ages, ms since 1970                       the clock's
    range_bytes        record bytes of one part                             67108864
    with_spark         whether to run the parts on Spark                    from 256 MiB of log

A message becomes a dead letter after its group's last retry. A consumer can also give it back so
that it is never retried (delayLevel -1). `reasons` distinguishes the two by the number of
deliveries (reconsumeTimes).

Consumers of TroupeMQ send the exception to their broker; --json has it as `failure` of each sample.
Other clients have the exception only in their own logs. Search there by the message's keys and its
first id (ORIGIN_MESSAGE_ID), which --json has, too. `troupemq job redrive GROUP` sends dead letters
back to their topics.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any

from protocol.topic_names import DLQ_TOPIC_PREFIX
from spark.arguments import OfMessages, checked, pays, topic_names
from spark.report import Report, duration, moment, text_table
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEADINGS = {
    "group": "group",
    "messages": "dead letters",
    "oldest": "oldest",
    "newest": "newest",
    "why": "reasons",
    "from": "from",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfMessages):
    groups: tuple[str, ...] | None = None
    samples: int = 3
    now_ms: int | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the dead-letter topics of the groups; without groups, all topics of the store."""
        if self.groups is not None:
            return tuple(DLQ_TOPIC_PREFIX + group for group in self.groups)
        there = topic_names(self.store)
        return tuple(sorted(topic for topic in there if topic.startswith(DLQ_TOPIC_PREFIX)))

    @property
    def system_topics(self) -> bool:
        return True


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store, or a group without dead letters."""
    wanted = checked(Arguments, "deadletters", given)
    for topic in set(wanted.topics) - topic_names(wanted.store):
        group = topic.removeprefix(DLQ_TOPIC_PREFIX)
        raise StoreError(
            f"group {group} has no dead letters in {wanted.store}: remove it from groups"
        )
    return wanted


def needs_spark(given: Mapping[str, Any]) -> bool:
    """Return whether the log is long enough for Spark."""
    return pays(check(given))


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Read the dead-letter topics once. Raises StoreError."""
    from spark.analysis.deadletters import COLUMNS, DeadPart, count_part, merged
    from spark.analysis.scan import scan_parts
    from spark.parts import run_parts

    wanted = check(given)
    now_ms = wanted.now_ms or time_ns() // 1_000_000
    parts = [DeadPart(scan, wanted.samples) for scan in scan_parts(wanted, COLUMNS)]
    found = run_parts(spark, count_part, parts, "counting", lambda part: part.scan.rows)
    groups = merged(found, wanted.samples)
    report: Report = {
        "output": None,
        "rows": sum(group["messages"] for group in groups),
        "bytes": 0,
        "groups": groups,
    }
    report["text"] = "\n".join(_text(groups, now_ms))
    print(report["text"], flush=True)
    return report


def _text(groups: Sequence[Mapping[str, Any]], now_ms: int) -> Iterator[str]:
    if not groups:
        yield "No dead letters found."
        return
    shown = [
        {
            **group,
            "oldest": duration(now_ms - group["oldest_ms"]),
            "newest": duration(now_ms - group["newest_ms"]),
            "why": _counts(group["reasons"]),
            "from": _counts(group["origins"]),
        }
        for group in groups
    ]
    yield from text_table(shown, _HEADINGS)
    for group in groups:
        for each in group["samples"]:
            why = f", failed with {each['failure']!r}" if each["failure"] else ""
            yield (
                f"{group['group']}: message {each['queue_offset']} of queue {each['queue_id']}, "
                f"{moment(each['stored_ms'])}, after {each['retries']} deliveries, "
                f"keys {each['keys'] or '-'}, from {each['origin_topic']}{why}: {each['body']!r}"
            )


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{name}: {count:,}" for name, count in ordered)
