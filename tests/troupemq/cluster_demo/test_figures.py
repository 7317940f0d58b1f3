"""Check of the demonstration's results, and its errors."""

from dataclasses import replace
from typing import Any

import pytest

from troupemq.cluster_demo.figures import TOPIC, DemoFailed, Figures, check, counted, table

TAGS = {"new": 2, "paid": 1}
RIGHT = Figures(
    messages=3,
    body_bytes=30,
    tags=TAGS,
    tasks=9,
    done_at_kill=(5, 3),
    counted=3,
    counted_bytes=30,
    workers_left=1,
    meanwhile=7,
    stored_meanwhile=7,
)


def test_equal_counts_are_correct() -> None:
    check(RIGHT, TAGS)


@pytest.mark.parametrize(
    "wrong, what",
    [
        ({"counted": 2}, "messages"),
        ({"counted_bytes": 31}, "body bytes"),
        ({"workers_left": 2}, "remaining workers"),
        ({"stored_meanwhile": 6}, "messages sent during the job"),
        ({"meanwhile": 0, "stored_meanwhile": 0}, "messages sent during the job"),
        ({"tasks": 8}, "remaining tasks at the kill"),
        ({"done_at_kill": ()}, "tasks done at the kill"),
    ],
)
def test_differing_counts_are_named(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(DemoFailed, match=f"failed: wrong {what}"):
        check(replace(RIGHT, **wrong), TAGS)


def test_tag_counts_must_be_equal() -> None:
    with pytest.raises(DemoFailed, match="failed: wrong tags"):
        check(RIGHT, {"new": 3})


def test_the_report_of_another_topic_counts_nothing() -> None:
    tags = [{"tags": name, "messages": count} for name, count in TAGS.items()]
    topic = {"topic": TOPIC, "messages": 3, "body_bytes": 30, "tags": tags}
    assert counted({"topics": [topic]}) == (3, 30, TAGS)
    assert counted({"topics": [{**topic, "topic": "another"}]}) == (0, 0, {})


def test_the_table_shows_when_the_worker_was_killed() -> None:
    lines = list(table(RIGHT))
    assert "       9  5 and 3 done when a worker was killed, 1 left" in lines[2]
