"""Stream into a topic, to be killed: `python -m tests.spark.sink_query DIRECTORY NAME_SERVER`.

It sends numbers from 0 up, ROWS per batch, in two tasks, until DIRECTORY/stop exists. A failed
query is restarted, as an operator would. Batches that Spark has committed have a file in
DIRECTORY/checkpoint/commits.
"""

import sys
from pathlib import Path

from spark.session import start_session
from tests.spark.probe import QUICK
from troupemq.datasource import TroupeMQ

ROWS = 60
TOPIC = "sunk"
_LOOK_S = 1


def main(directory: Path, name_server: str) -> None:
    # A failed task is tried four times, as on a cluster; local[2] would not retry.
    spark = start_session({**QUICK, "spark.master": "local[2,4]"}, str(directory / "work"))
    spark.dataSource.register(TroupeMQ)
    numbers = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=1_700_000_000_000
    )
    rows = numbers.load().selectExpr("cast(value as string) as body", "'a' as tags")
    writer = rows.writeStream.format(TroupeMQ.name()).options(
        nameServer=name_server, topic=TOPIC, messagesPerRequest=4, sendTimeoutMs=30_000
    )
    stop = directory / "stop"
    while not stop.exists():
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
        try:
            while not stop.exists() and not query.awaitTermination(_LOOK_S):
                pass
        except Exception as error:
            print("the query failed:", str(error).splitlines()[0], flush=True)
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
