"""Results of the demonstration: a table, and a check of their values."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from storage.errors import StoreError

TOPIC = "ClusterOrders"
QUEUE_COUNT = 8
WORKER_COUNT = 2


class DemoFailed(StoreError):
    """Failure of the demonstration."""


@dataclass
class Figures:
    messages: int
    body_bytes: int = 0
    tags: dict[str, int] = field(default_factory=dict)
    tasks: int = 0
    done_at_kill: tuple[int, ...] = ()
    counted: int = 0
    counted_bytes: int = 0
    workers_left: int = 0
    meanwhile: int = 0
    stored_meanwhile: int = 0


def counted(report: dict[str, Any]) -> tuple[int, int, dict[str, int]]:
    """Return messages, body bytes and messages by tag of the topic, from the job's report."""
    for topic in report["topics"]:
        if topic["topic"] == TOPIC:
            tags = {row["tags"]: row["messages"] for row in topic["tags"]}
            return topic["messages"], topic["body_bytes"], tags
    return 0, 0, {}


def check(figures: Figures, tags: dict[str, int]) -> None:
    """Raise DemoFailed if a value is wrong."""
    wrong = [
        what
        for what, is_right in (
            ("messages", figures.counted == figures.messages),
            ("body bytes", figures.counted_bytes == figures.body_bytes),
            ("tags", tags == figures.tags),
            ("messages sent during the job", figures.stored_meanwhile == figures.meanwhile > 0),
            ("remaining workers", figures.workers_left == WORKER_COUNT - 1),
            ("tasks done at the kill", all(figures.done_at_kill) and len(figures.done_at_kill) > 1),
            ("remaining tasks at the kill", sum(figures.done_at_kill) < figures.tasks),
        )
        if not is_right
    ]
    if wrong:
        raise DemoFailed(f"The demonstration failed: wrong {', '.join(wrong)}.")


def table(figures: Figures) -> Iterator[str]:
    done = " and ".join(f"{each:,}" for each in figures.done_at_kill)
    left = figures.tasks - sum(figures.done_at_kill)
    rows = (
        ("messages sent", figures.messages, f"topic {TOPIC}, {QUEUE_COUNT} queues"),
        ("tasks of the job", figures.tasks, f"{done} done when a worker was killed, {left:,} left"),
        ("workers left", figures.workers_left, f"of {WORKER_COUNT}"),
        ("messages counted", figures.counted, f"{figures.counted_bytes:,} body bytes"),
        ("sent during job", figures.meanwhile, f"{figures.stored_meanwhile:,} of them stored"),
    )
    yield f"{'':18} {'count':>8}"
    for what, count, where in rows:
        yield f"{what:18} {count:>8,}  {where}"
