"""The retention job against a log with known files and messages; no JVM."""

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spark.archive.files import Archive, Manifest
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.jobs import retention
from spark.source.plan import last_message_at
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.files.mapped_file import MappedFileQueue
from storage.retention.archive_manifest import LastMessage
from storage.retention.archive_policy import ArchivePolicy
from storage.retention.cleaning import FILES_PER_ROUND_MAX, Cleaning, RetentionHold
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter, patch
from tests.support.archives import write_run
from tests.support.clock import ManualClock

HOUR_MS = 3_600_000
IN_A_FILE = 8
"""Number of records of just over 400 bytes in a file of 4,000 bytes."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return one message an hour, in turn for Orders, Bills and a retry topic; eight per file."""
    writer = StoreWriter(tmp_path / "store", log_file_bytes=4000)
    for number in range(30):
        topic = ("Orders", "Bills", "%RETRY%group")[number % 3]
        body = bytes(480 - 91 - len(topic))
        writer.append(topic, 0, body, store_timestamp=NOVEMBER_ROOT_MS + number * HOUR_MS)
    return writer.close().root


def run(store: Path, **more: Any) -> Any:
    return retention.main(None, {"store": str(store), **more})


def archived(store: Path, path: Path, **last: int) -> str:
    """Write an archive that has queue 0 of these topics up to a message."""
    archive = Archive(str(path))
    staged = archive.stage("x") / "data"
    staged.mkdir()
    ends: dict[tuple[str, int], LastMessage] = {}
    for topic, offset in last.items():
        found = last_message_at(Queue(Store(str(store)), topic, 0), offset)
        assert found is not None
        ends[topic, 0] = found
    archive.publish(staged, Manifest(1, "x", "store", None, 0, (), (), ends))
    return str(path)


def test_whole_files_from_before_a_time_are_deletable(store: Path) -> None:
    report = run(store, before=NOVEMBER_ROOT_MS + 17 * HOUR_MS)
    assert [Path(file).name for file in report["files"]] == [f"{0:020}", f"{4000:020}"]
    assert (report["log_offset"], report["rows"]) == (8000, 2 * IN_A_FILE)
    assert [(row["topic"], row["messages"]) for row in report["topics"]] == [
        ("Orders", 6),
        ("%RETRY%group", 5),
        ("Bills", 5),
    ]
    assert report["not_archived"] == 11  # retry topics are system topics
    assert report["text"].endswith("11 messages would be lost: no archive has them.")


def test_a_file_with_one_later_message_and_all_after_it_are_kept(store: Path) -> None:
    assert run(store, before=NOVEMBER_ROOT_MS + 7 * HOUR_MS)["files"] == []
    assert len(run(store, before=NOVEMBER_ROOT_MS + 7 * HOUR_MS + 1)["files"]) == 1


def test_the_last_file_and_unpublished_ones_are_kept(store: Path) -> None:
    late = NOVEMBER_ROOT_MS + 1000 * HOUR_MS
    assert len(run(store, before=late)["files"]) == 3
    assert len(run(store, before=late, published_offset=7999)["files"]) == 1


def test_archived_messages_do_not_count_as_lost(store: Path, tmp_path: Path) -> None:
    before = NOVEMBER_ROOT_MS + 17 * HOUR_MS
    some = archived(store, tmp_path / "some", Orders=3, Bills=4)
    report = run(store, before=before, archive=some)
    rows = {row["topic"]: row["not_archived"] for row in report["topics"]}
    assert rows == {"Orders": 2, "Bills": 0, "%RETRY%group": 5}
    assert [Path(file).name for file in report["kept_files"]] == [f"{4000:020}"]
    assert report["text"].endswith(
        "from message 4 in queue 0 of Orders on, unless its disk is full."
    )
    every = archived(store, tmp_path / "every", Orders=5, Bills=4)
    assert run(store, before=before, archive=every)["text"].endswith(
        "All messages that the archive job keeps are archived."
    )


@pytest.mark.trial(short=6, long=200)
def test_report_and_cleaning_keep_the_same_files(tmp_path: Path, seed: int) -> None:
    """Store, damage and archive are random; each file's time is that of its last message."""
    random = Random(seed)
    queues = [("Orders", 0), ("Orders", 1), ("Bills", 0), ("%RETRY%group", 0)]
    writer = StoreWriter(tmp_path / "store", log_file_bytes=4000, queue_file_bytes=200)
    for number in range(random.randrange(40, 120)):
        topic, queue_id = random.choice(queues)
        at = NOVEMBER_ROOT_MS + number * HOUR_MS
        writer.append(topic, queue_id, bytes(random.randrange(300)), store_timestamp=at)
    root = writer.close().root
    cuts = {queue: random.randrange(-1, 40) for queue in queues[:3]}
    ends = {
        (each.topic, each.queue_id): LastMessage(
            each.queue_offset, each.physical_offset, each.store_timestamp
        )
        for each in writer.records
        if each.queue_offset <= cuts.get((each.topic, each.queue_id), -1)
    }
    if ends and random.random() < 0.3:  # as in a queue that was created again
        name = random.choice(sorted(ends))
        ends[name] = replace(ends[name], store_timestamp=1)
    disk, archive = RealDisk(), str(tmp_path / "archive")
    write_run(disk, archive, 1, ends)
    for record in random.sample(writer.records, random.randrange(6)):
        # its queue offset: the record stays in the log, but is no message of that queue
        first = record.physical_offset - record.physical_offset % 4000
        patch(root / "commitlog" / f"{first:020}", record.physical_offset - first + 20, b"\x55" * 8)
    config = StoreConfig(
        root=str(root),
        commit_log_file_bytes=4000,
        consume_queue_file_bytes=200,
        delete_when=";".join(map(str, range(24))),
        retention_archive_dir=archive,
        disk_max_used_percent=95,
        disk_clean_forcibly_ratio=1.0,
    )
    log = MappedFileQueue(disk, config.commit_log_dir, 4000, "size")
    log.load()
    for file in log.files:
        of_it = [each for each in writer.records if each.physical_offset < file.end_offset]
        os.utime(file.path, (of_it[-1].store_timestamp / 1000,) * 2)
    before_ms = NOVEMBER_ROOT_MS + random.randrange(160) * HOUR_MS + 1
    clock = ManualClock(before_ms + 72 * HOUR_MS)
    clock.set_wall(before_ms + 72 * HOUR_MS)
    policy, cleaning = ArchivePolicy(config, disk), Cleaning(config, disk, clock)

    def held() -> list[RetentionHold]:
        hold = policy.hold(log.files[0], log.files[-1], 1 << 40)
        return [] if hold is None else [hold]

    report = run(root, before=before_ms, archive=archive)
    goes = [path for path in report["files"] if path not in report["kept_files"]]
    decision = cleaning.decide(log.files, 1 << 40, held)
    assert [each.file.path for each in decision.expired] == goes[:FILES_PER_ROUND_MAX]
    if len(goes) < FILES_PER_ROUND_MAX:
        kept = None if decision.kept_file is None else decision.kept_file.path
        assert kept == (report["kept_files"][0] if report["kept_files"] else None)
    for file in log.files:
        file.close()


def test_the_default_retention_time_is_that_of_the_broker(store: Path) -> None:
    now_ms = NOVEMBER_ROOT_MS + (17 + 72) * HOUR_MS
    assert len(run(store, now_ms=now_ms)["files"]) == 2
    assert "No file of the log" in run(store, now_ms=NOVEMBER_ROOT_MS)["text"]


def test_a_missing_archive_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no archive at"):
        run(store, archive=str(tmp_path / "nowhere"))
