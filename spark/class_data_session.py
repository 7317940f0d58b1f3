"""The Spark session that fills the class-data archive (spark/class_data.py).

It uses what jobs use, on a few rows: a Python data source, Arrow batches from Python and a shuffle.
It also reads and writes Parquet, and its tasks run Python functions.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark.class_data import making
from spark.session import start_session
from storage.errors import StoreError

END_S = 300.0
"""Seconds for the JVM to end, because it writes its classes then."""


class FewRows(DataSource):
    """Data source of a few rows with the column types of messages."""

    @classmethod
    def name(cls) -> str:
        return "fewrows"

    def schema(self) -> str:
        return (
            "topic string, queueOffset bigint, body binary, ok boolean, "
            "properties map<string,string>, at timestamp, day date"
        )

    def reader(self, schema: StructType) -> "FewRowsReader":
        return FewRowsReader()


class FewRowsReader(DataSourceReader):
    """Reader with two tasks."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = 100
        numbers = list(range(count))
        columns = {
            "topic": pa.array([f"topic{number % 3}" for number in numbers]),
            "queueOffset": pa.array(numbers, pa.int64()),
            "body": pa.array([b"x" * number for number in numbers]),
            "ok": pa.array([True] * count),
            "properties": pa.array([[("k", "v")]] * count, pa.map_(pa.string(), pa.string())),
            "at": pa.array(numbers, pa.timestamp("us", "UTC")),
            "day": pa.array([20_000] * count, pa.date32()),
        }
        yield pa.RecordBatch.from_pydict(columns)


def practise(made: Path, scratch: Path) -> None:
    """Start a session, use it, stop it, and wait until its JVM has written into `made`.

    Raises StoreError.
    """
    spark = start_session({"spark.master": "local[2]", **making(made)}, str(scratch))
    gateway: Any = spark.sparkContext._gateway
    spark.dataSource.register(FewRows)
    rows = spark.read.format(FewRows.name()).load()
    target = f"file://{scratch / 'parquet'}"
    rows.where("ok and topic = 'topic1'").count()
    rows.write.partitionBy("day").option("compression", "zstd").parquet(target)
    spark.read.parquet(target).groupBy("topic").agg({"queueOffset": "max"}).collect()
    rows.write.format("noop").mode("overwrite").save()
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(END_S)
    except TimeoutExpired as error:
        gateway.proc.kill()
        raise StoreError(f"the JVM did not end within {END_S:.0f} s of its session") from error


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    practise(Path(sys.argv[1]), Path(sys.argv[2]))
