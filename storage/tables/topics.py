"""topics.json: the topics of a broker, in the form 4.9.7 writes.

    {"dataVersion": {"counter": n, "timestamp": ms},
     "topicConfigTable": {topic: {"order", "perm", "readQueueNums", "topicFilterType", "topicName",
                                  "topicSysFlag", "writeQueueNums"}}}

Source: broker/topic/TopicConfigManager.java.
"""

from collections.abc import Mapping
from dataclasses import replace

from protocol.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE
from protocol.bodies_tables import TopicConfig, TopicConfigTable
from protocol.fastjson import dumps
from protocol.json_body import text_of
from protocol.table_rules import topic_fault
from protocol.topic_names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
)
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, raise_fault, taken_entries, taken_version

READ_WRITE = PERM_READ | PERM_WRITE

_BENCHMARK_QUEUES = 1024
_SCHEDULE_QUEUES = 18
"""One for each delay level; RocketMQ creates these regardless of messageDelayLevel."""
_CLUSTER_QUEUES = 16
_TABLE = "topicConfigTable"


def parse_topics(text: str | bytes, left_out: LeftOuts | None = None) -> TopicConfigTable:
    """Return the table in the file's text, in its order (a Parse: skipped_entry.py)."""
    found, topics = parsed_table(text, _TABLE)
    return TopicConfigTable(
        taken_entries(topics, _entry, left_out, (_TABLE,)), taken_version(found, left_out)
    )


def _entry(key: object, value: object) -> tuple[str, TopicConfig]:
    topic = TopicConfig.from_json(value)
    topic.topic_name = text_of(key)
    raise_fault(topic_fault(topic))
    return topic.topic_name, topic


def format_topics(table: TopicConfigTable) -> str:
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def completed_topics(
    table: TopicConfigTable | None,
    queue_numbers: Mapping[str, int],
    known: Mapping[str, TopicConfig],
    now_ms: int,
) -> tuple[TopicConfigTable, list[str]]:
    """Return the table with all topics that have queues in the store, and the changed names.

    Topics in the table, or else in `known`, only get more queues if they have too few.
    """
    configs = dict(table.topic_configs) if table is not None else {}
    changed: list[str] = []
    for name, count in sorted(queue_numbers.items()):
        config = configs.get(name) or known.get(name)
        if config is None:
            configs[name] = TopicConfig(name, count, count, READ_WRITE)
        elif max(config.read_queue_nums, config.write_queue_nums) < count:
            configs[name] = replace(config, read_queue_nums=count, write_queue_nums=count)
        else:
            continue
        changed.append(name)
    version = (table or TopicConfigTable()).data_version
    return TopicConfigTable(configs, version.next(now_ms) if changed else version), changed


def always_present(
    cluster: str,
    broker_name: str,
    *,
    auto_create_topic_enable: bool = True,
    default_topic_queue_nums: int = 8,
    cluster_topic_enable: bool = True,
    broker_topic_enable: bool = True,
    trace_topic: str | None = None,
) -> list[TopicConfig]:
    """Return the topics that every broker has; later ones replace earlier ones.

    `trace_topic` is the name of the trace topic if traces are enabled.
    """
    topics = [
        _topic(SELF_TEST_TOPIC, 1),
        _topic(BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        _topic(cluster, _CLUSTER_QUEUES, PERM_INHERIT | _if(cluster_topic_enable)),
        _topic(broker_name, 1, PERM_INHERIT | _if(broker_topic_enable)),
        _topic(OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
        _topic(f"{cluster}{REPLY_TOPIC_SUFFIX}", 1),
    ]
    if auto_create_topic_enable:
        perm = PERM_INHERIT | READ_WRITE
        topics.insert(1, _topic(AUTO_CREATE_TOPIC, default_topic_queue_nums, perm))
    if trace_topic is not None:
        topics.insert(-1, _topic(trace_topic, 1))
    return topics


def _topic(name: str, queue_nums: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name, queue_nums, queue_nums, perm)


def _if(enabled: bool) -> int:
    return READ_WRITE if enabled else 0
