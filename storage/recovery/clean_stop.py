"""The record of a clean stop: what the next start need not find out by reading.

`<root>/troupemq/clean_stop.json` (checked_json), written when everything is on disk and before
`abort` goes:

    logMinOffset, logEndOffset   where the log begins and ends
    storeTimestamp               of the newest record, ms
    checkpoint                   its three timestamps, ms
    queues                       topic -> queue id -> [min offset, max offset, max physical offset]
    index                        name -> header of each index file, hexadecimal
    indexCoveredOffset           up to where the index knows the log
    files                        our own small files that were there, below the root
    tables                       name -> number of entries of each config file

The last two may be missing: then nothing is said of what they would tell.

The official broker may have run since, and knows nothing of this file. So it is believed only if
the log begins where it says, has zeros behind its end, and the checkpoint has the same timestamps.
"""

from dataclasses import dataclass, field
from typing import Any

from storage.config import StoreConfig
from storage.files.below import name_fault
from storage.files.checked_json import ODD_VALUES, read_checked, write_checked
from storage.files.disk import Disk
from storage.files.mapped_file_queue import MappedFileQueue
from storage.index.index_layout import HEADER_BYTES
from storage.recovery.checkpoint import Checkpoint

OWN_FILES = ("troupemq/queues.json", "troupemq/replica")
"""Of ours, below the root, those whose absence nothing else would show."""
_ZEROS_LOOKED_AT_BYTES = 4096

KnownQueues = dict[tuple[str, int], tuple[int, int, int]]
"""(topic, queue id): min offset, max offset, max physical offset."""


@dataclass(slots=True)
class CleanStop:
    """How a store was left."""

    min_offset: int
    end_offset: int
    store_timestamp: int
    checkpoint: tuple[int, int, int]
    queues: KnownQueues = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    index_covered_offset: int = 0
    files: tuple[str, ...] = ()
    """Of `OWN_FILES` those that were there; their paths below the root."""
    tables: dict[str, int] = field(default_factory=dict)
    """How many entries each config file had."""

    def agrees_with(self, queue: MappedFileQueue, checkpoint: Checkpoint) -> bool:
        """Whether the log and the checkpoint are as they were. Raises OSError."""
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
    """Name and header of every file of an index. Raises OSError."""
    headers = {}
    for name in disk.listdir(directory):
        file = disk.open(f"{directory}/{name}", read_only=True)
        try:
            headers[name] = file.pread(HEADER_BYTES, 0).hex()
        finally:
            file.close()
    return headers


def write_clean_stop(config: StoreConfig, disk: Disk, stop: CleanStop) -> None:
    """Puts the record on disk. Raises StoreError."""
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
    """The record, or None if there is none that can be believed."""
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
        raise ValueError("a value is of another kind")
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
    """Takes the record away: it holds for one start. Raises OSError."""
    if disk.exists(config.clean_stop_path):
        disk.unlink(config.clean_stop_path)
