"""Limit of consumer offsets, above all of unknown groups and topics.

Offsets of known queues and groups pass up to fixed maxima. Of unknown ones, only `maxAutoGroups`
offsets are kept, because a group may be created a moment after its first commit. 4.9.7 keeps any.
"""

from collections.abc import Mapping

from actors.engine.snapshot_ref import SnapshotRef
from protocol.bodies import SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.topic_names import TRANSACTION_GROUP
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR, offset_key

KEYS_MAX = 500_000
"""Pairs of topic and group; each takes some 1.3 KiB with four queues and the published copy."""
OFFSETS_MAX = 2_000_000
"""Offsets of all queues; one topic may have 65,536 queues, each with an offset of every group."""


class OffsetCeiling:
    """Counts of stored offsets. Owned by the actor of the offsets."""

    def __init__(
        self,
        groups: SnapshotRef[Mapping[str, SubscriptionGroupConfig]],
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        most: int,
    ) -> None:
        """Take `most`, the value of `maxAutoGroups`; 0: no limit."""
        self._groups, self._topics, self._most = groups, topics, most
        self._strange: set[tuple[str, int]] = set()
        self._count = 0
        """Offsets of all queues; may include deleted ones."""

    def begin(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Count the offsets of the file; all of them stay."""
        self._strange = {
            (key, queue_id)
            for key, queues in offsets.items()
            for queue_id in queues
            if not self._knows(key, queue_id)
        }
        self._count = sum(map(len, offsets.values()))

    def count_again(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Count again if a limit is reached, as groups may be known by now and offsets deleted."""
        if self._count >= OFFSETS_MAX:
            self._count = sum(map(len, offsets.values()))
        if 0 < self._most <= len(self._strange):
            self._strange = {
                (key, queue_id)
                for key, queue_id in self._strange
                if queue_id in offsets.get(key, ()) and not self._knows(key, queue_id)
            }

    def note_kept(self, offsets: int) -> None:
        """Count offsets of new queues."""
        self._count += offsets

    def count(self, group: str, topic: str, queue_id: int, keys: int) -> LimitReached | None:
        """Count a new offset; return the refusal if it exceeds a limit.

        `keys` is the number of pairs of topic and group.
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
