"""Result of one Spark session for all tests of a file: steps, stores, archives."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from protocol.tags import java_hash_code
from spark.archive.columns import ARCHIVE_COLUMNS
from spark.archive.files import Archive
from spark.archive.read import read_file
from spark.runner import environment
from tests.spark import probe
from tests.spark.rows import Row, in_order
from tests.spark.store_writer import HOST_V6, NOVEMBER_ROOT_MS, StoreWriter, patch
from tests.support.golden import REPOSITORY
from troupemq.java import find_java

TIMEOUT_S = 240.0
QUARTER_DAY_MS = 21_600_000
FIRST_MESSAGES, ALL_MESSAGES = 900, 1000


def write_messages(writer: StoreWriter, count: int) -> StoreWriter:
    """Write messages of four topics over several days; equal numbers give equal messages."""
    topics = ["orders", "123", "%DLQ%group", "%RETRY%group"]
    for number in range(len(writer.records), count):
        writer.append(
            topics[number % 4],
            number // 4 % 2,
            bytes([number % 256]) * (number % 500),
            {"KEYS": f"key{number}", "TAGS": "a", "UNIQ_KEY": f"{number:032X}"},
            store_timestamp=NOVEMBER_ROOT_MS + number * QUARTER_DAY_MS // 100,
            born_host=HOST_V6 if number % 50 == 0 else bytes([10, 0, 0, 1, 0, 0, 0, 80]),
            tags_code=java_hash_code("a"),
        )
    return writer.close()


def as_json(row: Row) -> Row:
    """Return a row as Spark collects it: maps as maps, times as Python times."""
    row = {**row, "brokerName": "broker-a", "properties": dict(row["properties"])}
    for name in ("bornTimestamp", "storeTimestamp"):
        row[name] = row[name].replace(tzinfo=None)
    return json.loads(json.dumps(row, default=probe.text_of))  # type: ignore[no-any-return]


def archived_rows(rows: list[Row]) -> list[Row]:
    """Return rows with partition columns last, and days from the directory names."""
    return [
        {name: row[name] for name in ARCHIVE_COLUMNS if name in row} | {"day": str(row["day"])}
        for row in rows
    ]


def run_steps(
    directory: Path,
    steps: dict[str, dict[str, Any]],
    timeout_s: float = TIMEOUT_S,
    secret: str = "",
) -> dict[str, Any]:
    """Run steps in one Spark session in its own process; return their results by name.

    `secret`: of the step "account".
    """
    (directory / "steps.json").write_text(json.dumps(steps))
    with (directory / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", probe.__name__, str(directory)],
            cwd=REPOSITORY,
            env=environment(os.environ, find_java(os.environ)),
            input=f"{secret}\n".encode(),
            stdout=log,
            stderr=log,
            timeout=timeout_s,
        )
    assert done.returncode == 0, (directory / "log").read_text()[-4000:]
    results: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return results


class Ran:
    """Results of all steps, with the stores and archives that they used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps: dict[str, dict[str, Any]] = {}
        self.results: dict[str, Any] = {}
        self.first = write_messages(StoreWriter(directory / "first"), FIRST_MESSAGES)
        self.all = write_messages(StoreWriter(directory / "all"), ALL_MESSAGES)
        self.grown = write_messages(StoreWriter(directory / "grown"), ALL_MESSAGES)
        self.has_golden = True
        self.sunk: dict[str, list[tuple[str, bytes]]] = {}
        self.paged: list[tuple[str, bytes]] = []

    def damage(self) -> None:
        """Return a store with one damaged body and one damaged head."""
        self.damaged = write_messages(StoreWriter(self.directory / "damaged"), FIRST_MESSAGES)
        self.wrong = {"body": self.damaged.records[404], "head": self.damaged.records[601]}
        for what, at in (("body", 95), ("head", 12)):
            start = self.wrong[what].physical_offset
            path = self.damaged.root / "commitlog" / f"{start // 65_536 * 65_536:020}"
            patch(path, start % 65_536 + at, b"\xee")

    def archive(self, name: str, store: Path, output: str, **arguments: Any) -> None:
        given = {"store": str(store), "output": str(self.directory / output), **arguments}
        self.steps[name] = {"do": "archive", "arguments": given}

    def rows(self, name: str, **step: Any) -> None:
        self.steps[name] = {"do": "rows", "store": str(self.all.root), **step}

    def run(self, secret: str) -> None:
        self.results = run_steps(self.directory, self.steps, secret=secret)

    def archived(self, output: str, *, run: int | None = None) -> list[Row]:
        """Return the rows of an archive or run, read without Spark by checked manifests."""
        archive = Archive(str(self.directory / output))
        rows: list[Row] = []
        for number in archive.runs() if run is None else [run]:
            archive.check(number)
            for file in archive.manifest(number).files:
                table = read_file(archive.run_directory(number) / file.path, ARCHIVE_COLUMNS)
                for row in table.to_pylist():
                    rows.append({**row, "topic": file.topic, "day": file.day})
        return in_order(rows)
