"""The archive job with format=delta, by the real thing: one Spark session with Delta's jars."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark.archive.files import Archive
from spark.runner import environment
from tests.compat import delta_steps
from tests.spark.ran import as_json, write_messages
from tests.spark.rows import in_order
from tests.spark.store_writer import StoreWriter
from tests.spark.test_with_spark import user_rows
from tests.support.golden import REPOSITORY
from troupemq.java import find_java

pytestmark = pytest.mark.slow(seconds=10)

TIMEOUT_S = 300.0
ENDS = (100, 260, 320)
"""Messages of the log up to which runs go; the store `first` has 200, `all` has 400."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("delta")
    write_messages(StoreWriter(directory / "first"), 200)
    every = write_messages(StoreWriter(directory / "all"), 400)
    offsets = [every.records[end].physical_offset for end in ENDS]
    (directory / "ends.json").write_text(json.dumps(offsets))
    return directory


@pytest.fixture(scope="module")
def found(stores: Path) -> dict[str, Any]:
    with (stores / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", delta_steps.__name__, str(stores)],
            cwd=REPOSITORY,
            env=environment(os.environ, find_java(os.environ)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=TIMEOUT_S,
        )
    said = (stores / "log").read_text()[-4000:]
    if done.returncode == delta_steps.NO_JARS:
        sentence = "Delta's jars are neither here nor to be had from Maven Central"
        if os.environ.get("TROUPEMQ_CI"):
            pytest.fail(f"{sentence}: {said}")
        pytest.skip(sentence)
    assert done.returncode == 0, said
    result: dict[str, Any] = json.loads((stores / "delta.json").read_text())
    return result


def messages(count: int) -> int:
    """Return the archived ones of the first `count` messages: all but every fourth."""
    return count * 3 // 4


def test_a_run_is_in_the_table(found: dict[str, Any]) -> None:
    assert (found["first"]["rows"], found["first"]["finished"]) == (messages(100), None)
    assert found["first"]["output"].endswith("archive/table")
    assert "does not know the format iceberg: name its jars" in found["unknown"]


def test_a_kill_between_table_commit_and_manifest_causes_no_duplicates(
    found: dict[str, Any],
) -> None:
    assert found["killed behind the commit"] == "killed"
    assert found["runs then"] == [1], "the table has run 2, and no manifest says so"
    assert found["count then"] == messages(200)
    assert found["seen then"] == messages(100), "read_archive shows what is published"
    assert (found["went on"]["finished"], found["went on"]["rows"]) == (
        2,
        messages(260) - messages(200),
    )
    assert found["count went on"] == messages(260)


def test_a_repeated_transaction_changes_nothing(found: dict[str, Any]) -> None:
    assert found["killed before the commit"] == "killed"
    assert found["count before"] == messages(260), "decided, and not in the table"
    assert found["twice"] == messages(400), "run 4 was finished, then run 5 appended twice"
    assert found["nothing new"]["text"] == "Nothing new to archive."
    assert found["versions"] == [0, 1, 2, 3, 4], "five commits of five runs"


def test_the_table_has_each_message_once_with_every_column(
    found: dict[str, Any], stores: Path
) -> None:
    rows = in_order(found["rows"])
    wanted = user_rows(write_messages(StoreWriter(stores / "again"), 400))
    assert [row.pop("run") for row in found["rows"]].count(2) == messages(200) - messages(100)
    assert rows == [
        {name: {**as_json(row), "day": row["day"]}[name] for name in rows[0]} for row in wanted
    ]
    archive = Archive(str(stores / "archive"))
    assert archive.runs() == [1, 2, 3, 4, 5]
    assert not (archive.output / "_staging").exists()
