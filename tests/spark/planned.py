"""Plans a read of a written store and reads it, as driver and tasks do, without Spark."""

from spark.options import Options, parse_options
from spark.origin import opened
from spark.plan import QueueRange
from spark.pushdown import Pushed
from spark.reading import range_reader
from spark.source import wanted
from tests.spark.store_writer import StoreWriter


def options(writer: StoreWriter, **given: str) -> Options:
    return parse_options({"store": str(writer.root), **given})


def planned(given: Options, pushed: Pushed | None = None) -> list[list[QueueRange]]:
    with opened(given) as origin:
        return origin.tasks(wanted(origin, given, pushed or Pushed()))


def numbers(given: Options, pushed: Pushed | None = None) -> list[int]:
    """Which messages are read, by the numbers in their bodies."""
    reader = range_reader(given, ("body",), None if pushed is None else pushed.tags)
    return sorted(
        int(row["body"])
        for task in planned(given, pushed)
        for batch in reader.read(task)
        for row in batch.to_pylist()
    )
