"""Manifests of an archive: contents of its runs, and progress of all runs together.

    <archive>/run=00000001/_manifest.json    {"manifest": …, "crc32c": …}, over canonical JSON

The archive job writes them (spark/archive/files.py defines the content). Cleaning and the retention
job read the newest one: its `ends` give the last archived message of every queue, over all runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

from protocol.message import crc32c
from storage.errors import StoreError, os_sentence
from storage.files.disk import Disk

FORMAT = 1
MANIFEST = "_manifest.json"
RUN_PREFIX = "run="


@dataclass(frozen=True, slots=True)
class LastMessage:
    """Identity of the last message of a range."""

    queue_offset: int
    physical_offset: int
    store_timestamp: int


Ends: TypeAlias = Mapping[tuple[str, int], LastMessage]


def checksum(content: object) -> str:
    """Return the CRC-32C of a JSON value, as eight hexadecimal digits."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(canonical.encode()):08x}"


def content_of(text: bytes, path: str) -> dict[str, Any]:
    """Return the manifest in a file's bytes. Raises StoreError if it is damaged or unknown."""
    try:
        document = json.loads(text)
        content: dict[str, Any] = document["manifest"]
        intact = document["crc32c"] == checksum(content) and isinstance(content, dict)
        known = content.get("format")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        intact = False
    if not intact:
        raise damaged(path)
    if known != FORMAT:
        raise StoreError(f"{path} has format {known}; this version knows {FORMAT}")
    return content


def damaged(path: str) -> StoreError:
    return StoreError(f"{path} is damaged: restore it from a copy, or archive elsewhere")


def ends_of(content: Mapping[str, Any], path: str) -> Ends:
    try:
        found = [
            (
                (entry["topic"], entry["queue_id"]),
                made_of(LastMessage, {name: entry[name] for name in LastMessage.__slots__}),
            )
            for entry in content["ends"]
        ]
        if all(isinstance(topic, str) and type(queue) is int for (topic, queue), _ in found):
            return dict(found)
    except (AttributeError, KeyError, TypeError):
        pass
    raise damaged(path)


Made = TypeVar("Made")


def made_of(kind: type[Made], values: Mapping[str, Any]) -> Made:
    """Return a dataclass of these values. Raises TypeError for a value of the wrong type."""
    made = kind(**values)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.type in (int, str) and type(values.get(each.name, each.default)) is not each.type:
            raise TypeError(f"{each.name} is {values.get(each.name)!r}")
    return made


def run_number(name: str) -> int | None:
    """Return the number of the run in a directory of this name, or None."""
    number = name.removeprefix(RUN_PREFIX)
    return int(number) if name != number and number.isdecimal() else None


class ArchiveEnds:
    """Progress of an archive; it is read again only when the newest manifest changes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._ends: Ends = {}
        self._read: tuple[str, int] | None = None

    def read(self) -> Ends:
        """Return the last archived message of each queue; empty for an archive without a run.

        Unchanged manifests yield the same object. Raises StoreError if the directory is missing or
        unreadable.
        """
        try:
            if not self._disk.is_dir(self.directory):
                raise StoreError(f"there is no archive at {self.directory}")
            names = self._disk.listdir(self.directory)
            runs = {number: name for name in names if (number := run_number(name)) is not None}
            if not runs:
                self._ends, self._read = ({} if self._read else self._ends), None
                return self._ends
            path = f"{self.directory}/{runs[max(runs)]}/{MANIFEST}"
            found = (path, self._disk.modified_ms(path))
            if found != self._read:
                self._ends = ends_of(content_of(self._disk.read_bytes(path), path), path)
                self._read = found
        except OSError as error:
            raise StoreError(f"the archive cannot be read: {os_sentence(error)}") from error
        return self._ends
