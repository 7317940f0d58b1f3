"""An archive on disk: complete runs, each with its manifest, published by one rename.

    <output>/run=00000001/topic=ORDER/day=2026-11-20/part-….parquet
    <output>/run=00000001/_manifest.json
    <output>/_staging/<run id>/…             an unpublished run, which readers ignore
    <output>/_lock                           held by the run that writes

Spark and pyarrow ignore names that begin with _. The whole directory, read with `run`, `topic` and
`day` as partition columns, is exactly what the manifests name, while no run replaces others.
spark/archive/frame.py reads by the manifests.

`_manifest.json` is `{"manifest": …, "crc32c": …}`, its checksum taken over canonical JSON:

    format, run, run_id, store, published_offset, finished_ms
    damaged  messages that were left out: topic, queue_id, queue_offset, physical_offset, why; the
             first 10,000 of them (each queue has the count)
    files    path, topic, day, bytes, crc32c, rows, and per queue: queue_id, first, last, rows
    queues   messages of this run: topic, queue_id, first, last, rows, missed (expired before it),
             damaged (left out)
    replaces numbers of runs that a later one replaces; each run repeats those that still exist
    table    format, path and app_id, if the messages are in a table (spark/archive/table.py)
    ends     the last archived message of every queue, over all runs: topic, queue_id, queue_offset,
             physical_offset, store_timestamp; the next run starts behind it

The same rename publishes a run that replaces others (spark/archive/compact.py). Readers of the
manifests see either the old runs or the new one. The old ones stay for some time for readers in
progress, and a later run removes them. Until then, readers of the directory itself see their
messages twice.

A run and the start of the next one are published together. So each message is archived once,
whatever process is killed at any time.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time_ns
from typing import Any
from uuid import uuid4

from protocol.message import crc32c
from storage.errors import StoreError, os_sentence, reason_of
from storage.files.below import OutsideFolder, below
from storage.retention.archive_manifest import (
    FORMAT,
    MANIFEST,
    RUN_PREFIX,
    Ends,
    checksum,
    content_of,
    damaged,
    ends_of,
    made_of,
    run_number,
)

TABLE = "table"
"""Folder of the table, below that of its archive."""

DAMAGED_MAX = 10_000
"""Maximum damaged messages named in a manifest, which counts all."""

_GLOB_CHARACTERS = frozenset("*?[]{}\\")
"""Characters that no written file name has: topics have them escaped, as in Hive."""

_STAGING = "_staging"
_REPLACED = "replaced-"
_LOCK = "_lock"
_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Rows of one queue in one file."""

    queue_id: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file; `path` is relative to its run's directory."""

    path: str
    topic: str
    day: str
    bytes: int
    crc32c: str
    rows: int
    queues: tuple[QueueRows, ...]


