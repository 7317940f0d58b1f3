"""The topics of a broker, with the rules of their creation, change and deletion.

Source: broker/topic/TopicConfigManager.java.
"""

from dataclasses import replace

from actors.config import BrokerConfig
from actors.engine.server_log import get_logger
from protocol.bodies import PERM_INHERIT, DataVersion, TopicConfig, TopicConfigTable
from protocol.topic_names import (
    AUTO_CREATE_TOPIC,
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from storage.tables.topics import READ_WRITE, always_present

log = get_logger(__name__)

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
OF_GROUPS = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
"""Prefixes of retry and dead-letter topics, one of each per consumer group."""


class Topics:
    """The topics and their version."""

    def __init__(self, config: BrokerConfig, loaded: TopicConfigTable | None = None) -> None:
        """Take `loaded`, the file's table, which overrides the topics of every broker."""
        self._config = config
        self.configs = {topic.topic_name: topic for topic in _always_present(config)}
        self.system_topics = SYSTEM_TOPICS | self.configs.keys()
        self.version = DataVersion()
        self._counted_at: DataVersion | None = None
        self._own_count = 0
        if loaded is not None:
            self.configs.update(loaded.topic_configs)
            self.version = loaded.data_version

    def table(self) -> TopicConfigTable:
        """Return a copy that does not change."""
        return TopicConfigTable(dict(self.configs), self.version)

    def replace(self, table: TopicConfigTable) -> None:
        self.configs = dict(table.topic_configs)
        self.version = table.data_version

    def put(self, config: TopicConfig, now_ms: int) -> None:
        before = self.configs.get(config.topic_name)
        if before is not None and config.read_queue_nums < before.read_queue_nums:
            log.warning(
                "queues no longer read",
                topic=config.topic_name,
                first_queue=config.read_queue_nums,
                last_queue=before.read_queue_nums - 1,
                hint="consumers do not get their messages; consumer lag counts them",
            )
        self.configs[config.topic_name] = config
        self.version = self.version.next(now_ms)

    def delete(self, topic: str, now_ms: int) -> bool:
        """Delete a topic; return whether it existed."""
        if self.configs.pop(topic, None) is None:
            return False
        self.version = self.version.next(now_ms)
        return True

    def made_from_default(
        self, topic: str, default_topic: str, queue_nums: int, *, unit_mode: bool
    ) -> TopicConfig | None:
        """Return the settings of a topic created by a send; None if that is not allowed."""
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        if topic in OF_GROUPS or self.is_full(topic):
            return None
        sys_flag = (UNIT_SUB_FLAG if is_retry else UNIT_FLAG) if unit_mode else 0
        pattern = self.configs.get(default_topic)
        # the file may still have TBW102 from a time with autoCreateTopicEnable
        closed = default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable
        if pattern is not None and pattern.perm & PERM_INHERIT and not closed:
            queues = max(0, min(queue_nums, pattern.write_queue_nums))
            perm = pattern.perm & ~PERM_INHERIT
            return TopicConfig(topic, queues, queues, perm, pattern.topic_filter_type, sys_flag)
        if is_retry:
            return TopicConfig(topic, 1, 1, READ_WRITE, topic_sys_flag=sys_flag)
        return None

    def is_full(self, topic: str) -> bool:
        """Return whether the limit for this kind of topic, own or of groups, is reached."""
        is_own = topic.startswith(OF_GROUPS)
        most = 2 * self._config.auto_groups_max if is_own else self._config.auto_topics_max
        if not 0 < most <= len(self.configs):
            return False
        if self._counted_at is not self.version:
            self._counted_at = self.version
            self._own_count = sum(name.startswith(OF_GROUPS) for name in self.configs)
        return most <= (self._own_count if is_own else len(self.configs) - self._own_count)

    def set_order(self, ordered: frozenset[str], now_ms: int) -> bool:
        """Set which topics are ordered; return whether that changed any."""
        changed = [
            replace(config, order=name in ordered)
            for name, config in self.configs.items()
            if config.order != (name in ordered)
        ]
        if changed:
            self.configs.update({config.topic_name: config for config in changed})
            self.version = self.version.next(now_ms)
        return bool(changed)

    def is_system(self, topic: str) -> bool:
        """Return whether administrators must not change the topic."""
        return topic in self.system_topics or topic.startswith(SYSTEM_TOPIC_PREFIX)


def _always_present(config: BrokerConfig) -> list[TopicConfig]:
    return always_present(
        config.broker_cluster_name,
        config.broker_name,
        auto_create_topic_enable=config.auto_create_topic_enable,
        default_topic_queue_nums=config.default_topic_queue_nums,
        cluster_topic_enable=config.cluster_topic_enable,
        broker_topic_enable=config.broker_topic_enable,
        trace_topic=config.trace_topic_name if config.trace_topic_enable else None,
    )
