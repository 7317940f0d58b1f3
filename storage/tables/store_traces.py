"""Traces of topics and groups in the rest of a store, for when their own files are lost.

    consumequeue/<topic>/<queue id>/        a topic with messages, and its queues
    consumequeue/%RETRY%<group>, %DLQ%…     a group with failed consumers
    config/consumerOffset.json              topic@group: queue: a topic and its consumer group

Traces have no permissions or limits; restored topics and groups get the defaults.
"""

from collections.abc import Collection, Iterable, Mapping

from protocol.bodies_tables import SubscriptionGroupTable, TopicConfig, TopicConfigTable
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from storage.errors import StoreError
from storage.files.disk import Disk
from storage.tables.groups import completed_groups
from storage.tables.json_config import Loaded, load
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR, parse_offsets
from storage.tables.topics import completed_topics

QUEUE_ID_MAX = (1 << 31) - 2
_GROUP_PREFIXES = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


def restored_topics(
    disk: Disk,
    path: str,
    loaded: Loaded[TopicConfigTable],
    known: Mapping[str, TopicConfig],
    queued: Mapping[str, int],
    now_ms: int,
    queues_made: Collection[tuple[str, int]] = (),
) -> tuple[TopicConfigTable, list[str]]:
    """Return the topic table for a start, and the names of restored topics.

    Every broker has the `known` topics. The `queued` topics must exist, with at least so many
    queues. The `queues_made` count as traces, although they have no directory yet.
    """
    table, numbers = loaded.value, dict(queued)
    if table is None or not loaded.is_newest or loaded.left_out:
        traces = StoreTraces(disk, path).queue_numbers()
        for topic, queue_id in queues_made:
            _raise_to(traces, topic, queue_id + 1)
        if table is not None and loaded.is_newest:  # the others are valid
            lost = {each.entry for each in loaded.left_out}
            traces = {topic: traces[topic] for topic in lost & traces.keys()}
        for topic, count in traces.items():
            _raise_to(numbers, topic, count)
    if table is None or numbers:
        return completed_topics(table, numbers, known, now_ms)
    return table, []


def restored_groups(
    disk: Disk,
    path: str,
    loaded: Loaded[SubscriptionGroupTable],
    retried: Collection[str],
    now_ms: int,
    queues_made: Collection[tuple[str, int]] = (),
) -> tuple[SubscriptionGroupTable, list[str]]:
    """Return the group table for a start, and the restored names; `retried` must exist."""
    table, named = loaded.value, set(retried)
    if table is None or not loaded.is_newest or loaded.left_out:
        traces = StoreTraces(disk, path).groups() | groups_of(topic for topic, _ in queues_made)
        if table is not None and loaded.is_newest:  # the others are valid
            traces &= {each.entry for each in loaded.left_out}
        named |= traces
    return completed_groups(table, named, now_ms)


def groups_of(topics: Iterable[str]) -> set[str]:
    """Return the groups that own these retry and dead-letter topics."""
    return {
        topic.removeprefix(prefix)
        for topic in topics
        for prefix in _GROUP_PREFIXES
        if topic.startswith(prefix)
    }


class StoreTraces:
    """Finds traces in one store. Reads many directories, so only for a start."""

    def __init__(self, disk: Disk, config_path: str) -> None:
        """Create a finder; `config_path` is any file in the config directory."""
        self._disk = disk
        self._config_dir = config_path.rpartition("/")[0]
        self._root = self._config_dir.rpartition("/")[0]

    def queue_numbers(self) -> dict[str, int]:
        """Return the number of queues of each topic: one more than the highest used id."""
        numbers: dict[str, int] = {}
        directory = f"{self._root}/consumequeue"
        for topic in self._names(directory):
            for name in self._names(f"{directory}/{topic}"):
                if (
                    name.isascii()
                    and name.isdecimal()
                    and len(name) <= 10
                    and int(name) <= QUEUE_ID_MAX
                ):
                    _raise_to(numbers, topic, int(name) + 1)
        for topic, _, queue_ids in self._consumed():
            _raise_to(numbers, topic, max(queue_ids) + 1)
        return {topic: count for topic, count in numbers.items() if _is_text(topic)}

    def groups(self) -> set[str]:
        found = {group for _, group, _ in self._consumed() if group}
        found |= groups_of(self._names(f"{self._root}/consumequeue"))
        return {group for group in found if group and _is_text(group)}

    def _consumed(self) -> list[tuple[str, str, list[int]]]:
        """Return topic, group and queue ids of all known offsets."""
        try:
            offsets = load(self._disk, f"{self._config_dir}/consumerOffset.json", parse_offsets)
        except StoreError:
            return []
        if offsets.value is None:
            return []
        found = []
        for key, queues in offsets.value.offset_table.items():
            topic, at, group = key.partition(TOPIC_GROUP_SEPARATOR)
            queue_ids = [number for number in queues if number <= QUEUE_ID_MAX]
            if at and topic and queue_ids:
                found.append((topic, group, queue_ids))
        return found

    def _names(self, directory: str) -> list[str]:
        try:
            return self._disk.listdir(directory)
        except OSError:
            return []


def _raise_to(numbers: dict[str, int], topic: str, count: int) -> None:
    numbers[topic] = max(numbers.get(topic, 0), count)


def _is_text(name: str) -> bool:
    """Return whether the name is valid in JSON; a directory name may have any bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
