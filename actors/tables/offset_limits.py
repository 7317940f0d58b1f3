"""Limits of consumer offsets: the ends of queues, numbers of entries, guards against stale commits.

An offset beyond the end makes a consumer skip the messages that arrive until the queue has grown up
to it. Such offsets remain when a crash or a change of masters loses the end of the log, and when a
queue has lost all messages and units.

    at the start, queue with messages       the offset moves to the end of the queue
    at the start, queue without messages    the queue begins at the highest offset
    later                                   a commit beyond the end is ignored

4.9.7 keeps such offsets, and moves a pull beyond the end to the present end.

Offsets of known queues and groups pass up to fixed maxima. Of unknown ones, only `maxAutoGroups`
offsets are kept, because a group may be created a moment after its first commit. 4.9.7 keeps any.

Consumers commit one-way or with a pull, every few seconds and at their end. A stale member can undo
the progress of others. Commits in request form are orders and are stored as sent. For the rest,
where 4.9.7 accepts all:

    commit                                     4.9.7    here
    forward                                    stored   stored, see below
    backward, by a live member                 stored   stored
    backward, by another client                stored   ignored
    within RESET_MS of a reset of the queue:
      by a member that joined after it         stored   stored if forward
      by another client                        stored   ignored

A live member is known by the connection of its heartbeats. A Java client with vipChannelEnabled
commits over another connection, to the fast port, which carries no client id. Every live member on
the same host may then be the sender. One such member suffices; after a reset all must have joined
later.

Source: none in 4.9.7. MQClientInstance.resetOffset of the Java client waits 10 s before it commits
its new offset.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import RateLimitedLog, get_logger
from actors.network.messages import Peer
from actors.tables.consumer_views import ConsumerView, Member
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.host import address_part
from protocol.topic_names import TRANSACTION_GROUP
from storage.errors import StoreError
from storage.queues.consume_queues import ConsumeQueues
from storage.tables.committed import highest_offsets
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR, offset_key, topic_of

log = get_logger(__name__)

MOVED_LINES_MAX = 50
"""Lines about moved offsets at one start; the rest is counted."""


class OffsetBounds:
    """Queue ends, read on the loop; at the start it also lets empty queues begin."""

    def __init__(self, queues: ConsumeQueues) -> None:
        self._queues = queues

    def end(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message; 0 for a missing queue."""
        return self._queues.end_of(topic, queue_id)

    def end_of_key(self, key: str, queue_id: int) -> int:
        return self.end(topic_of(key), queue_id)

    def queue_ids(self, topic: str) -> range:
        """Return the ids of all queues that the topic may have had."""
        return range(self._queues.id_count(topic))

    def begin_empty(self, offsets: dict[str, dict[int, int]]) -> None:
        """Let queues without messages begin at the highest offset of any group.

        `offsets` are all offsets, by `topic@group`, then by queue.
        """
        begun: list[str] = []
        for (topic, queue_id), offset in highest_offsets(offsets).items():
            queue = self._queues.get(topic, queue_id)
            if queue is None or queue.is_empty:
                with suppress(
                    StoreError
                ):  # no directory can have that name, so there is no such queue
                    self._queues.begin_at(topic, queue_id, offset)
                    begun.append(f"{topic}:{queue_id}")
        if begun:
            log.info(
                "empty queues begin at the highest consumer offset",
                count=len(begun),
                queues=begun[:10],
            )

    def move_back(self, offsets: dict[str, dict[int, int]]) -> list[str]:
        """Move every offset beyond its queue to the end; return the keys."""
        moved: list[str] = []
        count = 0
        for key, queue_id, offset, end in list(self._behind(offsets)):
            offsets[key][queue_id] = end
            moved.append(key)
            count += 1
            if count <= MOVED_LINES_MAX:
                log.warning(
                    "consumer offset moved",
                    key=key,
                    queue_id=queue_id,
                    offset=offset,
                    moved_to=end,
                    reason="it was behind the end of the queue",
                )
        if count > MOVED_LINES_MAX:
            log.warning("consumer offsets moved", count=count)
        return moved

    def _behind(self, offsets: dict[str, dict[int, int]]) -> Iterator[tuple[str, int, int, int]]:
        for key, queues in offsets.items():
            topic = topic_of(key)
            for queue_id, offset in queues.items():
                if offset > 0 and offset > (end := self.end(topic, queue_id)):
                    yield key, queue_id, offset, end


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

    def takes(self, queues: Mapping[int, int], before: Mapping[int, int] | None, keys: int) -> bool:
        """Count a master's offsets in place of those `before`; return False beyond a limit.

        `keys` is the number of pairs of topic and group.
        """
        more = len(queues) - len(before or ())
        is_full = self._count + more > OFFSETS_MAX or (before is None and keys >= KEYS_MAX)
        if self._most and more > 0 and is_full:
            return False
        self._count += more
        return True

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


