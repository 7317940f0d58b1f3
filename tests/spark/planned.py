"""Plans and reads without Spark, as driver and tasks do."""

from typing import Any

from spark.decoding.columns import MESSAGE_COLUMNS
from spark.source.data_source import wanted
from spark.source.options import Options, parse_options
from spark.source.origin import opened, partitions
from spark.source.plan import QueueRange
from spark.source.reading import range_reader
from spark.source.row_filter import Pushed
from spark.source.tasks import read_partition
from tests.spark.rows import in_order
from tests.spark.store_writer import StoreWriter


def options(writer: StoreWriter, **given: str) -> Options:
    return parse_options({"store": str(writer.root), **given})


def planned(given: Options, pushed: Pushed | None = None) -> list[list[QueueRange]]:
    with opened(given) as origin:
        return origin.tasks(wanted(origin, given, pushed or Pushed()))


def numbers(given: Options, pushed: Pushed | None = None) -> list[int]:
    """Return which messages are read, by the numbers in their bodies."""
    reader = range_reader(given, ("body",), None if pushed is None else pushed.tags)
    return sorted(
        int(row["body"])
        for task in planned(given, pushed)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    )


def tasks_of(given: dict[str, str]) -> list[Any]:
    """Return the tasks, as Spark distributes them."""
    told = parse_options(given)
    with opened(told) as origin:
        return partitions(origin, wanted(origin, told, Pushed()))


def rows_of(given: dict[str, str], columns: tuple[str, ...] = tuple(MESSAGE_COLUMNS)) -> list[Any]:
    """Return the rows read with these options, in order if the columns contain it."""
    told = parse_options(given)
    found = [
        row
        for task in tasks_of(given)
        for batch in read_partition(task, told, columns)
        for row in batch.to_pylist()
    ]
    return in_order(found) if "topic" in columns else found
