"""The latency job: percentiles of histograms, and latencies written into a store."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from spark.analysis.latency import Histogram, Traces, bucket_of, upper_of
from spark.jobs import latency
from tests.spark.jobs.stores import orders
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter


def test_a_bucket_holds_its_values_and_is_narrow() -> None:
    values = np.unique(np.concatenate([np.arange(5000), np.logspace(1, 12, 5000).astype(np.int64)]))
    buckets = bucket_of(values)
    assert (np.diff(buckets) >= 0).all()
    for value, bucket in zip(values.tolist(), buckets.tolist(), strict=True):
        assert value <= upper_of(bucket) <= value * 1.008
        assert bucket == 0 or upper_of(bucket - 1) < value


def test_percentiles_agree_with_the_sorted_values() -> None:
    random = Random(4)
    values = [int(random.expovariate(1 / 200)) for _ in range(3000)]
    parts = [Histogram(), Histogram()]
    parts[0].add(np.array(values[:1000]))
    parts[1].add(np.array(values[1000:]))
    parts[0].merge(parts[1])
    for share in (0.5, 0.99, 0.999):
        exact = sorted(values)[int(np.ceil(share * len(values))) - 1]
        found = parts[0].percentile(share)
        assert found is not None and exact <= found <= exact * 1.008
    assert parts[0].percentile(1) == max(values)
    assert Histogram().percentile(0.5) is None


def test_messages_stored_before_they_were_born_are_counted_separately() -> None:
    histogram = Histogram()
    histogram.add(np.array([-5, 3, -1]))
    assert (histogram.negative, histogram.total, histogram.percentile(0.99)) == (2, 1, 3)


def run(store: Path, **more: Any) -> Any:
    return latency.main(None, {"store": str(store), **more})


@pytest.mark.parametrize("range_bytes", [64 << 20, 500], ids=["one part", "many parts"])
def test_the_latency_from_birth_to_store_is_reported(tmp_path: Path, range_bytes: int) -> None:
    report = run(orders(tmp_path / "store").root, range_bytes=range_bytes)
    bills, found = report["latencies"]
    assert found == {
        "way": "born → stored",
        "name": "Orders",
        "messages": 30,
        "p50_ms": 3,
        "p99_ms": 3,
        "p999_ms": 3,
        "largest_ms": 3,
        "negative": 0,
    }
    assert (bills["name"], bills["messages"], report["rows"]) == ("Bills", 1, 31)


def test_the_latency_to_consumption_is_reported_from_traces(tmp_path: Path) -> None:
    writer = orders(tmp_path / "store")
    records = []
    for number, late_ms in ((0, 40), (1, 60), (99, 1)):
        begun = NOVEMBER_ROOT_MS + number * 1000 + late_ms
        records.append(
            f"SubBefore\x01{begun}\x01region\x01billing\x01R{number}\x01U{number}\x010\x01"
        )
    records.append("SubAfter\x01R0\x01U0\x015\x01true\x01\x010")
    writer.append("RMQ_SYS_TRACE_TOPIC", 0, "\x02".join(records).encode())
    writer.close()
    report = run(writer.root, output=str(tmp_path / "out"))
    consumed = [row for row in report["latencies"] if row["way"] == "stored → consumed"]
    assert [(row["name"], row["messages"], row["p50_ms"], row["p99_ms"]) for row in consumed] == [
        ("Orders → billing", 2, 40, 60)
    ]
    page = Path(report["output"]).read_text()
    assert "stored → consumed, p99 in ms" in page


def test_delayed_messages_and_dead_letters_are_reported_separately(tmp_path: Path) -> None:
    """Regression: a message that was to wait 10 s made its topic's p99 10,003 ms."""
    writer = orders(tmp_path / "store")
    due = NOVEMBER_ROOT_MS
    delayed = {"DELAY": "3", "REAL_TOPIC": "Orders", "REAL_QID": "0"}
    writer.append("Orders", 0, b"due", delayed, store_timestamp=due, born_timestamp=due - 10_000)
    writer.append(
        "Orders",
        0,
        b"due",
        {"TAGS": "a", **delayed},
        store_timestamp=due,
        born_timestamp=due - 10_000,
    )
    timer = {"REAL_TOPIC": "Orders", "REAL_QID": "0", "TIMER_OUT_MS": str(due)}
    writer.append("Orders", 0, b"due", timer, store_timestamp=due, born_timestamp=due - 10_000)
    writer.append("Orders", 0, b"sent", {"MYDELAY": "3", "REAL_TOPIC": "x"})
    writer.append(
        "%DLQ%billing",
        0,
        b"given up",
        {"DELAY": "3", "REAL_TOPIC": "x"},
        store_timestamp=due,
        born_timestamp=due - 10_000,
    )
    writer.close()
    found = {
        (row["way"], row["name"]): (row["messages"], row["p99_ms"])
        for row in run(writer.root, system_topics=True)["latencies"]
    }
    assert found == {
        ("born → stored", "Bills"): (1, 3),
        ("born → stored", "Orders"): (31, 3),
        ("born → delivered after a delay", "Orders"): (3, 10_000),
        ("born → retried", "%RETRY%group"): (3, 3),
        ("born → dead letter", "%DLQ%billing"): (1, 10_000),
    }


def test_even_share_of_many_traces_is_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = Traces(keys_max=50)
    for number in range(1000):
        for group in ("one", "other"):
            traces.add(f"U{number}", group, number)
    assert traces.consumptions == 2000
    assert 25 <= len(traces.begun) <= 50 and traces.every in (16, 32, 64)
    taken = sorted(int(key[1:]) for key in traces.begun)
    assert taken[0] < 250 and taken[-1] >= 750, "from the beginning to the end"
    assert all(len(told) == 2 for told in traces.begun.values())

    monkeypatch.setattr(latency, "TRACED_MAX", 2)
    writer = orders(tmp_path / "store")
    told = [f"SubBefore\x01{NOVEMBER_ROOT_MS}\x01r\x01g\x01R\x01U{n}\x010" for n in range(10)]
    writer.append("RMQ_SYS_TRACE_TOPIC", 0, "\x02".join(told).encode())
    writer.close()
    report = run(writer.root)
    assert (report["traced_consumptions"], report["traced_every"] > 1) == (10, True)
    assert f"of one in {report['traced_every']} messages" in report["text"]


def test_an_empty_log_is_reported(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.close()
    assert run(writer.root)["text"] == "No messages were stored in that time."
