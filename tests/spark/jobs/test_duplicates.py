"""The duplicates job finds keys that several messages share; no JVM."""

from pathlib import Path
from typing import Any

import pytest

from spark.jobs import duplicates
from storage.errors import StoreError
from tests.spark.jobs.stores import orders
from tests.spark.store_writer import NOVEMBER_ROOT_MS


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_repeats(tmp_path_factory.mktemp("duplicates"))


def with_repeats(root: Path, *more: tuple[str, int, dict[str, str]]) -> Path:
    """Write U3 three times in Orders, once in Bills; the key k5 in two messages; `all` in ten."""
    writer = orders(root)
    again: list[tuple[str, int, dict[str, str]]] = [
        ("Orders", 1, {"UNIQ_KEY": "U3"}),
        ("Orders", 0, {"UNIQ_KEY": "U3"}),
        ("Bills", 0, {"UNIQ_KEY": "U3"}),
        ("Orders", 0, {"UNIQ_KEY": "U77", "KEYS": "other k5"}),
        *more,
    ]
    for number, (topic, queue_id, properties) in enumerate(again):
        stored_ms = NOVEMBER_ROOT_MS + 600_000 + number
        writer.append(topic, queue_id, b"", properties, store_timestamp=stored_ms)
    return writer.close().root


WANTED = [
    ("uniqKey", "Orders", "U3", 3, (1, 1), (0, 25)),
    ("keys", "Orders", "all", 10, (0, 0), (1, 4)),
    ("keys", "Orders", "k5", 2, (1, 2), (0, 26)),
]


def as_tuples(report: Any) -> list[Any]:
    return [
        (
            row["by"],
            row["topic"],
            row["key"],
            row["count"],
            *((row[end]["queue_id"], row[end]["queue_offset"]) for end in ("first", "last")),
        )
        for row in report["duplicates"]
    ]


def run(store: Path, **more: Any) -> Any:
    return duplicates.main(None, {"store": str(store), **more})


def test_keys_of_several_messages_are_listed_with_first_and_last(store: Path) -> None:
    report = run(store)
    assert as_tuples(report) == WANTED
    assert report["too_many"] == {"uniqKey": 2, "keys": 10}
    assert report["duplicates"][0]["first"]["stored"] == "2026-11-20T00:00:03.000"
    assert "2 surplus messages by uniqKey" in report["text"]


def test_key_kind_time_range_and_limit_can_be_selected(store: Path) -> None:
    assert as_tuples(run(store, by="uniqKey")) == WANTED[:1]
    limited = run(store, by="keys", limit=1)
    assert as_tuples(limited) == WANTED[1:2]
    assert limited["text"].endswith("at least")
    late = run(store, by="uniqKey", since="2026-11-20T00:05")
    assert [(row["key"], row["count"]) for row in late["duplicates"]] == [("U3", 2)]
    assert run(store, topics=["Bills"])["text"] == "No message is stored twice."


def test_another_kind_of_key_is_refused(store: Path) -> None:
    with pytest.raises(StoreError, match="invalid by 'color': use one of uniqKey, keys, both"):
        duplicates.check({"store": str(store), "by": "color"})
