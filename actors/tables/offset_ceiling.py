"""The ceiling of consumer offsets: how many are kept of groups and topics that nobody knows.

An offset is of a queue, a topic and a group. What the tables have always passes; of the rest there
are as many as a client may make groups (`maxAutoGroups`), for a group may be told a moment after
its first commit. 4.9.7 keeps whatever it is given.
"""

from collections.abc import Mapping

from actors.engine.snapshot_ref import SnapshotRef
from protocol.bodies import SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from storage.tables.groups import TRANSACTION_GROUP
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR, offset_key

KEYS_MAX = 500_000
"""Topics of groups, with known names, too; of four queues each is some 1.3 KiB with its copy, and
all are written again every few seconds."""
OFFSETS_MAX = 2_000_000
"""Queues of all of them: one topic may have 65,536, and each group an offset of each."""


class OffsetCeiling:
    """Owned by one actor, as are the offsets, by `topic@group`, then by queue."""

    def __init__(
        self,
        groups: SnapshotRef[Mapping[str, SubscriptionGroupConfig]],
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        most: int,
    ) -> None:
        """`most` is `maxAutoGroups`; 0: no ceiling."""
        self._groups, self._topics, self._most = groups, topics, most
        self._strange: set[tuple[str, int]] = set()
        self._count = 0
        """Offsets of all queues, some of which may be gone."""

    def begin(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Counts what was in the file: it stays, but it counts."""
        self._strange = {
            (key, queue_id)
            for key, queues in offsets.items()
            for queue_id in queues
            if not self._knows(key, queue_id)
        }
        self._count = sum(map(len, offsets.values()))

    def count_again(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """When it is full: some may be known now, or gone."""
        if self._count >= OFFSETS_MAX:
            self._count = sum(map(len, offsets.values()))
        if 0 < self._most <= len(self._strange):
            self._strange = {
                (key, queue_id)
                for key, queue_id in self._strange
                if queue_id in offsets.get(key, ()) and not self._knows(key, queue_id)
            }

    def note_kept(self, offsets: int) -> None:
        """Count offsets of queues that were not there."""
        self._count += offsets

    def count(self, group: str, topic: str, queue_id: int, keys: int) -> LimitReached | None:
        """Counts an offset that is not there yet; why it cannot be kept, where it is one too many.

        `keys` is how many topics of groups there are.
        """
        key = offset_key(topic, group)
        if not self._most:
            return None
        if keys >= KEYS_MAX or self._count >= OFFSETS_MAX:
            return LimitReached(
                ResponseCode.SYSTEM_ERROR,
                f"offsets of {KEYS_MAX} topics of groups are kept at the most, and {OFFSETS_MAX}"
                " of their queues",
                "too many consumer offsets",
            )
        if self._knows(key, queue_id):
            return None
        if len(self._strange) < self._most or (key, queue_id) in self._strange:
            self._strange.add((key, queue_id))
            return None
        code, what = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}]"
        if self._knows_group(group):
            code, what = ResponseCode.TOPIC_NOT_EXIST, f"queue {queue_id} of topic[{topic}]"
        remark = f"{what} does not exist, and {self._most} offsets of such are kept (maxAutoGroups)"
        return LimitReached(code, remark, "offset not kept: maxAutoGroups")

    def _knows_group(self, group: str) -> bool:
        return group in self._groups.value or group == TRANSACTION_GROUP

    def _knows(self, key: str, queue_id: int) -> bool:
        topic, _, group = key.rpartition(TOPIC_GROUP_SEPARATOR)
        config = self._topics.value.get(topic)
        return (
            config is not None
            and self._knows_group(group)
            and queue_id < max(config.read_queue_nums, config.write_queue_nums)
        )