RESET_MS = 10_000


@dataclass(slots=True)
class OffsetStats:
    """Counters since the start. ConsumerOffsets writes them; any thread may read."""

    ignored_count: int = 0

    def ignore(self, rarely: RateLimitedLog, event: str, group: str, **about: Any) -> None:
        """Count and log an ignored commit."""
        self.ignored_count += 1
        rarely.warn(event, names=[group], group=group, **about, ignored_in_all=self.ignored_count)


@dataclass(frozen=True, slots=True)
class OffsetMoves:
    """Times when offsets last changed, since this broker observes them; kept in memory only."""

    since_ms: int = 0
    """Wall-clock time of the table's start."""
    by_key: dict[str, dict[int, int]] = field(default_factory=dict)
    """Wall-clock times in ms by `topic@group`, then by queue."""

    def at_ms(self, key: str, queue_id: int) -> int:
        """Return when the offset last changed; 0 if it has not changed since the start."""
        return self.by_key.get(key, {}).get(queue_id, 0)


class OffsetGuard:
    """Recent resets by queue and group. Owned by one actor; times are monotonic."""

    def __init__(
        self, consumers: SnapshotRef[Mapping[str, ConsumerView]], stats: OffsetStats
    ) -> None:
        self._consumers = consumers
        self._stats = stats
        self._resets: dict[tuple[str, str, int], float] = {}

    def is_member(self, group: str, peer: Peer) -> bool:
        """Return whether the connection belongs to a live member of the group."""
        return self.member(group, peer) is not None

    def consumes(self, group: str, topic: str, peer: Peer) -> bool:
        """Return whether this is a live member's connection and its group has the topic."""
        view = self._consumers.value.get(group)
        return view is not None and topic in view.subscriptions and self.is_member(group, peer)

    def member(self, group: str, peer: Peer) -> Member | None:
        """Return the member of the connection; of several candidates the first to join."""
        view = self._consumers.value.get(group)
        if view is None:
            return None
        member = view.members.get(peer.peer_id)
        if member is not None or not peer.is_fast:
            return member
        address = address_part(peer.host)
        near = [each for each in view.members.values() if address_part(each.peer.host) == address]
        return min(near, key=lambda each: each.joined_ms, default=None)

    def reset(self, group: str, topic: str, queue_ids: Iterable[int], now_ms: float) -> None:
        for queue_id in queue_ids:
            self._resets[group, topic, queue_id] = now_ms

    def expire(self, now_ms: float) -> None:
        resets = self._resets
        self._resets = {key: at for key, at in resets.items() if now_ms - at < RESET_MS}

    def concerns(self, group: str, topic: str, queue_id: int, *, backward: bool) -> bool:
        """Return whether a commit needs a check; most do not."""
        return backward or (bool(self._resets) and (group, topic, queue_id) in self._resets)

    def believes(
        self, group: str, topic: str, queue_id: int, peer: Peer, now_ms: float, *, backward: bool
    ) -> bool:
        """Return whether to store the commit of this connection."""
        reset_ms = self._resets.get((group, topic, queue_id))
        member = self.member(group, peer)
        if reset_ms is not None and now_ms - reset_ms < RESET_MS:
            return not backward and member is not None and member.joined_ms > reset_ms
        return not backward or member is not None
