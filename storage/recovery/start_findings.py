"""Differences between a store at its start and after its last clean stop.

The record of that stop (clean_stop) reveals missing files, one finding each. This also works if its
statements about log and queues are no longer trusted.
"""

from collections.abc import Mapping

from storage.config import StoreConfig
from storage.errors import Finding
from storage.files.checked_json import read_checked
from storage.files.disk import Disk
from storage.recovery.checkpoint import Checkpoint
from storage.recovery.clean_stop import CleanStop
from storage.tables.table_counts import lost_tables

REBUILD_ORDERED = Finding(
    "store", "a rebuild was ordered: queues, index and transaction table are rebuilt from the log"
)


def made_anew(doubt: str) -> str:
    """Return what happens to a doubtful transaction table."""
    return f"it is rebuilt from the log: {doubt}"


def record_findings(
    config: StoreConfig, disk: Disk, record: CleanStop | None, *, is_believed: bool
) -> list[Finding]:
    """Return the findings about the record itself. Raises OSError."""
    path = config.clean_stop_path
    if record is not None:
        if is_believed:
            return []
        text = "log or checkpoint differ from the last clean stop, perhaps by another broker: "
        return [Finding("store", text + "the end of the log is read", False)]
    if disk.exists(path):
        return [Finding("store", f"{path} is damaged: the end of the log is read")]
    if disk.exists(config.queue_list_path):
        return [Finding("store", f"{path} is missing: the end of the log is read", False)]
    return []


def lost_end(record: CleanStop | None, end_offset: int) -> list[Finding]:
    """Return a finding if the log is shorter than at the last clean stop; no broker shortens it."""
    if record is None or record.end_offset <= end_offset:
        return []
    text = f"it ends at {end_offset}; at the last clean stop, it ended at {record.end_offset}"
    return [Finding("commit log", f"{text}: the data between them is lost")]


def file_findings(config: StoreConfig, disk: Disk, record: CleanStop | None) -> list[Finding]:
    """Return the findings about TroupeMQ's own small files and the tables. Raises OSError."""
    found = [] if record is None else lost_tables(config, disk, record.tables)
    known = {f"{config.root}/{name}" for name in (() if record is None else record.files)}
    path = config.queue_list_path
    if not disk.exists(path):
        if path in known:
            found.append(Finding("store", f"{path} is missing: it is rebuilt"))
    elif read_checked(disk, path) is None:
        found.append(Finding("store", f"{path} is damaged: it is rebuilt"))
    path = config.replica_mark_path
    if not disk.exists(path):
        if path in known:
            text = f"{path} is missing, the mark of a slave's store: a slave's start creates it"
            text += " again, a master's start does not search for topics that no table names"
            found.append(Finding("store", text))
    elif disk.is_dir(path) or disk.read_bytes(path):
        text = f"{path} should be an empty file: it counts as the mark of a slave's store"
        found.append(Finding("store", text))
    return found


def checkpoint_findings(checkpoint: Checkpoint, *, log_is_empty: bool) -> list[Finding]:
    """Return the findings about the loaded checkpoint."""
    if not checkpoint.fault or (log_is_empty and not checkpoint.found):
        return []
    return [Finding("checkpoint", f"{checkpoint.fault}: more of the log is read")]


def index_findings(
    directory: str, known: Mapping[str, str], headers: Mapping[str, str]
) -> list[Finding]:
    """Return the index files missing since the last clean stop; `index_doubts` has the others."""
    if known and not headers:
        count = "one file" if len(known) == 1 else f"{len(known)} files"
        text = f"{directory} is missing or empty instead of {count}: it is rebuilt from the log"
        return [Finding("index", text)]
    return [
        Finding("index", f"{directory}/{name} is missing: it is rebuilt from the log")
        for name in sorted(known)
        if name not in headers
    ]


def index_doubts(known: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return, by name, why an index file is not trusted although it is consistent."""
    doubts = {
        name: "its header differs from the last clean stop"
        for name, header in headers.items()
        if known.get(name, header) != header
    }
    missing = min(known.keys() - headers.keys(), default=None)
    behind = [name for name in headers if missing is not None and name > missing]
    if behind:
        doubts.setdefault(min(behind), f"{missing} before it is missing")
    return doubts
