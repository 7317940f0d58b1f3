"""Helpers for tests of queues and index: small settings, records by number, a fake clock."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.message import BLANK_MAGIC, RecordError, RecordHead, scan_head
from storage.config import StoreConfig
from storage.queues.dispatch_entry import DispatchEntry, EntryRun

UNITS_PER_FILE = 300
RECORD_BYTES = 100
START_MS = 1_700_000_000_000
DELAY_LEVELS_MS = (1000, 5000, 10_000, 30_000, *(60_000 * n for n in range(1, 11)))
DELAY_LEVELS_MS = (*DELAY_LEVELS_MS, 1_200_000, 1_800_000, 3_600_000, 7_200_000)


def config(root: str = "/store") -> StoreConfig:
    """The file sizes of the golden stores."""
    return StoreConfig(
        root=root,
        commit_log_file_bytes=65_536,
        consume_queue_file_bytes=UNITS_PER_FILE * 20,
        max_hash_slots=64,
        max_index_entries=200,
    )


def entry(
    number: int,
    *,
    topic: bytes = b"T",
    queue_id: int = 0,
    queue_offset: int | None = None,
    tags_code: int = 0,
    sys_flag: int = 0,
    keys: tuple[bytes, ...] = (),
) -> DispatchEntry:
    """The record at 100·number of the log, stored a second after the one before it."""
    return DispatchEntry(
        topic,
        queue_id,
        number if queue_offset is None else queue_offset,
        number * RECORD_BYTES,
        RECORD_BYTES,
        tags_code,
        START_MS + number * 1000,
        sys_flag,
        keys,
    )


def run_of(entries: Sequence[DispatchEntry]) -> EntryRun:
    """Return these entries of consecutive records as a batch."""
    first = entries[0]
    sizes = [each.record_bytes for each in entries]
    return EntryRun(
        first.topic, first.queue_id, first.queue_offset, first.physical_offset, sum(sizes),
        first.store_timestamp, first.sys_flag, [each.physical_offset for each in entries], sizes,
        [each.tags_code for each in entries], [each.keys for each in entries],
    )  # fmt: skip


def golden_heads(root: Path) -> Iterator[RecordHead]:
    """Every record of a store's commit log."""
    for path in sorted((root / "commitlog").iterdir()):
        data, position = path.read_bytes(), 0
        while position < len(data):
            try:
                head = scan_head(data, position)
            except RecordError:
                return
            if head.magic == BLANK_MAGIC:
                break
            yield head
            position += head.record_bytes
