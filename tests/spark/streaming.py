"""Program that runs streams in one Spark session: `python -m tests.spark.streaming DIRECTORY`.

DIRECTORY/plan.json has the settings of the session, and each stream by its name:

    {"read": options of the data source, "select": SQL expressions,
     "format": …, "write": its options, "checkpoint": …}

Standard input has one command per line; standard output has one JSON object per line:

    stream    runs all from their checkpoints; restarts one that fails
    drain     reads all current messages, then ends (AvailableNow)     {"event": "drained"}

    {"event": "ready"}                                                 the session has started
    {"event": "batch", "stream": …, "batch": 3, "rows": 120}           a batch has ended
    {"event": "failed", "stream": …, "sentence": …}                    the stream restarts

It ends at the end of its input, or with exit code 1 when the JVM has ended.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO

from spark.runner import sentence_of
from spark.session import start_session
from troupemq.datasource import TroupeMQ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.05
TRIGGER = "500 milliseconds"
PAUSE_S = 0.5
"""Seconds before a failed stream restarts, as its broker may be down."""


class Streams:
    """The streams of a plan, all running or all draining."""

    def __init__(self, spark: "SparkSession", plan: Mapping[str, Any], output: TextIO) -> None:
        self._spark = spark
        self._plan = plan
        self._output = output
        self._running: dict[str, StreamingQuery] = {}
        self._batches: dict[str, int] = {}
        self._drains = False

    def emit(self, event: str, **fields: Any) -> None:
        self._output.write(json.dumps({"event": event, **fields}) + "\n")
        self._output.flush()

    def obey(self, command: str) -> None:
        for query in self._running.values():
            query.stop()
        self._drains = command == "drain"
        self._running = {name: self._start(name) for name in self._plan}

    def look(self) -> None:
        """Report batches and restart failed streams."""
        for name, query in list(self._running.items()):
            ended = not query.isActive  # read before the last progress
            progress = query.lastProgress
            if progress is not None and self._batches.get(name) != progress["batchId"]:
                self._batches[name] = progress["batchId"]
                rows = progress["numInputRows"]
                self.emit("batch", stream=name, batch=progress["batchId"], rows=rows)
            if not ended:
                continue
            del self._running[name]
            failure = query.exception()
            if failure is not None:
                self.emit("failed", stream=name, sentence=sentence_of(failure))
                Event().wait(PAUSE_S)
            if failure is not None or not self._drains:
                self._running[name] = self._start(name)
            elif not self._running:
                self.emit("drained")

    def _start(self, name: str) -> "StreamingQuery":
        spec = self._plan[name]
        reader = self._spark.readStream.format(TroupeMQ.name()).options(**spec["read"])
        writer = reader.load().selectExpr(*spec["select"]).writeStream.format(spec["format"])
        writer = writer.queryName(name).option("checkpointLocation", spec["checkpoint"])
        writer = writer.options(**spec["write"])
        if self._drains:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=TRIGGER).start()


def listen(commands: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    os._exit(0)


def main(directory: Path) -> None:
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands: SimpleQueue[str] = SimpleQueue()
    Thread(target=listen, args=(commands,), daemon=True).start()
    plan = json.loads((directory / "plan.json").read_text())
    spark = start_session(plan["settings"], str(directory))
    spark.dataSource.register(TroupeMQ)
    streams = Streams(spark, plan["streams"], output)
    streams.emit("ready")
    while True:
        try:
            streams.obey(commands.get(timeout=LOOK_S))
        except Empty:
            streams.look()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)  # not sys.exit: it would wait for threads that wait for an ended JVM
