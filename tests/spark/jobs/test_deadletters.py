"""The deadletters job reports dead-letter topics by group; no JVM."""

from pathlib import Path
from typing import Any

import pytest

from spark.jobs import deadletters
from storage.errors import StoreError
from tests.spark.jobs.stores import orders
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter

HOUR_MS = 3_600_000


class DeadLetters(StoreWriter):
    """A store with three dead letters of billing, and one of shipping."""

    def dead(self, group: str, retries: int, origin: str, hours: int, body: bytes) -> None:
        properties = {"RETRY_TOPIC": origin, "ORIGIN_MESSAGE_ID": f"ID{hours}", "KEYS": f"k{hours}"}
        stored_ms = NOVEMBER_ROOT_MS + hours * HOUR_MS
        self.append(
            f"%DLQ%{group}", 0, body, properties, store_timestamp=stored_ms, reconsume_times=retries
        )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = DeadLetters(tmp_path_factory.mktemp("dead"))
    writer.append("Orders", 0, b"alive")
    writer.dead("billing", 17, "Orders", 1, b"first")
    writer.dead("billing", 17, "Orders", 2, b"second")
    writer.dead("billing", 1, "Bills", 3, b"third \xff")
    writer.dead("shipping", 3, "Orders", 4, b"fourth")
    return writer.close().root


def run(store: Path, **more: Any) -> Any:
    now_ms = NOVEMBER_ROOT_MS + 10 * HOUR_MS
    return deadletters.main(None, {"store": str(store), "now_ms": now_ms, **more})


@pytest.mark.parametrize("range_bytes", [64 << 20, 100], ids=["one part", "many parts"])
def test_each_group_is_reported_with_reasons_retries_age_and_samples(
    store: Path, range_bytes: int
) -> None:
    report = run(store, samples=2, range_bytes=range_bytes)
    billing, shipping = report["groups"]
    samples = billing.pop("samples")
    assert billing == {
        "group": "billing",
        "messages": 3,
        "reasons": {"given up after 17 deliveries": 2, "given up at once": 1},
        "retries": {"17": 2, "1": 1},
        "origins": {"Orders": 2, "Bills": 1},
        "oldest_ms": NOVEMBER_ROOT_MS + HOUR_MS,
        "newest_ms": NOVEMBER_ROOT_MS + 3 * HOUR_MS,
    }
    assert [each["queue_offset"] for each in samples] == [2, 1]
    assert samples[0]["body"] == "third \\xff"
    assert (samples[0]["origin_topic"], samples[0]["origin_message_id"]) == ("Bills", "ID3")
    assert (shipping["group"], shipping["messages"]) == ("shipping", 1)
    assert report["text"].splitlines()[1].split()[:6] == ["billing", "3", "9.0", "h", "7.0", "h"]


def test_the_table_has_the_reason_of_the_listeners_failure(tmp_path: Path) -> None:
    """Regression: only --json did."""
    writer = StoreWriter(tmp_path / "store")
    why = {"TROUPE_FAILURE": "KeyError: 'price'", "RETRY_TOPIC": "Orders"}
    writer.append("%DLQ%billing", 0, b"a book", why)
    assert """, failed with "KeyError: 'price'": """ in run(writer.close().root)["text"]


def test_groups_can_be_selected(store: Path) -> None:
    assert [each["group"] for each in run(store, groups=["shipping"])["groups"]] == ["shipping"]
    with pytest.raises(StoreError, match="group unknown has no dead letters in"):
        run(store, groups=["unknown"])


def test_a_store_without_dead_letters_says_so(tmp_path: Path) -> None:
    assert run(orders(tmp_path / "store").root)["text"] == "No dead letters found."
