"""What reading a store costs: the decoder alone, the source in Spark, Parquet beside them.

Run as `python -m tests.bench.spark_speed [--messages N] [--no-spark]` (`make bench-spark`); prints
tables, asserts nothing. Rates are for a second of processor time, of all processes together that
a row needs: Spark's JVM and its Python workers, too. The best of some rounds counts, for other
work on the machine only ever adds.
"""

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, process_time
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.message import HEAD_V4, RECORD_MAGIC
from spark.columns import COLUMNS, MESSAGE_COLUMNS, sql_schema
from spark.decode import batches
from spark.log_walk import walk
from spark.records import Queue, Records
from spark.session import start_session
from spark.source import TroupeMQ
from spark.store_files import LogFile, Store
from tests.bench.process_figures import tree_cpu_seconds
from tests.bench.spark_store import make_store
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
STRUCT_ROWS = 100_000


def struct_rows(file: LogFile) -> Iterator[tuple[Any, ...]]:
    """The same twelve, record by record, as one would write it first."""
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


def in_spark(root: Path, table: Table, scratch: Path) -> None:
    started = monotonic()
    java = find_java(os.environ)
    if java is not None:
        os.environ["JAVA_HOME"] = java
    spark = start_session({"spark.master": "local[2]"}, str(scratch))
    session_s = monotonic() - started
    spark.dataSource.register(TroupeMQ)

    def messages(columns: tuple[str, ...]) -> Any:
        reader = spark.read.format(TroupeMQ.name()).schema(sql_schema(columns))
        return reader.load(str(root))

    rows = messages(FOUR).count()
    first_s = monotonic() - started

    def to_nothing(frame: Any) -> Callable[[], int]:
        def work() -> int:
            frame.write.format("noop").mode("overwrite").save()
            return int(rows)

        return work

    def to_parquet() -> int:
        messages(TWELVE).write.mode("overwrite").parquet(str(scratch / "parquet"))
        return int(rows)

    def used() -> float:
        return tree_cpu_seconds(os.getpid())

    for what, columns in (("12", TWELVE), ("4", FOUR), ("all 19", ALL)):
        work = to_nothing(messages(columns))
        table.best(f"Spark, source, {what} columns", work, used, ROUNDS)
    table.best("Spark, source → Parquet (zstd), 12 columns", to_parquet, used, ROUNDS - 1)
    work = to_nothing(spark.read.parquet(str(scratch / "parquet")))
    table.best("Spark, reading that Parquet", work, used, ROUNDS)
    print(f"\nSession after {session_s:.1f} s, first count of all after {first_s:.1f} s.\n")
    spark.stop()


def main() -> None:
    parser = ArgumentParser(prog="spark_speed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--large", type=int, default=100_000, help="of 1 KiB; 0 for none")
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="spark-speed-") as directory:
        root = Path(directory)
        for name, messages, sizes in (
            ("small", options.messages, (64, 192)),
            ("large", options.large, (1024, 1024)),
        ):
            if not messages:
                continue
            make_store(root / name, messages, sizes)
            record_bytes = (
                sum(
                    int(records.record_bytes.sum()) for records in by_queue(Store(str(root / name)))
                )
                / messages
            )
            print(f"\n{messages:,} messages, {record_bytes:.0f} bytes a record; load average "
                  f"{os.getloadavg()[0]:.1f}\n")  # fmt: skip
            table = Table(record_bytes)
            decoder(root / name, table)
            if not options.no_spark:
                (root / f"{name} scratch").mkdir()
                in_spark(root / name, table, root / f"{name} scratch")


if __name__ == "__main__":
    main()
