"""The retention job against a log whose files and messages are known; no JVM."""

from pathlib import Path
from typing import Any

import pytest

from spark.archive_files import Archive, Manifest
from spark.jobs import retention
from spark.plan import LastMessage
from storage.errors import StoreError
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter

HOUR_MS = 3_600_000
IN_A_FILE = 8
"""Records of 400 bytes and some in a file of 4,000."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One message an hour, in turn for Orders, Bills and a retry topic, in files of eight."""
    writer = StoreWriter(tmp_path / "store", log_file_bytes=4000)
    for number in range(30):
        topic = ("Orders", "Bills", "%RETRY%group")[number % 3]
        body = bytes(480 - 91 - len(topic))
        writer.append(topic, 0, body, store_timestamp=NOVEMBER_ROOT_MS + number * HOUR_MS)
    return writer.close().root


def run(store: Path, **more: Any) -> Any:
    return retention.main(None, {"store": str(store), **more})


def archived(path: Path, **last: int) -> str:
    """An archive that has queue 0 of these topics up to a message."""
    archive = Archive(str(path))
    staged = archive.stage("x") / "data"
    staged.mkdir()
    ends = {(topic, 0): LastMessage(offset, 0, 0) for topic, offset in last.items()}
    archive.publish(staged, Manifest(1, "x", "store", None, 0, (), (), ends))
    return str(path)


def test_whole_files_of_before_a_time_would_go(store: Path) -> None:
    report = run(store, before=NOVEMBER_ROOT_MS + 17 * HOUR_MS)
    assert [Path(file).name for file in report["files"]] == [f"{0:020}", f"{4000:020}"]
    assert (report["log_offset"], report["rows"]) == (8000, 2 * IN_A_FILE)
    assert [(row["topic"], row["messages"]) for row in report["topics"]] == [
        ("Orders", 6),
        ("%RETRY%group", 5),
        ("Bills", 5),
    ]
    assert report["not_archived"] == 11  # retries are the system's
    assert report["text"].endswith("11 messages would be lost: no archive has them.")


def test_a_file_with_one_message_of_then_stays_and_so_do_those_behind_it(store: Path) -> None:
    assert run(store, before=NOVEMBER_ROOT_MS + 7 * HOUR_MS)["files"] == []
    assert len(run(store, before=NOVEMBER_ROOT_MS + 7 * HOUR_MS + 1)["files"]) == 1


def test_the_last_file_stays_and_what_is_not_published(store: Path) -> None:
    late = NOVEMBER_ROOT_MS + 1000 * HOUR_MS
    assert len(run(store, before=late)["files"]) == 3
    assert len(run(store, before=late, published_offset=7999)["files"]) == 1


def test_what_an_archive_has_is_not_lost(store: Path, tmp_path: Path) -> None:
    before = NOVEMBER_ROOT_MS + 17 * HOUR_MS
    some = archived(tmp_path / "some", Orders=3, Bills=4)
    report = run(store, before=before, archive=some)
    rows = {row["topic"]: row["not_archived"] for row in report["topics"]}
    assert rows == {"Orders": 2, "Bills": 0, "%RETRY%group": 5}
    every = archived(tmp_path / "every", Orders=5, Bills=4)
    assert run(store, before=before, archive=every)["text"].endswith(
        "Nothing would be lost that the archive job keeps."
    )


def test_by_default_it_is_what_the_broker_keeps(store: Path) -> None:
    now_ms = NOVEMBER_ROOT_MS + (17 + 72) * HOUR_MS
    assert len(run(store, now_ms=now_ms)["files"]) == 2
    assert "No file of the log" in run(store, now_ms=NOVEMBER_ROOT_MS)["text"]


def test_an_archive_that_is_not_there_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no archive at"):
        run(store, archive=str(tmp_path / "nowhere"))
