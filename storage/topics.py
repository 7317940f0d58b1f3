"""topics.json: the topics of a broker, in the form 4.9.7 writes.

    {"dataVersion": {"counter": n, "timestamp": ms},
     "topicConfigTable": {topic: {"order", "perm", "readQueueNums", "topicFilterType", "topicName",
                                  "topicSysFlag", "writeQueueNums"}}}

Source: broker/topic/TopicConfigManager.java.
"""

from protocol.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig, TopicConfigTable
from protocol.fastjson import dumps, loads
from protocol.topic_names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
)

READ_WRITE = PERM_READ | PERM_WRITE

_BENCHMARK_QUEUES = 1024
_SCHEDULE_QUEUES = 18
"""One for each delay level; the original makes them whatever messageDelayLevel says."""
_CLUSTER_QUEUES = 16


def parse_topics(text: str) -> TopicConfigTable:
    """The table in the file's text, in its order. Raises RemoteError or FastjsonError."""
    return TopicConfigTable.from_json(loads(text))


def format_topics(table: TopicConfigTable) -> str:
    """The text of the file."""
    return dumps(table.to_json(), pretty=True).decode("utf-8")


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
    """The topics that every broker has, without being asked; later ones replace earlier ones.

    `trace_topic` is its name where traces are enabled.
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
