"""Program that runs steps in one Spark session: `python -m tests.spark.probe DIRECTORY`.

DIRECTORY/steps.json has the steps by name; their results go to DIRECTORY/results.json.

    {"do": "archive", "arguments": …}                              → its report, or {"error": …}
    {"do": "job", "job": …, "arguments": …}                        → its report
    {"do": "rows", "store": …, "options", "schema", "where": …}    → rows of the data source; null:
                                                                     the options name the store
    {"do": "read", "path": …}                                      → count and columns of Parquet
    {"do": "frame", "path": …}                                     → an archive's rows by manifests
    {"do": "to Parquet", "options", "schema", "to": …}             → Parquet, a file for each task
    {"do": "write", "store": …, "options", "read", "columns": …}   → a batch of a store to a topic
    {"do": "write stream", …, "checkpoint": …}                     → the same as a stream, to its
                                                                     end: each batch's number
    {"do": "forget commit", "checkpoint": …}                       → the last batch is repeated
    {"do": "page", "blocks": …, "folder": …}                       → its programs run in order: the
                                                                     rows they put into the table
    {"do": "copy", "from": …, "to": …}                             → one more copy of a store
    {"do": "stream", "store": …, "options", "checkpoint": …, "fail_at": …}
        → one run with AvailableNow: each batch that began, with its number and rows; the lag
          after each; the batch with the number `fail_at` fails after it was written
"""

import json
import sys
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

from spark.jobs import archive, load_job
from spark.runner import sentence_of
from spark.session import DEFAULTS, start_session
from troupemq.datasource import TroupeMQ, behind, read_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    # For a short life: halves the CPU time of start and first job.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def rows(spark: "SparkSession", step: dict[str, Any]) -> list[dict[str, Any]]:
    reader = spark.read.format(TroupeMQ.name()).options(**step.get("options", {}))
    if "schema" in step:
        reader = reader.schema(step["schema"])
    messages = reader.load(step.get("store")).where(step.get("where", "true"))
    if "conf" in step:
        spark.conf.set(*step["conf"])
    try:
        return [row.asDict() for row in messages.collect()]
    finally:
        if "conf" in step:
            spark.conf.set(step["conf"][0], DEFAULTS[step["conf"][0]])


def read(spark: "SparkSession", step: dict[str, Any]) -> dict[str, Any]:
    found = spark.read.parquet(step["path"])
    return {"count": found.count(), "columns": found.columns}


def frame(spark: "SparkSession", step: dict[str, Any]) -> list[dict[str, Any]]:
    rows = read_archive(spark, step["path"]).collect()
    return [row.asDict() for row in rows]


def stream(spark: "SparkSession", step: dict[str, Any]) -> dict[str, Any]:
    batches: list[Any] = []

    def write(batch: "DataFrame", number: int) -> None:
        rows = batch.select("topic", "queueId", "queueOffset").collect()
        batches.append([number, [list(row) for row in rows]])
        if number == step.get("fail_at"):
            raise RuntimeError(f"batch {number} fails")

    reader = spark.readStream.format(TroupeMQ.name()).options(**step.get("options", {}))
    writer = reader.load(step.get("store")).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True)
    started = query.start()
    error = None
    try:
        started.awaitTermination()
    except Exception as failure:
        error = sentence_of(failure)
    lags = [behind(json.loads(progress.json)) for progress in started.recentProgress]
    return {"batches": batches, "lags": lags, "error": error}


def to_parquet(spark: "SparkSession", step: dict[str, Any]) -> None:
    messages = spark.read.format(TroupeMQ.name()).options(**step["options"]).schema(step["schema"])
    messages.load().write.parquet(step["to"])


def write(spark: "SparkSession", step: dict[str, Any]) -> None:
    reader = spark.read.format(TroupeMQ.name()).options(**step.get("read", {}))
    rows = reader.load(step["store"]).selectExpr(*step["columns"])
    writer = rows.write.format(TroupeMQ.name()).mode(step.get("mode", "append"))
    writer.options(**step["options"]).save()


