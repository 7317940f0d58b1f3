"""An archive on disk: complete runs, each with its manifest, published by one rename.

    <output>/run=00000001/topic=ORDER/day=2026-11-20/part-….parquet
    <output>/run=00000001/_manifest.json
    <output>/_staging/<run id>/…             a run that is not published (yet); nobody reads it
    <output>/_lock                           held by the run that writes

Names that begin with _ are invisible to Spark and pyarrow, so that reading the whole directory,
with `run`, `topic` and `day` as partition columns, gives exactly what the manifests name while no
run replaces others. spark/archive/frame.py reads by the manifests.

`_manifest.json` is `{"manifest": …, "crc32c": …}`, its checksum taken over canonical JSON:

    format, run, run_id, store, published_offset, finished_ms
    damaged  messages that were left out: topic, queue_id, queue_offset, physical_offset, why; the
             first 10,000 of them (each queue has the count)
    files    path, topic, day, bytes, crc32c, rows, and per queue: queue_id, first, last, rows
    queues   what this run holds: topic, queue_id, first, last, rows, missed (expired before it),
             damaged (left out)
    replaces numbers of runs that are not read any more, as a later one holds their messages; each
             run repeats those that are still there
    table    format, path and app_id, if the messages are in a table (spark/archive/table.py)
    ends     the last archived message of every queue, over all runs: topic, queue_id, queue_offset,
             physical_offset, store_timestamp; the next run goes on behind it

A run that replaces others (spark/archive/compact.py) is published by the same rename. Who reads by
the manifests sees either the old runs or the new one. The old ones stay for some time, for readers
that are at it, and are removed by a later run that writes: until then who reads the directory
itself sees their messages twice.

Because a run and the place where the next one starts are published together, a message is archived
once whatever is killed when.
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

from protocol.checksum import crc32c
from storage.errors import StoreError, reason_of
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
"""The folder of a table, below that of its archive."""

DAMAGED_MAX = 10_000
"""Damaged messages that a manifest names; all of them are counted."""

_GLOB_CHARACTERS = frozenset("*?[]{}\\")
"""No name that we write has one: they are escaped in topics, as Hive does."""

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
    """One Parquet file; `path` is relative to its run's directory."""

    path: str
    topic: str
    day: str
    bytes: int
    crc32c: str
    rows: int
    queues: tuple[QueueRows, ...]


