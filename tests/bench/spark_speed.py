"""Cost of reading a store: the decoder alone, the source in Spark, Parquet beside them.

Run as `python -m tests.bench.spark_speed [--messages N] [--no-spark] [--flat 0.5 2 8]` (`make
bench-spark`). It prints tables and asserts nothing. Rates are per second of processor time of all
processes that a row needs, Spark's JVM and Python workers included. The best of some rounds counts,
since other work on the machine only adds.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.message import HEAD_V4, RECORD_MAGIC
from spark.archive.run import Arguments, archive
from spark.class_data import make_class_data
from spark.decoding.columns import COLUMNS, MESSAGE_COLUMNS, sql_schema
from spark.decoding.decode import batches
from spark.decoding.log_walk import walk
from spark.decoding.records import Queue, Records
from spark.decoding.store_files import LogFile, Store
from spark.runner import environment
from spark.session import start_session
from spark.source.data_source import TroupeMQ
from tests.bench import spark_start
from tests.bench.process_figures import tree_cpu_seconds
from tests.bench.spark_network import network
from tests.bench.spark_start import PARTS
from tests.bench.spark_store import make_large_store, make_store
from troupemq.java import find_java

TWELVE = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "storeTimestamp",
    "reconsumeTimes",
    "bodyCrc",
    "storedBody",
    "storedProperties",
)
"""Fields of the record as it is, texts and bodies with it."""
FOUR = ("topic", "queueId", "queueOffset", "storeTimestamp")
ALL = tuple(MESSAGE_COLUMNS)
ROUNDS = 3
WARM_ROUNDS = 5
"""The JVM compiles what it runs often: the third time costs half of the first."""

STRUCT_ROWS = 100_000


def struct_rows(file: LogFile) -> Iterator[tuple[Any, ...]]:
    """Return the twelve columns record by record, in the simplest code."""
    data, position, unpack = file.map, 0, HEAD_V4.unpack_from
    while position + HEAD_V4.size <= file.size:
        (size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born, _, stored, _,
         reconsumed, _, body_bytes) = unpack(data, position)  # fmt: skip
        if magic != RECORD_MAGIC:
            return
        at = position + HEAD_V4.size
        body = data[at : at + body_bytes]
        topic_at = at + body_bytes + 1
        topic_end = topic_at + data[topic_at - 1]
        topic = data[topic_at:topic_end].decode()
        properties = data[topic_end + 2 : position + size]
        yield (
            topic, queue_id, queue_offset, offset, flag, sys_flag, born, stored, reconsumed, crc,
            body, properties,
        )  # fmt: skip
        position += size


def struct_batches(file: LogFile) -> Iterator[pa.RecordBatch]:
    """The rows above, as Spark wants them: columns of 8192."""
    kinds = [pa.int64() if pa.types.is_timestamp(COLUMNS[n]) else COLUMNS[n] for n in TWELVE]
    rows: list[tuple[Any, ...]] = []
    for row in struct_rows(file):
        rows.append(row)
        if len(rows) == 8192:
            columns = zip(*rows, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
                names=list(TWELVE),
            )
            rows = []


class Table:
    """Rows of figures, printed as they come."""

    def __init__(self, record_bytes: float) -> None:
        self.record_bytes = record_bytes
        print("| what | rows/s a core | core-s/GB of log | s |\n| --- | ---: | ---: | ---: |")

    def row(self, what: str, rows: int, cpu: float, wall: float) -> None:
        per_gb = cpu / rows * 1e9 / self.record_bytes
        print(f"| {what} | {rows / cpu:,.0f} | {per_gb:.1f} | {wall:.1f} |", flush=True)

    def best(
        self, what: str, work: Callable[[], int], cpu_seconds: Callable[[], float], rounds: int
    ) -> None:
        """`work` gives its rows."""
        found = []
        for _ in range(rounds):
            started, used = monotonic(), cpu_seconds()
            rows = work()
            found.append((cpu_seconds() - used, monotonic() - started))
        self.row(what, rows, *min(found))


def count(found: Iterator[Records], columns: tuple[str, ...]) -> int:
    return sum(batch.num_rows for records in found for batch in batches(records, columns))


def by_queue(store: Store) -> Iterator[Records]:
    for name in store.queue_names():
        yield from Queue(store, *name).records(0)


def by_file(store: Store) -> Iterator[Records]:
    for index in range(len(store.log.firsts)):
        yield from walk(store.log.file(index))


def some(rows: Iterator[Any], limit: int) -> int:
    """Counts tuples, or the rows of batches, up to about a limit."""
    counted = 0
    for row in rows:
        counted += row.num_rows if isinstance(row, pa.RecordBatch) else 1
        if counted >= limit:
            break
    return counted


def decoder(root: Path, table: Table) -> None:
    store = Store(str(root))
    first = store.log.file(0)
    for what, work in (
        ("`struct` loop → tuples", lambda: some(struct_rows(first), STRUCT_ROWS)),
        ("`struct` loop → record batches", lambda: some(struct_batches(first), STRUCT_ROWS)),
        ("decoder, 12 columns, by queue", lambda: count(by_queue(store), TWELVE)),
        ("decoder, 12 columns, by file", lambda: count(by_file(store), TWELVE)),
        ("decoder, 4 columns, by queue", lambda: count(by_queue(store), FOUR)),
        ("decoder, all 19 columns", lambda: count(by_queue(store), ALL)),
    ):
        table.best(what, work, process_time, ROUNDS)


def session(scratch: Path) -> Any:
    """Two cores; on whatever Java there is."""
    os.environ["JAVA_HOME"] = find_java(os.environ)
    return start_session({"spark.master": "local[2]"}, str(scratch))


def used() -> float:
    """Return the processor time of this process, the JVM and the Python workers."""
    return tree_cpu_seconds(os.getpid())


def archived(spark: Any, root: Path, target: Path) -> int:
    """The job as it is: planned, CRCs compared, written, read back, published."""
    rmtree(target, ignore_errors=True)
    return int(archive(spark, Arguments(store=str(root), output=str(target)))["rows"])


def in_spark(root: Path, table: Table, scratch: Path) -> None:
    spark = session(scratch)
    spark.dataSource.register(TroupeMQ)

    def messages(columns: tuple[str, ...]) -> Any:
        reader = spark.read.format(TroupeMQ.name()).schema(sql_schema(columns))
        return reader.load(str(root))

    rows = messages(FOUR).count()

    def to_nothing(frame: Any) -> Callable[[], int]:
        def work() -> int:
            frame.write.format("noop").mode("overwrite").save()
            return int(rows)

        return work

    def to_parquet() -> int:
        messages(TWELVE).write.mode("overwrite").parquet(str(scratch / "parquet"))
        return int(rows)

    for what, columns in (("12", TWELVE), ("4", FOUR), ("all 19", ALL)):
        work = to_nothing(messages(columns))
        table.best(f"Spark, source, {what} columns", work, used, WARM_ROUNDS)
    output = scratch / "archive"
    table.best(
        "archive job, 23 columns, CRCs, read back",
        lambda: archived(spark, root, output),
        used,
        ROUNDS,
    )
    table.best("Spark, source → Parquet (zstd), 12 columns", to_parquet, used, ROUNDS - 1)
    for what, path in (("that Parquet", scratch / "parquet"), ("the archive", output)):
        work = to_nothing(spark.read.parquet(str(path)))
        table.best(f"Spark, reading {what}", work, used, ROUNDS)
    spark.stop()


def flat(gigabytes: list[float], directory: Path) -> None:
    """Measure the archive job's cost per GB for logs of several sizes, one at a time."""
    scratch = directory / "scratch"
    scratch.mkdir()
    spark = session(scratch)
    print("\n| GB of log | messages | archive job, core-s/GB | s |\n| ---: | ---: | ---: | ---: |")
    for number, size in enumerate([min(gigabytes), *gigabytes]):
        root = directory / f"{number}"
        messages = make_large_store(root, int(size * 1e9))
        started, before = monotonic(), used()
        assert archived(spark, root, directory / "archive") == messages
        cpu, wall = used() - before, monotonic() - started
        log = sum(path.stat().st_size for path in (root / "commitlog").iterdir()) / 1e9
        name = f"{log:.2f}" if number else f"{log:.2f}, warming up"
        print(f"| {name} | {messages:,} | {cpu / log:.1f} | {wall:.1f} |", flush=True)
        rmtree(root)
    spark.stop()


