"""Options of the data source, and the refusal of invalid ones; without Spark."""

import pickle
from typing import Any

import pytest

from spark.decoding.columns import COLUMNS
from spark.source.options import (
    EARLIEST,
    LATEST,
    NAMES,
    Options,
    Position,
    QueueName,
    parse_options,
)
from spark.source.plan import RANGE_BYTES
from spark.source.row_filter import Expression
from storage.errors import StoreError
from tests.support.golden import REPOSITORY

A_QUEUE = '{"t":{"0":7}}'


def parsed(**given: str) -> Options:
    return parse_options({"store": "/s", **given})


def test_everything_is_read_and_a_loss_is_an_error_by_default() -> None:
    options = parsed()
    assert (options.topics, options.topic_pattern, options.expression) == (None, None, None)
    assert (options.starting, options.ending) == (None, None)
    assert (options.fail_on_data_loss, options.include_properties) == (True, True)
    assert options.max_bytes_per_partition == RANGE_BYTES


def test_option_names_ignore_case_as_spark_passes_them() -> None:
    options = parse_options({"path": "/s", "topicpattern": "a.*", "FAILONDATALOSS": "False"})
    assert options.store == "/s"
    assert options.topic_pattern is not None and options.topic_pattern.pattern == "a.*"
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"topic": "t"}, "topics", {"t"}),
        ({"topics": "t, u"}, "topics", {"t", "u"}),
        ({"startingOffsets": "earliest"}, "starting", Position("startingOffsets", EARLIEST)),
        ({"endingOffsets": "latest"}, "ending", Position("endingOffsets", LATEST)),
        (
            {"startingOffsets": '{"t":{"0":7,"1":-2}}'},
            "starting",
            Position("startingOffsets", offsets={("t", 0): 7, ("t", 1): -2}),
        ),
        (
            {"startingOffsets": '{"t":{"b":{"0":7}}}', "brokerName": "b"},
            "starting",
            Position("startingOffsets", offsets={("t", 0): 7}),
        ),
        (
            {"startingTimestamp": "5"},
            "starting",
            Position("startingTimestamp", timestamp_ms=5),
        ),
        (
            {"endingOffsetsByTimestamp": A_QUEUE},
            "ending",
            Position("endingOffsetsByTimestamp", timestamps_ms={("t", 0): 7}),
        ),
        ({"minPartitions": "3"}, "min_partitions", 3),
        ({"maxRecordsPerPartition": "3"}, "max_records_per_partition", 3),
        ({"maxOffsetsPerTrigger": "3"}, "max_offsets_per_trigger", 3),
        ({"publishedOffset": "0"}, "published_offset", 0),
        ({"includeProperties": "false"}, "include_properties", False),
        ({"subExpression": "a || b"}, "expression", Expression(frozenset("ab"))),
        ({"subExpression": "*"}, "expression", Expression(None)),
        ({"subExpression": "a IS NULL"}, "expression", Expression(None, "a IS NULL")),
        ({"subExpression": "a>5"}, "expression", Expression(None, "a>5")),
        (
            {"subExpression": "TRUE", "expressionType": "SQL92"},
            "expression",
            Expression(None, "TRUE"),
        ),
        (
            {"subExpression": "a b", "expressionType": "TAG"},
            "expression",
            Expression(frozenset(["a b"])),
        ),
    ],
)
def test_each_option_is_parsed(given: dict[str, str], name: str, value: Any) -> None:
    options = parsed(**given)
    assert getattr(options, name) == value
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingOffset": "earliest"}, "no option startingOffset: did you mean startingOffsets?"),
        ({"xyzzy": "1"}, "troupemq has no option xyzzy: it has store, "),
        ({"path": "/other"}, "store and the path of load() name two stores: give one of them"),
        ({"store": ""}, "store is missing: give the broker's storePathRootDir"),
        ({"nameServer": "h:1"}, "nameServer and store contradict each other: give one of them"),
        ({"topic": "t", "topics": "u"}, "topic and topics contradict each other: give one"),
        ({"topics": "u", "topicPattern": "u"}, "topics and topicPattern contradict each other"),
        ({"topic": "t,u"}, "topic is one topic: several with commas between are given as topics"),
        ({"topics": "t,,u"}, "topics has an empty name in it"),
        ({"topicPattern": "("}, "topicPattern is no regular expression: "),
        ({"startingOffsets": "first"}, "startingOffsets is first: it must be earliest, latest, or"),
        ({"endingOffsets": "earliest"}, "endingOffsets is earliest: it must be latest, or JSON"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets has -2 in it: -1 (latest) and more"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "has -3 in it: -2 (earliest), -1 (latest) and"),
        ({"startingOffsets": "{"}, 'startingOffsets must be JSON {"topic":{"0":7,"1":9}}'),
        ({"startingOffsets": '{"t":7}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"t":{"zero":7}}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"t":{"0":"7"}}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"t":{"b":{"0":7}}}'}, "whose name brokerName can give"),
        ({"startingOffsets": '{"t":{"b":{"0":7}}}', "brokerName": "c"}, "this is one store, of c"),
        (
            {"startingOffsets": "earliest", "startingTimestamp": "5"},
            "startingOffsets and startingTimestamp contradict each other: give one of them",
        ),
        (
            {"endingTimestamp": "5", "endingOffsetsByTimestamp": A_QUEUE},
            "endingTimestamp and endingOffsetsByTimestamp contradict each other",
        ),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is yesterday: it must be a number"),
        (
            {"startingTimestamp": "6", "endingTimestamp": "5"},
            "endingTimestamp 5 is before startingTimestamp 6: exchange them",
        ),
        (
            {"startingTimestamp": "8", "endingOffsetsByTimestamp": A_QUEUE},
            "endingOffsetsByTimestamp 7 is before startingTimestamp 8: exchange them",
        ),
        (
            {"startingOffsetsByTimestamp": A_QUEUE, "endingTimestamp": "6"},
            "endingTimestamp 6 is before startingOffsetsByTimestamp 7: exchange them",
        ),
        (
            {"startingOffsets": '{"t":{"0":8}}', "endingOffsets": A_QUEUE},
            "endingOffsets 7 is before startingOffsets 8",
        ),
        (
            {"startingOffsets": "latest", "endingOffsets": "latest"},
            "startingOffsets is latest: with endingOffsets nothing can be between",
        ),
        ({"minPartitions": "0"}, "minPartitions is 0: it must be a number from 1 on"),
        ({"maxRecordsPerPartition": "-5"}, "maxRecordsPerPartition is -5: it must be a number"),
        ({"maxOffsetsPerTrigger": "1e6"}, "maxOffsetsPerTrigger is 1e6: it must be a number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is no: it must be true or false"),
        ({"includeProperties": ""}, "includeProperties is : it must be true or false"),
        ({"expressionType": "TAG"}, "expressionType says what subExpression is: give that, too"),
        (
            {"subExpression": "a", "expressionType": "SQL"},
            "expressionType is SQL: it must be TAG or SQL92",
        ),
        ({"subExpression": "a >"}, "subExpression a > cannot be read: "),
        ({"subExpression": "||"}, "subExpression || cannot be read: "),
        ({"subExpression": " || "}, "subExpression is  || : name tags, as in a || b, or *"),
    ],
)
def test_invalid_or_contradictory_options_are_named(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(StoreError) as refused:
        parsed(**given)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"nameServer": "host"}, "nameServer: 'host' is not an address of the form host:port"),
        ({"path": "/s"}, "nameServer and store contradict each other: give one of them"),
        ({"commitLog": "/s"}, "nameServer and commitLog contradict each other: it is of a store"),
        ({"brokerName": "b"}, "brokers tell their names themselves: leave it out"),
        ({"startingOffsets": A_QUEUE}, 'must be JSON {"topic":{"broker":{"0":7,"1":9}}} with name'),
        ({"startingOffsets": '{"t":{"b":{"0":-3}}}'}, "startingOffsets has -3 in it"),
    ],
)
def test_options_without_effect_over_the_network_are_named(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(StoreError) as refused:
        parse_options({"nameServer": "h:1", **given})
    assert sentence in str(refused.value)


def test_over_the_network_queues_have_broker_names_and_several_servers_work() -> None:
    given = {"nameServer": "h:1; i:2", "startingOffsets": '{"t":{"b":{"0":7},"c":{"0":-2}}}'}
    options = parse_options(given)
    assert (options.store, options.name_servers) == ("", ("h:1", "i:2"))
    offsets: dict[QueueName, int] = {("t", 0, "b"): 7, ("t", 0, "c"): -2}
    assert options.starting == Position("startingOffsets", offsets=offsets)


def test_batches_refuse_trigger_options_and_streams_refuse_end_options() -> None:
    with pytest.raises(StoreError, match="maxOffsetsPerTrigger limits the batches of a stream"):
        parsed(maxOffsetsPerTrigger="5").check_batch()
    with pytest.raises(StoreError, match="endingOffsets is for reads with an end"):
        parsed(endingOffsets="latest").check_stream()
    parsed(endingOffsets="latest").check_batch()
    parsed(maxOffsetsPerTrigger="5").check_stream()


def test_every_option_and_every_column_is_documented() -> None:
    tables = (REPOSITORY / "docs" / "pipeline.md").read_text()
    first_cells = {
        name.strip()
        for line in tables.splitlines()
        if line.startswith("| ")
        for name in line.split("|")[1].split(",")
    }
    told_by_jobs = {"ranges"}
    assert {*NAMES, *COLUMNS} - first_cells == told_by_jobs