def write_stream(spark: "SparkSession", step: dict[str, Any]) -> list[int]:
    reader = spark.readStream.format(TroupeMQ.name()).options(**step["read"])
    rows = reader.load(step["store"]).selectExpr(*step["columns"])
    writer = rows.writeStream.format(TroupeMQ.name()).options(**step["options"])
    started = writer.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True)
    query = started.start()
    query.awaitTermination()
    return [progress.batchId for progress in query.recentProgress if progress.numInputRows]


def page(spark: "SparkSession", step: dict[str, Any]) -> list[str]:
    folder = Path(step["folder"])
    (folder / "sold").mkdir(parents=True)
    (folder / "sold" / "1.json").write_text('{"region": "north", "customer": "c1"}\n')
    spark.sql(f"CREATE DATABASE page LOCATION '{folder}/tables'")
    spark.catalog.setCurrentDatabase("page")
    orders = spark.readStream.schema("region string, customer string").json(f"{folder}/sold")
    rows = spark.createDataFrame([("a book",)], "body string")
    names: dict[str, Any] = {"spark": spark, "orders": orders, "rows": rows}
    for block in step["blocks"]:
        exec(block, names)
        for query in spark.streams.active:
            query.processAllAvailable()
    for query in spark.streams.active:
        query.stop()
    found = [
        f"{row.topic} {row.queueId} {row.queueOffset}" for row in spark.table("orders").collect()
    ]
    spark.catalog.setCurrentDatabase("default")
    return sorted(found)


def account(spark: "SparkSession", step: dict[str, Any]) -> int:
    given = {**step["options"], "secretKey": sys.stdin.readline().strip()}
    spark.sparkContext.setLogLevel("INFO")
    rows = spark.read.format(TroupeMQ.name()).options(**given).load().select("topic", "body")
    for mode in ("simple", "extended", "formatted", "cost", "codegen"):
        rows.explain(mode=mode)
    count = rows.count()
    writer = rows.selectExpr("body").limit(1).write.format(TroupeMQ.name()).options(**given)
    writer.mode("append").save()
    stream = spark.readStream.format(TroupeMQ.name()).options(startingOffsets="earliest", **given)
    sink = stream.load().selectExpr("'x' as body", "tags").writeStream.format(TroupeMQ.name())
    sink = sink.options(checkpointLocation=step["checkpoint"], **given)
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress)
    try:
        refused = {**given, "topic": step["denied"]}
        spark.read.format(TroupeMQ.name()).options(**refused).load().count()
    except Exception as error:
        print("failed as it should:", error, flush=True)
    spark.sparkContext.setLogLevel(DEFAULTS["spark.log.level"])
    return count


def forget_commit(step: dict[str, Any]) -> None:
    """Remove the last commit, as a crash between the sink's end and Spark's own note does."""
    commits = Path(step["checkpoint"]) / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / f"{last}").unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def copy(step: dict[str, Any]) -> None:
    copytree(step["from"], step["to"], dirs_exist_ok=True)


def run(spark: "SparkSession", step: dict[str, Any]) -> Any:
    try:
        match step["do"]:
            case "job":
                return load_job(step["job"]).main(spark, step["arguments"])
            case "archive":
                return archive.main(spark, step["arguments"])
            case "rows":
                return rows(spark, step)
            case "read":
                return read(spark, step)
            case "frame":
                return frame(spark, step)
            case "write":
                return write(spark, step)
            case "to Parquet":
                return to_parquet(spark, step)
            case "write stream":
                return write_stream(spark, step)
            case "forget commit":
                return forget_commit(step)
            case "page":
                return page(spark, step)
            case "account":
                return account(spark, step)
            case "copy":
                return copy(step)
            case "stream":
                return stream(spark, step)
    except Exception as error:
        return {"error": sentence_of(error)}


def text_of(value: Any) -> str:
    """Convert bytes and dates, which JSON lacks."""
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def main(directory: Path) -> None:
    steps = json.loads((directory / "steps.json").read_text())
    events = directory / "events"
    events.mkdir()
    settings = {
        **QUICK,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",  # for tests that read it
    }
    spark = start_session(settings, str(directory))
    spark.dataSource.register(TroupeMQ)
    results = {name: run(spark, step) for name, step in steps.items()}
    (directory / "results.json").write_text(json.dumps(results, default=text_of))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
