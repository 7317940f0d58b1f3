"""Old log files and the messages that their deletion removes; the retention job's work."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from protocol.topic_names import is_system_topic
from spark.decoding.log_walk import walk
from spark.decoding.store_files import GAP_FILLER_BYTES, Store, StoreFile, list_files
from storage.files.disk import RealDisk
from storage.retention.archive_manifest import ArchiveEnds
from storage.retention.unarchived import StoreOnDisk, Unarchived


class WantedRetention(Protocol):
    """The job's arguments that the work needs."""

    @property
    def store(self) -> str: ...
    @property
    def commit_log(self) -> str | None: ...
    @property
    def published_offset(self) -> int | None: ...
    @property
    def archive(self) -> str | None: ...


def expiring(wanted: WantedRetention, before_ms: int) -> list[StoreFile]:
    """Return the oldest files of the log, up to the first with a message at or after `before_ms`.

    Never returns the last file, nor the one that contains the published offset. A scan of each file
    finds its last message.
    """
    store = Store(wanted.store, wanted.commit_log)
    found = [file for name in _log_dirs(wanted) for file in list_files(Path(name))]
    files = sorted(found, key=lambda file: file.first)
    old = []
    for index, file in enumerate(files[:-1]):
        if wanted.published_offset is not None and file.end > wanted.published_offset:
            break
        newest = [int(part.store_timestamps.max()) for part in walk(store.log.file(index))]
        if newest and max(newest) >= before_ms:
            break
        old.append(file)
    return old


def unarchived(wanted: WantedRetention) -> list[Unarchived]:
    """Return the first message of each queue that the archive lacks, by the rule of cleaning.

    In the order of the log. Without an archive, all messages count as missing. Raises StoreError.
    """
    disk = RealDisk()
    ends = {} if wanted.archive is None else ArchiveEnds(disk, wanted.archive).read()
    queues_dir = f"{wanted.store}/consumequeue"
    store = StoreOnDisk(disk, queues_dir, _log_dirs(wanted), wanted.published_offset)
    return store.first_unarchived(ends)


def removed(wanted: WantedRetention, end: int, missing: list[Unarchived]) -> list[dict[str, Any]]:
    """Return per topic the messages with records before `end`, and those that no archive has."""
    store = Store(wanted.store, wanted.commit_log)
    firsts = {(each.topic, each.queue_id): each.queue_offset for each in missing}
    topics: dict[str, dict[str, Any]] = {}
    for topic, queue_id in store.queue_names():
        files = store.queue(topic, queue_id)
        is_system = is_system_topic(topic)
        row = topics.setdefault(
            topic,
            {
                "topic": topic,
                "messages": 0,
                "bytes": 0,
                "not_archived": 0,
                "is_system": is_system,
            },
        )
        for first, units in files.chunks(files.min_offset):
            starts = units["physical_offset"].astype(np.int64)
            sizes = units["record_bytes"].astype(np.int64)
            going = (sizes > 0) & (sizes != GAP_FILLER_BYTES) & (starts < end)
            going &= starts >= store.log.min_offset
            row["messages"] += int(going.sum())
            row["bytes"] += int(sizes[going].sum())
            if is_system:
                row["not_archived"] += int(going.sum())
            elif (topic, queue_id) in firsts:
                numbers = np.arange(first, first + len(units))
                row["not_archived"] += int((going & (numbers >= firsts[topic, queue_id])).sum())
    found = [row for row in topics.values() if row["messages"]]
    return sorted(found, key=lambda row: (-row["messages"], row["topic"]))


def _log_dirs(wanted: WantedRetention) -> list[str]:
    return (wanted.commit_log or str(Path(wanted.store) / "commitlog")).split(",")
