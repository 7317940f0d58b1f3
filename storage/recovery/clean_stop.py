"""Record of a clean stop, which saves the next start from reading the store.

`<root>/troupemq/clean_stop.json` (checked_json) is written when everything is synced, before
`abort` is removed:

    logMinOffset, logEndOffset   min and end offset of the log
    storeTimestamp               of the newest record, ms
    checkpoint                   its three timestamps, ms
    queues                       topic -> queue id -> [min offset, max offset, max physical offset]
    index                        name -> header of each index file, hexadecimal
    indexCoveredOffset           end of the indexed part of the log
    files                        TroupeMQ's own small files that existed, below the root
    tables                       name -> number of entries of each config file

The last two are optional.

RocketMQ may have run since and does not update this file. The record is therefore trusted only if
the log begins at its offset, zeros follow its end, and the checkpoint has its timestamps.
"""

from dataclasses import dataclass, field
from typing import Any

from storage.config import StoreConfig
from storage.files.below import name_fault
from storage.files.checked_json import ODD_VALUES, read_checked, write_checked
from storage.files.disk import Disk
from storage.files.mapped_file import MappedFileQueue
from storage.index.index_layout import HEADER_BYTES
from storage.recovery.checkpoint import Checkpoint

OWN_FILES = ("troupemq/queues.json", "troupemq/replica")
"""TroupeMQ's own files, below the root, that only this record reveals as missing."""
_ZEROS_LOOKED_AT_BYTES = 4096

KnownQueues = dict[tuple[str, int], tuple[int, int, int]]
"""Min offset, max offset and max physical offset by (topic, queue id)."""


@dataclass(slots=True)
class CleanStop:
    min_offset: int
    end_offset: int
    store_timestamp: int
    checkpoint: tuple[int, int, int]
    queues: KnownQueues = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    index_covered_offset: int = 0
    files: tuple[str, ...] = ()
    """Members of `OWN_FILES` that existed; paths below the root."""
    tables: dict[str, int] = field(default_factory=dict)
    """Number of entries of each config file."""

    def agrees_with(self, queue: MappedFileQueue, checkpoint: Checkpoint) -> bool:
        """Return whether log and checkpoint match the record. Raises OSError."""
        if queue.min_offset != self.min_offset or checkpoint.timestamps() != self.checkpoint:
            return False
        if not queue.min_offset <= self.end_offset <= queue.capacity_end or not queue.files:
            return False
        for file in queue.spanning(self.end_offset, queue.capacity_end):
            position = max(0, self.end_offset - file.first_offset)
            if any(file.file.pread(_ZEROS_LOOKED_AT_BYTES, position)):
                return False
        return True


def index_headers(disk: Disk, directory: str) -> dict[str, str]:
    """Return the header of each file of an index, by name. Raises OSError."""
    headers = {}
    for name in disk.listdir(directory):
        file = disk.open(f"{directory}/{name}", read_only=True)
        try:
            headers[name] = file.pread(HEADER_BYTES, 0).hex()
        finally:
            file.close()
    return headers


def write_clean_stop(config: StoreConfig, disk: Disk, stop: CleanStop) -> None:
    """Save the record durably. Raises StoreError."""
    queues: dict[str, dict[int, tuple[int, int, int]]] = {}
    for (topic, queue_id), offsets in stop.queues.items():
        queues.setdefault(topic, {})[queue_id] = offsets
    value = {
        "logMinOffset": stop.min_offset,
        "logEndOffset": stop.end_offset,
        "storeTimestamp": stop.store_timestamp,
        "checkpoint": stop.checkpoint,
        "queues": queues,
        "index": stop.index,
        "indexCoveredOffset": stop.index_covered_offset,
        "files": stop.files,
        "tables": stop.tables,
    }
    write_checked(disk, config.clean_stop_path, value)


def read_clean_stop(config: StoreConfig, disk: Disk) -> CleanStop | None:
    """Return the record, or None if it is missing or invalid."""
    found = read_checked(disk, config.clean_stop_path)
    try:
        return None if found is None else _parsed(found)
    except ODD_VALUES:
        return None


def _parsed(found: dict[str, Any]) -> CleanStop:
    physic_ms, logics_ms, index_ms = found["checkpoint"]
    queues: KnownQueues = {}
    for topic, by_id in found["queues"].items():
        if fault := name_fault(topic):
            raise ValueError(fault)
        for queue_id, (min_offset, max_offset, max_physical) in by_id.items():
            queues[topic, int(queue_id)] = (min_offset, max_offset, max_physical)
    ends = found["logMinOffset"], found["logEndOffset"], found["storeTimestamp"]
    covered, index = found["indexCoveredOffset"], found["index"]
    times = physic_ms, logics_ms, index_ms
    numbers = (*ends, *times, covered, *(each for known in queues.values() for each in known))
    texts = (*index, *index.values())
    if {*map(type, numbers)} != {int} or not {*map(type, texts)} <= {str}:
        raise ValueError("a value has the wrong type")
    return CleanStop(
        *ends,
        times,
        queues,
        index,
        covered,
        tuple(map(str, found.get("files", ()))),
        {str(name): int(count) for name, count in found.get("tables", {}).items()},
    )


def remove_clean_stop(config: StoreConfig, disk: Disk) -> None:
    """Remove the record, which is valid for one start. Raises OSError."""
    if disk.exists(config.clean_stop_path):
        disk.unlink(config.clean_stop_path)
