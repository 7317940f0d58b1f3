"""Guard against stale offset commits; 4.9.7 accepts all.

Consumers commit one-way or with a pull, every few seconds and at their end. A stale member can undo
the progress of others. Commits in request form are orders and are stored as sent. For the rest:

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.engine.rate_limited_log import RateLimitedLog
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.request import Peer
from actors.tables.consumer_views import ConsumerView, Member
from protocol.host import address_part

RESET_MS = 10_000


@dataclass(slots=True)
class OffsetStats:
    """Counters since the start. ConsumerOffsets writes them; any thread may read."""

    ignored_count: int = 0


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

    def ignored(
        self,
        rarely: RateLimitedLog,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        stored: int,
        client: str,
    ) -> None:
        self._stats.ignored_count += 1
        rarely.warn(
            "offset commit ignored",
            names=[group],
            group=group,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            stored=stored,
            peer=client,
            ignored_in_all=self._stats.ignored_count,
        )
