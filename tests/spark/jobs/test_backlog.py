"""The backlog job against results computed by hand; no Spark, no numpy."""

import json
import os
import subprocess
import sys
from errno import EIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spark.jobs import backlog, load_job
from storage.errors import StoreError
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter
from tests.support.golden import REPOSITORY

HOUR_MS = 3_600_000
NOW_MS = NOVEMBER_ROOT_MS + 10 * HOUR_MS


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store. Orders: ten hourly messages in queue 0, four in queue 1; Bills: one."""
    writer = StoreWriter(tmp_path / "store")
    for number in range(10):
        writer.append("Orders", 0, b"x", store_timestamp=NOVEMBER_ROOT_MS + number * HOUR_MS)
    for _ in range(4):
        writer.append("Orders", 1, b"y", store_timestamp=NOVEMBER_ROOT_MS + 9 * HOUR_MS)
    writer.append("Bills", 0, b"z", store_timestamp=NOVEMBER_ROOT_MS)
    writer.close()
    return tmp_path / "store"


def consumed(store: Path, **offsets: dict[int, int]) -> None:
    """Write the broker's file; a group's name is its topic, too."""
    table = {f"Orders@{group}": queues for group, queues in offsets.items()}
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def run(store: Path, **more: Any) -> Any:
    return backlog.main(None, {"store": str(store), "now_ms": NOW_MS, **more})


def test_consumer_lag_and_time_lag_of_a_group_are_reported(store: Path) -> None:
    consumed(store, slow={0: 6, 1: 4}, done={0: 10, 1: 4})
    slow, done = run(store)["groups"]
    assert (slow["group"], slow["lag"], slow["waits_ms"]) == ("slow", 4, 4 * HOUR_MS)
    assert [(each["queue_id"], each["lag"]) for each in slow["queues"]] == [(0, 4), (1, 0)]
    assert slow["queues"][0]["next_stored_ms"] == NOVEMBER_ROOT_MS + 6 * HOUR_MS
    assert (done["group"], done["lag"], done["waits_ms"]) == ("done", 0, None)


def test_a_queue_without_an_offset_is_named_and_not_counted(store: Path) -> None:
    consumed(store, half={0: 10})
    report = run(store)
    assert report["messages"] == 0
    assert "half has no offset of queue 1 of Orders: not counted" in report["text"]


def test_expired_messages_do_not_count(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.start_queue_at("Orders", 0, 5)
    for _ in range(3):
        writer.append("Orders", 0, b"x")
    writer.close()
    consumed(tmp_path / "store", late={0: 0})
    (row,) = run(tmp_path / "store")["groups"]
    assert row["lag"] == 3
    assert row["queues"][0]["next_stored_ms"] == NOVEMBER_ROOT_MS


def test_the_trend_and_the_chart_include_earlier_runs(store: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "backlog")
    consumed(store, slow={0: 2, 1: 4}, fast={0: 0, 1: 4})
    assert run(store, output=output, now_ms=NOW_MS - 2 * HOUR_MS)["groups"][0]["an_hour"] is None
    consumed(store, slow={0: 1, 1: 4}, fast={0: 8, 1: 4})
    report = run(store, output=output)
    rates = {
        row["group"]: (row["lag"], row["an_hour"], row["hours_left"]) for row in report["groups"]
    }
    assert rates == {"slow": (9, 0.5, None), "fast": (2, -4.0, 0.5)}
    page = Path(report["output"]).read_text()
    assert page.count("<polyline") == 2 and "Orders@slow" in page
    lines = report["text"].splitlines()
    assert lines[0].split() == [
        "group",
        "topic",
        "messages",
        "time",
        "lag",
        "change",
        "per",
        "hour",
        "time",
        "left",
    ]
    assert lines[2].split()[:3] == ["fast", "Orders", "2"] and lines[2].endswith("30.0 min")


def test_a_truncated_history_line_is_skipped(store: Path, tmp_path: Path) -> None:
    consumed(store, slow={0: 6, 1: 4})
    output = tmp_path / "backlog"
    run(store, output=str(output), now_ms=NOW_MS - HOUR_MS)
    with (output / "history.jsonl").open("a") as file:
        file.write('{"ms": 17')
    assert run(store, output=str(output))["groups"][0]["an_hour"] == 0


def test_a_history_that_cannot_be_synced_is_an_error_and_stays_as_it_was(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut could leave an empty history."""
    consumed(store, slow={0: 6, 1: 4})
    output = tmp_path / "backlog"
    run(store, output=str(output), now_ms=NOW_MS - HOUR_MS)
    history = (output / "history.jsonl").read_text()
    monkeypatch.setattr(os, "fdatasync", Mock(side_effect=OSError(EIO, "Input/output error")))
    with pytest.raises(StoreError, match=r"history\.jsonl.*check the disk"):
        run(store, output=str(output))
    assert (output / "history.jsonl").read_text() == history


def test_groups_and_topics_can_be_selected(store: Path) -> None:
    consumed(store, a={0: 1}, b={0: 2})
    assert [row["group"] for row in run(store, groups=["b"])["groups"]] == ["b"]
    assert run(store, topics=["Bills"])["text"] == "No group has consumed from this store."


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "backlog needs the argument store"),
        ({"store": "/nowhere"}, "/nowhere is no store directory: the path does not exist"),
        ({"store": "{tmp}"}, "is no store directory: "),
        ({"store": "{tmp}", "corn": 1}, "backlog has no argument corn; it has store, "),
        ({"store": "{tmp}", "groups": "a"}, "groups = 'a' is not a list"),
        ({"store": "{tmp}", "trend_hours": "x"}, "trend_hours = 'x' is not a number"),
    ],
)
def test_invalid_arguments_are_rejected_with_one_sentence(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    given = {
        name: value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value
        for name, value in given.items()
    }
    with pytest.raises(StoreError) as refused:
        load_job("backlog").check(given)
    assert sentence in str(refused.value)


def test_damaged_offsets_are_reported(store: Path) -> None:
    consumed(store)
    (store / "config" / "consumerOffset.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be used"):
        run(store)


@pytest.mark.slow
def test_backlog_needs_neither_spark_nor_numpy(store: Path) -> None:
    consumed(store, slow={0: 6, 1: 4})
    program = (
        "import sys; from spark.jobs import load_job; job = load_job('backlog');"
        f"job.main(None, {{'store': {str(store)!r}}});"
        "print([n for n in ('numpy', 'pyarrow', 'pyspark') if n in sys.modules],"
        "job.needs_spark({}))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines()[-1] == "[] False"
