"""Which log files are old enough to go, and what goes with them; the retention job's work."""

from typing import TYPE_CHECKING, Any

import numpy as np

from spark.archive_files import Archive, Ends
from spark.log_walk import walk
from spark.plan import is_system_topic
from spark.store_files import GAP_FILLER_BYTES, Store, StoreFile, list_files

if TYPE_CHECKING:
    from spark.jobs.retention import Arguments


def expiring(wanted: "Arguments", before_ms: int) -> list[StoreFile]:
    """The oldest files of the log, up to the first with a message of then or later.

    Never the last file, nor one that the published offset lies in. A file's last message is found
    by going through it.
    """
    from pathlib import Path

    store = Store(wanted.store, wanted.commit_log)
    directories = (wanted.commit_log or str(Path(wanted.store) / "commitlog")).split(",")
    found = [file for name in directories for file in list_files(Path(name))]
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


def removed(wanted: "Arguments", end: int) -> list[dict[str, Any]]:
    """By topic: the messages whose records lie before `end`, and those that no archive has."""
    store = Store(wanted.store, wanted.commit_log)
    ends: Ends = {}
    if wanted.archive is not None:
        archive = Archive(wanted.archive)
        runs = archive.runs()
        ends = archive.manifest(runs[-1]).ends if runs else {}
    topics: dict[str, dict[str, Any]] = {}
    for topic, queue_id in store.queue_names():
        files = store.queue(topic, queue_id)
        archived_to = ends[topic, queue_id].queue_offset + 1 if (topic, queue_id) in ends else 0
        row = topics.setdefault(
            topic,
            {
                "topic": topic,
                "messages": 0,
                "bytes": 0,
                "not_archived": 0,
                "is_system": is_system_topic(topic),
            },
        )
        for first, units in files.chunks(files.min_offset):
            starts = units["physical_offset"].astype(np.int64)
            sizes = units["record_bytes"].astype(np.int64)
            going = (sizes > 0) & (sizes != GAP_FILLER_BYTES) & (starts < end)
            going &= starts >= store.log.min_offset
            row["messages"] += int(going.sum())
            row["bytes"] += int(sizes[going].sum())
            numbers = np.arange(first, first + len(units))
            row["not_archived"] += int((going & (numbers >= archived_to)).sum())
    found = [row for row in topics.values() if row["messages"]]
    return sorted(found, key=lambda row: (-row["messages"], row["topic"]))