def starts(root: Path) -> None:
    """Import, session, first job, first Python worker: in processes of their own."""
    make_class_data(environment(os.environ, find_java(os.environ)))
    print(f"\n| start | {' | '.join(PARTS)} | to the first row, s | CPU s |")
    print("| --- | " + "---: | " * (len(PARTS) + 2))
    for what, setting in (("without class data", "false"), ("with class data", "true")):
        line = [sys.executable, "-m", spark_start.__name__, str(root), setting]
        found = [
            json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)
            for _ in range(ROUNDS)
        ]
        best = min(found, key=lambda each: sum(each["s"]))
        parts = " | ".join(f"{part:.1f}" for part in best["s"])
        cpu = min(each["cpu_s"] for each in found)
        print(f"| {what} | {parts} | {sum(best['s']):.1f} | {cpu:.1f} |", flush=True)


SERVED_MESSAGES = 200_000
"""Read over the network."""


def tables(options: Namespace, root: Path) -> None:
    for name, messages, sizes in (
        ("small", options.messages, (64, 192)),
        ("large", options.large, (1024, 1024)),
    ):
        if not messages:
            continue
        make_store(root / name, messages, sizes)
        store = Store(str(root / name))
        log_bytes = sum(int(records.record_bytes.sum()) for records in by_queue(store))
        print(
            f"\n{messages:,} messages, {log_bytes / messages:.0f} bytes a record; load average "
            f"{os.getloadavg()[0]:.1f}\n"
        )
        table = Table(log_bytes / messages)
        decoder(root / name, table)
        if not options.no_spark:
            scratch = root / f"{name}-scratch"
            scratch.mkdir()
            in_spark(root / name, table, scratch)
            rmtree(scratch)
        served = root / f"{name}-served"  # fewer: a broker looks through all of a store it gets
        make_store(served, min(messages, SERVED_MESSAGES), sizes)
        network(served, root / f"{name}-broker", log_bytes / messages)
        rmtree(served)
        if name == "small" and not (options.no_spark or options.no_start):
            starts(root / name)
        rmtree(root / name)


def main() -> None:
    parser = ArgumentParser(prog="spark_speed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--large", type=int, default=200_000, help="of 1 KiB; 0 for none")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--no-start", action="store_true", help="no sessions for their start")
    parser.add_argument(
        "--flat", nargs="*", type=float, default=[], metavar="GB", help="0.5 2 8: 10 GB of disk"
    )
    options = parser.parse_args()
    with TemporaryDirectory(prefix="spark-speed-") as directory:
        tables(options, Path(directory))
        if options.flat:
            flat(options.flat, Path(directory))


if __name__ == "__main__":
    main()