@dataclass(frozen=True, slots=True)
class ArchivedQueue:
    """What a run holds of one queue."""

    topic: str
    queue_id: int
    first: int
    last: int
    rows: int
    missed: int
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A message between others that is not whole, and so is in no file."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    """As its unit has it."""

    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """Where messages are that are not in files of the archive's own."""

    format: str
    path: str
    app_id: str
    """Of the table's transactions; a run's number is their version."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run holds, and where the next one starts."""

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
        """Raises StoreError if the bytes are not those that were written."""
        content = content_of(text, str(path))
        try:
            return cls._of(content, path)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(str(path)) from None

    @classmethod
    def _of(cls, content: dict[str, Any], path: Path) -> "Manifest":
        """Raises StoreError, and others where its values are of other kinds."""
        for entry in content["files"]:
            name = str(entry["path"])
            below(str(path.parent), *name.split("/"))
            if not _GLOB_CHARACTERS.isdisjoint(name):  # Spark would read what fits them
                raise OutsideFolder(f"{path} has {name!r}, which is a pattern and no file")
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
    """One archive directory."""

    def __init__(self, output: str) -> None:
        self.output = Path(output).absolute()

    def own(self, *names: str) -> Path:
        """Return a path below the archive to write to, or with a table. Raises OutsideFolder.

        An archive may have been in other hands: a link is refused that leads out of it.
        """
        return Path(below(str(self.output), *names, real_path=os.path.realpath))

    def run_directory(self, run: int) -> Path:
        return self.output / f"{RUN_PREFIX}{run:08}"

    def runs(self) -> list[int]:
        """Numbers of the published runs that no other one replaces, in order. Raises StoreError."""
        there = self._runs_there()
        replaced = self.manifest(there[-1]).replaces if there else ()
        return [run for run in there if run not in replaced]

    def _runs_there(self) -> list[int]:
        if not self.output.is_dir():
            return []
        found = [run_number(path.name) for path in self.output.iterdir()]
        return sorted(number for number in found if number is not None)

    def manifest(self, run: int) -> Manifest:
        """Raises StoreError if it is damaged or gone."""
        path = self.run_directory(run) / MANIFEST
        try:
            return self._located(Manifest.decode(path.read_bytes(), path))
        except FileNotFoundError as error:
            raise StoreError(f"{path} is gone: restore it, or archive elsewhere") from error

    def _located(self, manifest: Manifest) -> Manifest:
        """The table of an archive is in its folder, whatever path a manifest has."""
        if manifest.table is None:
            return manifest
        return replace(manifest, table=replace(manifest.table, path=str(self.own(TABLE))))

    def file_path(self, run: int, file: ArchivedFile) -> Path:
        """Return where a file of a run lies. Raises OutsideFolder."""
        return path_below(self.run_directory(run), file)

    def newest(self) -> Manifest | None:
        """The manifest of the last run; None before the first. Raises StoreError."""
        there = self._runs_there()
        return self.manifest(there[-1]) if there else None

    def decided(self) -> tuple[Path, Manifest] | None:
        """The staged run of a table that was killed before its manifest was published, if any."""
        newest = self.newest()
        for path in (self.output / _STAGING).glob(f"*/data/{MANIFEST}"):
            try:
                found = self._located(Manifest.decode(path.read_bytes(), path))
            except StoreError:
                continue  # it was killed while it wrote this
            if found.table is not None and found.run == (newest.run + 1 if newest else 1):
                return self.own(*path.parent.relative_to(self.output).parts), found
        return None

    @contextmanager
    def writing(self, grace_ms: float = 0) -> Iterator[None]:
        """Keeps other runs out; ends with the process at the latest. Raises StoreError.

        Removes first what was replaced so long ago.
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
        """An empty directory for a run's files; removes what killed runs have left."""
        staging = self.own(_STAGING)
        if staging.is_dir():
            shutil.rmtree(staging)
        path = staging / run_id
        path.mkdir(parents=True)
        return path

    def publish(self, staged: Path, manifest: Manifest) -> Path:
        """Brings files and manifest onto the disk, then makes all of it visible by one rename.

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
        """Removes the runs that were replaced so long ago; each is gone at once."""
        now_ms = time_ns() // 1_000_000
        for run in self._replaced_there():
            if grace_ms and now_ms - self._replaced_ms(run) < grace_ms:
                continue
            gone = self.own(_STAGING) / f"{_REPLACED}{run}-{uuid4().hex}"
            gone.parent.mkdir(exist_ok=True)
            self.run_directory(run).rename(gone)
            if gone.is_symlink():  # to where its operator has moved it
                gone.unlink()
            else:
                shutil.rmtree(gone)

    def _replaced_there(self) -> list[int]:
        there, newest = self._runs_there(), self.newest()
        return sorted(set(there[:-1]) & set(newest.replaces)) if newest is not None else []

    def _replaced_ms(self, run: int) -> int:
        """When a run was replaced; all those behind it are there, as the oldest go first."""
        later = (self.manifest(each) for each in self._runs_there() if each > run)
        return next(each.finished_ms for each in later if run in each.replaces)

    def clear_staging(self) -> None:
        shutil.rmtree(self.output / _STAGING, ignore_errors=True)

    def check(self, run: int) -> None:
        """Compares every file of a run with its manifest. Raises StoreError for the first lie."""
        directory = self.run_directory(run)
        for file in self.manifest(run).files:
            fault = fault_of(path_below(directory, file), file)
            if fault is not None:
                raise StoreError(fault)


def path_below(directory: Path, file: ArchivedFile) -> Path:
    """Return where a file of a manifest in `directory` lies. Raises OutsideFolder.

    A link is refused that leads out of the directory.
    """
    return Path(below(str(directory), *file.path.split("/"), real_path=os.path.realpath))


def seal(staged: Path, manifest: Manifest) -> None:
    """Puts the manifest beside a run's files, and all of it onto the disk."""
    (staged / MANIFEST).write_bytes(manifest.encode())
    sync_tree(staged)


def fault_of(path: Path, file: ArchivedFile) -> str | None:
    """What is wrong with a file, against its manifest; None if nothing."""
    if not path.is_file():
        return f"{path} is missing: restore it from a copy"
    if (path.stat().st_size, file_checksum(path)) != (file.bytes, file.crc32c):
        return f"{path} is not what was archived: restore it from a copy"
    return None


def file_checksum(path: Path) -> str:
    """CRC-32C of a file, eight hexadecimal digits."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            checksum = crc32c(part, checksum)
    return f"{checksum:08x}"


def sync_tree(directory: Path) -> None:
    """Everything below a directory is on the disk when this returns, names too."""
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