@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """Messages of one queue in a run."""

    topic: str
    queue_id: int
    first: int
    last: int
    rows: int
    missed: int
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A damaged message between others, which no file contains."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    """Physical offset in its unit."""

    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """Table that holds the messages in place of the archive's own files."""

    format: str
    path: str
    app_id: str
    """Id of the table's transactions; their version is the number of a run."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a run, and the start of the next one."""

    run: int
    run_id: str
    store: str
    published_offset: int | None
    finished_ms: int
    files: tuple[ArchivedFile, ...]
    queues: tuple[ArchivedQueue, ...]
    ends: Ends
    damaged: tuple[DamagedMessage, ...] = ()
    replaces: tuple[int, ...] = ()
    table: Table | None = None

    def encode(self) -> bytes:
        ends = [
            {"topic": topic, "queue_id": queue_id, **asdict(last)}
            for (topic, queue_id), last in sorted(self.ends.items())
        ]
        content = {
            "format": FORMAT,
            "run": self.run,
            "run_id": self.run_id,
            "store": self.store,
            "published_offset": self.published_offset,
            "finished_ms": self.finished_ms,
            "damaged": [asdict(each) for each in self.damaged],
            "replaces": list(self.replaces),
            **({} if self.table is None else {"table": asdict(self.table)}),
            "files": [asdict(file) for file in self.files],
            "queues": [asdict(queue) for queue in self.queues],
            "ends": ends,
        }
        return json.dumps({"manifest": content, "crc32c": checksum(content)}, indent=1).encode()

    @classmethod
    def decode(cls, text: bytes, path: Path) -> "Manifest":
        """Decode a manifest. Raises StoreError if the bytes are not those that were written."""
        content = content_of(text, str(path))
        try:
            return cls._of(content, path)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(str(path)) from None

    @classmethod
    def _of(cls, content: dict[str, Any], path: Path) -> "Manifest":
        """Build a manifest. Raises StoreError, and other errors for values of other types."""
        for entry in content["files"]:
            name = str(entry["path"])
            below(str(path.parent), *name.split("/"))
            if not _GLOB_CHARACTERS.isdisjoint(name):  # Spark would read all files that match
                raise OutsideFolder(f"{path} has {name!r}, which is a pattern, not a file name")
        known = {
            "files": tuple(_file(entry) for entry in content["files"]),
            "queues": tuple(made_of(ArchivedQueue, entry) for entry in content["queues"]),
            "damaged": tuple(made_of(DamagedMessage, each) for each in content.get("damaged", ())),
            "replaces": tuple(map(int, content.get("replaces", ()))),
            "table": made_of(Table, content["table"]) if "table" in content else None,
            "ends": ends_of(content, str(path)),
        }
        plain = ("run", "run_id", "store", "published_offset", "finished_ms")
        return made_of(cls, {**{name: content[name] for name in plain}, **known})


