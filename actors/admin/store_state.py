"""The state of a broker's store as it is told: what lies there, and what of it is damaged."""

from actors.engine.system import ActorSystem
from actors.scrubbing.scrubber import Scrubber
from actors.tables.persisted import PersistedTable
from protocol.bodies_own import DamagedPlace, StoreState
from storage.message_store import MessageStore
from storage.recovery.recovery_report import RecoveryReport

PLACES_MAX = 200
"""Damaged places in one answer; the rest is counted."""
FINDINGS_MAX = 50


def store_state(
    store: MessageStore, system: ActorSystem, dispatched: int, recovery: RecoveryReport
) -> StoreState:
    """Return the state of a store: its content and its damage. Any thread.

    Reads nothing from the disk except its free space, and visits no queues.
    """
    log, ranges, actors = store.commit_log, store.damage.ranges, system.actors()
    try:
        disk_bytes, free_bytes = system.disk.capacity(store.config.commit_log_dir)
    except OSError:
        disk_bytes, free_bytes = 0, 0
    found = StoreState(
        log_files=len(log.queue.files),
        log_file_bytes=store.config.commit_log_file_bytes,
        log_start=log.min_offset(),
        log_end=log.end_offset,
        flushed=log.flushed_offset,
        dispatched=dispatched,
        queues=len(store.consume_queues),
        index_files=0 if store.index is None else len(store.index.files),
        disk_bytes=disk_bytes,
        disk_free_bytes=free_bytes,
        damaged_places=len(ranges),
        damaged_bytes=sum(end - start for start, end, _ in ranges),
        damage=[DamagedPlace(*each) for each in ranges[:PLACES_MAX]],
        damaged_tables=[
            each.path
            for each in actors.values()
            if isinstance(each, PersistedTable) and each.damaged_files
        ],
        found_at_start=[
            f"{each.part}: {each.text}" for each in recovery.all_findings()[:FINDINGS_MAX]
        ],
        verified_percent=100,
    )
    scrubber = actors.get("scrubber")
    if isinstance(scrubber, Scrubber):
        found.verified_percent = int(scrubber.progress * 100)
        found.verified_ms = scrubber.last_end_ms
    return found
