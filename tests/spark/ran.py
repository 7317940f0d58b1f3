"""What one Spark session did for all tests of a file: its steps, stores, archives and results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from protocol.tags import java_hash_code
from spark.archive_columns import ARCHIVE_COLUMNS
from spark.archive_files import Archive
from spark.archive_read import read_file
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
    """Messages of four topics, over several days; the same ones for the same numbers."""
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


class Ran:
    """What all steps gave, and the stores and archives that they used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps: dict[str, dict[str, Any]] = {}
        self.results: dict[str, Any] = {}
        self.first = write_messages(StoreWriter(directory / "first"), FIRST_MESSAGES)
        self.all = write_messages(StoreWriter(directory / "all"), ALL_MESSAGES)
        self.grown = write_messages(StoreWriter(directory / "grown"), ALL_MESSAGES)
        self.has_golden = True

    def damage(self) -> None:
        """A store of which one body and one head are not what was written."""
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

    def run(self) -> None:
        (self.directory / "steps.json").write_text(json.dumps(self.steps))
        with (self.directory / "log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, "-m", probe.__name__, str(self.directory)],
                cwd=REPOSITORY,
                env=environment(os.environ, find_java(os.environ)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=TIMEOUT_S,
            )
        assert done.returncode == 0, (self.directory / "log").read_text()[-4000:]
        self.results = json.loads((self.directory / "results.json").read_text())

    def archived(self, output: str, *, run: int | None = None) -> list[Row]:
        """Rows of an archive, or of one run, read without Spark and checked by the manifests."""
        archive = Archive(str(self.directory / output))
        rows: list[Row] = []
        for number in archive.runs() if run is None else [run]:
            archive.check(number)
            for file in archive.manifest(number).files:
                table = read_file(archive.run_directory(number) / file.path, ARCHIVE_COLUMNS)
                for row in table.to_pylist():
                    rows.append({**row, "topic": file.topic, "day": file.day})
        return in_order(rows)
