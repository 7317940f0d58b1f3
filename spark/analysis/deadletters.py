"""Counts of dead letters by consumer group; the deadletters job's work."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, TROUPE_FAILURE
from protocol.topic_names import DLQ_TOPIC_PREFIX
from spark.analysis.scan import ScanPart

COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "bornTimestamp",
    "reconsumeTimes",
    "uniqKey",
    "keys",
    "properties",
    "body",
)
BODY_SHOWN_MAX = 120
REFUSED, RETRIED = "given up at once", "given up after {} deliveries"
"""A message given back counts once more in reconsumeTimes, the last time too."""


@dataclass(frozen=True, slots=True)
class DeadPart:
    """Input of one task, and the number of samples it returns."""

    scan: ScanPart
    samples: int


def count_part(part: DeadPart) -> dict[str, dict[str, Any]]:
    """Count the dead letters of one part by group, in a task."""
    found: dict[str, dict[str, Any]] = {}
    for batch in part.scan.batches():
        for row in batch.to_pylist():
            _add(found, row, part.samples)
    return found


def merged(parts: Iterable[dict[str, dict[str, Any]]], samples: int) -> list[dict[str, Any]]:
    """Return the merged groups, most dead letters first."""
    total: dict[str, dict[str, Any]] = {}
    for part in parts:
        for group, found in part.items():
            there = total.get(group)
            if there is None:
                total[group] = found
                continue
            there["messages"] += found["messages"]
            for name in ("reasons", "retries", "origins"):
                for key, count in found[name].items():
                    there[name][key] = there[name].get(key, 0) + count
            there["oldest_ms"] = min(there["oldest_ms"], found["oldest_ms"])
            there["newest_ms"] = max(there["newest_ms"], found["newest_ms"])
            there["samples"] = _newest(there["samples"] + found["samples"], samples)
    return sorted(total.values(), key=lambda each: (-each["messages"], each["group"]))


def _add(found: dict[str, dict[str, Any]], row: dict[str, Any], samples: int) -> None:
    group = row["topic"].removeprefix(DLQ_TOPIC_PREFIX)
    stored_ms = int(row["storeTimestamp"].timestamp() * 1000)
    retries = row["reconsumeTimes"]
    properties = dict(row["properties"])
    origin = properties.get(RETRY_TOPIC) or "unknown"
    reason = RETRIED.format(retries) if retries > 1 else REFUSED
    each = found.setdefault(
        group,
        {
            "group": group,
            "messages": 0,
            "reasons": {},
            "retries": {},
            "origins": {},
            "oldest_ms": stored_ms,
            "newest_ms": stored_ms,
            "samples": [],
        },
    )
    each["messages"] += 1
    for name, key in (("reasons", reason), ("retries", str(retries)), ("origins", origin)):
        each[name][key] = each[name].get(key, 0) + 1
    each["oldest_ms"] = min(each["oldest_ms"], stored_ms)
    each["newest_ms"] = max(each["newest_ms"], stored_ms)
    sample = {
        "queue_id": row["queueId"],
        "queue_offset": row["queueOffset"],
        "stored_ms": stored_ms,
        "born_ms": int(row["bornTimestamp"].timestamp() * 1000),
        "retries": retries,
        "origin_topic": origin,
        "origin_message_id": properties.get(ORIGIN_MESSAGE_ID),
        "failure": properties.get(TROUPE_FAILURE),
        "uniq_key": row["uniqKey"],
        "keys": row["keys"],
        "body": (row["body"] or b"")[:BODY_SHOWN_MAX].decode("utf-8", "backslashreplace"),
    }
    each["samples"] = _newest([*each["samples"], sample], samples)


def _newest(samples: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    samples.sort(key=lambda sample: (-sample["stored_ms"], -sample["queue_offset"]))
    return samples[:count]
