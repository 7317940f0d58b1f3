"""The traffic job against figures computed by hand; no JVM."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.jobs import load_job, traffic
from storage.errors import StoreError
from tests.spark.jobs.stores import MINUTE_MS, orders
from tests.spark.store_writer import NOVEMBER_ROOT_MS


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return orders(tmp_path_factory.mktemp("traffic")).root


def run(store: Path, **more: Any) -> Any:
    return traffic.main(None, {"store": str(store), **more})


@pytest.mark.parametrize("range_bytes", [64 << 20, 500], ids=["one part", "many parts"])
def test_rates_sizes_tags_and_producers_of_each_topic(store: Path, range_bytes: int) -> None:
    report = run(store, range_bytes=range_bytes)
    found, bills = report["topics"]
    record_bytes = found.pop("record_bytes")
    assert found == {
        "topic": "Orders",
        "messages": 30,
        "body_bytes": 2000,
        "largest_body": 100,
        "peak_messages": 20,
        "peak_minute_ms": NOVEMBER_ROOT_MS + 2 * MINUTE_MS,
        "first_minute_ms": NOVEMBER_ROOT_MS,
        "last_minute_ms": NOVEMBER_ROOT_MS + 2 * MINUTE_MS,
        "tags": [{"tags": None, "messages": 20}, {"tags": "new", "messages": 10}],
        "producers": [
            {"host": "10.0.0.2", "messages": 20, "body_bytes": 1000},
            {"host": "10.0.0.1", "messages": 10, "body_bytes": 1000},
        ],
    }
    assert record_bytes > 2000 + 30 * 91
    assert (bills["topic"], bills["messages"]) == ("Bills", 1)
    assert report["rows"] == 31
    line = report["text"].splitlines()[1]
    assert line.split()[:6] == ["Orders", "30", "2,000", "66", "100", "20"]


def test_every_minute_is_in_the_parquet_and_on_the_page(store: Path, tmp_path: Path) -> None:
    report = run(store, output=str(tmp_path / "out"))
    rows = parquet.read_table(tmp_path / "out" / "traffic.parquet").to_pylist()
    assert [(row["topic"], row["minute"], row["messages"]) for row in rows] == [
        ("Bills", NOVEMBER_ROOT_MS, 1),
        ("Orders", NOVEMBER_ROOT_MS, 10),
        ("Orders", NOVEMBER_ROOT_MS + 2 * MINUTE_MS, 20),
    ]
    assert "Messages per second" in Path(report["output"]).read_text()


def test_topics_and_times_can_be_selected(store: Path) -> None:
    report = run(store, topics=["Orders"], since="2026-11-20T00:00:05", until="2026-11-20T00:01")
    assert [(each["topic"], each["messages"]) for each in report["topics"]] == [("Orders", 5)]
    assert run(store, until=5)["text"] == "No messages were stored in that time."
    everything = run(store, system_topics=True)
    assert {each["topic"] for each in everything["topics"]} == {"Orders", "Bills", "%RETRY%group"}


@pytest.mark.parametrize("name", ["traffic", "latency"])
def test_invalid_arguments_are_rejected(store: Path, name: str) -> None:
    job = load_job(name)
    with pytest.raises(StoreError, match="topic x not found in"):
        job.check({"store": str(store), "topics": ["x"]})
    with pytest.raises(StoreError, match="invalid since 'soon'"):
        job.main(None, {"store": str(store), "since": "soon"})
    assert not job.needs_spark({"store": str(store)})
    assert job.needs_spark({"store": str(store), "with_spark": True})
