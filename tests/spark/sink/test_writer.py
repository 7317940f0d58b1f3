"""The PySpark writers without Spark: what the driver may say as often as it likes."""

from collections.abc import Iterator
from pathlib import Path
from pickle import dumps, loads
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from spark.sink import writer as writer_module
from spark.sink.writer import BatchSink, SentByTask, StreamSink
from spark.source.data_source import TroupeMQ
from storage.errors import StoreError
from tests.spark.sink.served import Served, batches, serving

SCHEMA = StructType([StructField("body", BinaryType()), StructField("tags", StringType())])
ROWS = [{"body": b"%d" % number, "tags": "a"} for number in range(8)]


class Context:
    """A task's context, as far as a sink looks at it."""

    def __init__(self, partition: int, **properties: str) -> None:
        self.partition, self.properties = partition, properties

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name.rpartition(".")[2])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(Path(tmp_path_factory.mktemp("writer"))) as served:
        yield served


@pytest.fixture
def given(served: Served) -> dict[str, str]:
    return {"nameServer": served.name_server.address, "topic": "orders", "sendTimeoutMs": "0"}


def in_task(monkeypatch: pytest.MonkeyPatch, partition: int = 0, **properties: str) -> None:
    context = Context(partition, **properties)
    monkeypatch.setattr(writer_module, "_context", lambda: context)


def shipped(sink: Any) -> Any:
    """Return the writer as a task receives it."""
    return loads(dumps(sink))


def test_a_repeated_commit_and_an_abort_after_it_change_nothing(
    served: Served, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**given, "checkpointLocation": "/checkpoint"}
    in_task(monkeypatch, 3, queryId="query", batchId="11")
    sink = TroupeMQ(options).streamWriter(SCHEMA, False)
    message = shipped(sink).write(iter(batches(ROWS)))
    assert message == SentByTask(8, 0)
    sink.commit([message], 11)
    stored = served.records()
    assert b":3:11:7:" in stored[-1].properties
    sink.commit([message], 11)
    sink.abort([message], 11)
    assert served.records() == stored
    assert shipped(sink).write(iter(batches(ROWS))) == SentByTask(0, 8)
    sink.abort([None], 11)
    sink.commit([message], 11)
    assert served.records() == stored
    in_task(monkeypatch, 3, queryId="query", batchId="12")
    assert shipped(sink).write(iter(batches(ROWS))) == SentByTask(8, 0)


def test_each_write_is_new_unless_it_has_a_version(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(monkeypatch)

    def written(**options: str) -> Any:
        sink = TroupeMQ({**given, **options}).writer(SCHEMA, False)
        first, again = (shipped(sink).write(iter(batches(ROWS))) for _ in range(2))
        assert again == SentByTask(0, 8), "a task that Spark runs again is the same one"
        sink.commit([first])
        sink.abort([first])
        return first

    assert written() == written() == SentByTask(8, 0)
    assert written(txnAppId="nightly", txnVersion="5") == SentByTask(8, 0)
    assert written(txnAppId="nightly", txnVersion="5") == SentByTask(0, 8)
    assert written(txnAppId="nightly", txnVersion="4") == SentByTask(0, 8)
    assert written(txnAppId="nightly", txnVersion="6") == SentByTask(8, 0)


def test_an_invalid_write_is_refused_before_any_send(served: Served, given: dict[str, str]) -> None:
    stored = served.records()
    wrong = StructType([*SCHEMA.fields, StructField("flags", IntegerType())])
    with pytest.raises(StoreError, match="a topic cannot be overwritten"):
        TroupeMQ(given).writer(SCHEMA, True)
    for make in (TroupeMQ(given).writer, TroupeMQ(given).streamWriter):
        with pytest.raises(StoreError, match="no column flags to write: did you mean flag"):
            make(wrong, False)
    with pytest.raises(StoreError, match="knows no topic nowhere"):
        TroupeMQ({**given, "topic": "nowhere"}).writer(SCHEMA, False)
    with pytest.raises(StoreError, match="a stream has its checkpoint"):
        TroupeMQ({**given, "txnAppId": "a", "txnVersion": "1"}).streamWriter(SCHEMA, False)
    with pytest.raises(StoreError, match="the sink of troupemq has no option topics"):
        TroupeMQ({**given, "topics": "a"}).writer(SCHEMA, False)
    assert served.records() == stored


def test_a_sink_outside_a_task_is_an_error(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for sink in (
        TroupeMQ(given).writer(SCHEMA, False),
        TroupeMQ(given).streamWriter(SCHEMA, False),
    ):
        assert isinstance(sink, BatchSink | StreamSink)
        with pytest.raises(StoreError, match="in tasks of Spark only"):
            sink.write(iter(()))
    in_task(monkeypatch)
    with pytest.raises(StoreError, match="which query and batch"):
        TroupeMQ(given).streamWriter(SCHEMA, False).write(iter(()))