class Archive:
    """An archive directory."""

    def __init__(self, output: str) -> None:
        self.output = Path(output).absolute()

    def own(self, *names: str) -> Path:
        """Return a path below the archive to write to, or that of a table.

        Raises OutsideFolder for a link that leads out of the archive, as its files may have been in
        other hands.
        """
        return Path(below(str(self.output), *names, real_path=os.path.realpath))

    def run_directory(self, run: int) -> Path:
        return self.output / f"{RUN_PREFIX}{run:08}"

    def runs(self) -> list[int]:
        """Return the numbers of the published runs that no other run replaces, in order.

        Raises StoreError.
        """
        there = self._runs_there()
        replaced = self.manifest(there[-1]).replaces if there else ()
        return [run for run in there if run not in replaced]

    def _runs_there(self) -> list[int]:
        try:
            found = [run_number(path.name) for path in self.output.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(os_sentence(error)) from None
        return sorted(number for number in found if number is not None)

    def manifest(self, run: int) -> Manifest:
        """Return the manifest of a run. Raises StoreError if it is damaged or missing."""
        path = self.run_directory(run) / MANIFEST
        try:
            return self._located(Manifest.decode(path.read_bytes(), path))
        except FileNotFoundError as error:
            raise StoreError(f"{path} is missing: restore it, or archive elsewhere") from error

    def _located(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the table in the archive's folder, whatever path it names."""
        if manifest.table is None:
            return manifest
        return replace(manifest, table=replace(manifest.table, path=str(self.own(TABLE))))

    def file_path(self, run: int, file: ArchivedFile) -> Path:
        """Return the path of a file of a run. Raises OutsideFolder."""
        return path_below(self.run_directory(run), file)

    def newest(self) -> Manifest | None:
        """Return the manifest of the last run, None before the first. Raises StoreError."""
        there = self._runs_there()
        return self.manifest(there[-1]) if there else None

    def decided(self) -> tuple[Path, Manifest] | None:
        """Return a table's staged run that was killed before publishing its manifest, or None."""
        newest = self.newest()
        for path in (self.output / _STAGING).glob(f"*/data/{MANIFEST}"):
            try:
                found = self._located(Manifest.decode(path.read_bytes(), path))
            except StoreError:
                continue  # the run was killed while writing this manifest
            if found.table is not None and found.run == (newest.run + 1 if newest else 1):
                return self.own(*path.parent.relative_to(self.output).parts), found
        return None

    @contextmanager
    def writing(self, grace_ms: float = 0) -> Iterator[None]:
        """Lock out other runs, and remove the runs that were replaced before `grace_ms`.

        The lock ends with the process at the latest. Raises StoreError.
        """
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            lock = self.own(_LOCK).open("ab")
        except OSError as error:
            raise StoreError(f"cannot write to {self.output}: {reason_of(error)}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(f"another run is writing to {self.output}: wait for it") from error
            self.remove_replaced(grace_ms)
            yield

    def stage(self, run_id: str) -> Path:
        """Return an empty directory for a run's files; remove those that killed runs left."""
        staging = self.own(_STAGING)
        if staging.is_dir():
            shutil.rmtree(staging)
        path = staging / run_id
        path.mkdir(parents=True)
        return path

    def publish(self, staged: Path, manifest: Manifest) -> Path:
        """Flush files and manifest to the disk, then publish them by one rename.

        Raises StoreError if the run's number is taken, which the lock prevents.
        """
        hidden = {*manifest.replaces, *self._replaced_there()}
        seal(staged, replace(manifest, replaces=tuple(sorted(hidden))))
        target = self.run_directory(manifest.run)
        try:
            staged.rename(target)
        except OSError as error:
            raise StoreError(f"cannot publish {target}: {reason_of(error)}") from error
        _sync(self.output)
        return target

    def remove_replaced(self, grace_ms: float = 0) -> None:
        """Remove the runs that were replaced before `grace_ms`, each by one rename."""
        now_ms = time_ns() // 1_000_000
        for run in self._replaced_there():
            if grace_ms and now_ms - self._replaced_ms(run) < grace_ms:
                continue
            gone = self.own(_STAGING) / f"{_REPLACED}{run}-{uuid4().hex}"
            gone.parent.mkdir(exist_ok=True)
            self.run_directory(run).rename(gone)
            if gone.is_symlink():  # an operator has moved the run elsewhere
                gone.unlink()
            else:
                shutil.rmtree(gone)

    def _replaced_there(self) -> list[int]:
        there, newest = self._runs_there(), self.newest()
        return sorted(set(there[:-1]) & set(newest.replaces)) if newest is not None else []

    def _replaced_ms(self, run: int) -> int:
        """Return when a run was replaced.

        All later runs still exist, as the oldest are removed first.
        """
        later = (self.manifest(each) for each in self._runs_there() if each > run)
        return next(each.finished_ms for each in later if run in each.replaces)

    def clear_staging(self) -> None:
        shutil.rmtree(self.output / _STAGING, ignore_errors=True)

    def check(self, run: int) -> None:
        """Compare every file of a run with its manifest.

        Raises StoreError for the first difference.
        """
        directory = self.run_directory(run)
        for file in self.manifest(run).files:
            fault = fault_of(path_below(directory, file), file)
            if fault is not None:
                raise StoreError(fault)


def path_below(directory: Path, file: ArchivedFile) -> Path:
    """Return the path of a file of the manifest in `directory`.

    Raises OutsideFolder for a link that leads out of the directory.
    """
    return Path(below(str(directory), *file.path.split("/"), real_path=os.path.realpath))


def seal(staged: Path, manifest: Manifest) -> None:
    """Write the manifest beside a run's files, and sync all to the disk."""
    (staged / MANIFEST).write_bytes(manifest.encode())
    sync_tree(staged)


def fault_of(path: Path, file: ArchivedFile) -> str | None:
    """Return what is wrong with a file compared with its manifest; None if nothing is."""
    if not path.is_file():
        return f"{path} is missing: restore it from a copy"
    if (path.stat().st_size, file_checksum(path)) != (file.bytes, file.crc32c):
        return f"{path} differs from what was archived: restore it from a copy"
    return None


def file_checksum(path: Path) -> str:
    """Return the CRC-32C of a file as eight hexadecimal digits."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            checksum = crc32c(part, checksum)
    return f"{checksum:08x}"


def sync_tree(directory: Path) -> None:
    """Sync all files and directory entries below a directory."""
    for path, _, names in os.walk(directory, topdown=False):
        for name in names:
            _sync(Path(path) / name)
        _sync(Path(path))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _file(entry: dict[str, Any]) -> ArchivedFile:
    queues = tuple(made_of(QueueRows, queue) for queue in entry["queues"])
    return made_of(ArchivedFile, {**entry, "queues": queues})
