"""Every column of many different messages equals the result of a reader of single messages."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from spark.decoding.columns import COLUMNS, sql_schema
from spark.source.options import parse_options
from spark.source.tasks import read_partition
from tests.spark.planned import tasks_of
from tests.spark.ran import run_steps
from tests.spark.rows import Row
from tests.spark.varied_store import BROKER, OneByOne, make_varied_store

SOME = 2_000
MANY = 2_000_000
TIMEOUT_S = 3000.0
MEMORY_KIB_MAX = 2 << 20
ALL_COLUMNS = tuple(COLUMNS)


def options(root: Path) -> dict[str, str]:
    return {"store": str(root), "includeSystemTopics": "true", "brokerName": BROKER}


def count_equal(found: Iterable[Row], wanted: Iterable[Row]) -> int:
    """Return the number of rows, after comparing every column."""
    count = 0
    for row, other in zip_longest(found, wanted):
        assert row == other
        count += 1
    return count


def rows_of_files(directory: Path) -> Iterator[Row]:
    """Return rows in the order of the tasks that wrote them."""
    for path in sorted(directory.glob("part-*.parquet")):
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(8192):
                yield from batch.to_pylist()


@pytest.mark.trial(short=1, long=40)
def test_the_source_reads_every_message_of_a_varied_store(seed: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_varied_store(root, SOME, seed, log_file_bytes=300_000)
    given = {**options(root), "maxBytesPerPartition": "100000"}
    told = parse_options(given)
    found = (
        row
        for task in tasks_of(given)
        for batch in read_partition(task, told, ALL_COLUMNS)
        for row in batch.to_pylist()
    )
    count = count_equal(found, OneByOne(root).rows())
    assert count >= SOME
    assert len(list((root / "commitlog").iterdir())) > 2


@pytest.mark.slow
@pytest.mark.trial(short=0, long=1, every=1000)  # takes four minutes, so not in short rounds
def test_a_data_frame_of_two_million_messages_equals_the_store(
    seed: int, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    root = tmp_path / "store"
    make_varied_store(root, MANY, seed)
    step = {
        "do": "to Parquet",
        "options": options(root),
        "schema": sql_schema(ALL_COLUMNS),
        "to": str(tmp_path / "rows"),
    }
    results = run_steps(tmp_path, {"write": step}, TIMEOUT_S)
    assert results["write"] is None, json.dumps(results)
    count = count_equal(rows_of_files(tmp_path / "rows"), OneByOne(root).rows())
    assert count >= MANY
    used = [getrusage(who).ru_maxrss for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    assert max(used) < MEMORY_KIB_MAX
    tell(
        f"{count:,} messages, {len(ALL_COLUMNS)} columns: equal; at most {used[0] // 1024} MiB "
        f"here, {used[1] // 1024} MiB in a process of Spark's"
    )
