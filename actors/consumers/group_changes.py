"""Recent changes of each consumer group: members that joined, left or changed subscriptions.

Members are notified of a change, with a limit for each round of the loop.

Limits: CHANGES_MAX per group, and the GROUPS_MAX groups that changed last. A restart loses them,
like the groups themselves. Times are wall clock, ms.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from actors.consumers.consumer_groups import ConsumerGroup
from actors.engine.server_log import get_logger
from actors.network.client_calls import next_opaque
from actors.network.messages import Peer
from actors.tables.consumer_views import Member, Mismatch
from protocol.bodies_own import GroupChange
from protocol.codes import RequestCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.client import NotifyConsumerIdsChangedHeader

log = get_logger(__name__)

NOTICES_PER_ROUND = 500
"""Each takes 8 µs to make, and as much again to write."""
CHANGES_MAX = 64
GROUPS_MAX = 1000
COUNTED_MAX = 100_000
MISMATCHES_LOGGED_MAX = 10
"""Topics of a group with a log line each at a change, 40 µs; a group may have thousands."""


class GroupEvent(StrEnum):
    JOINED = "joined"
    LEFT = "left"
    SUBSCRIBED = "changed its subscription"


def change_of(member: Member, kind: GroupEvent, why: str, members: int, now_ms: int) -> GroupChange:
    """Return the record of a member's change; `members` counts the members after it."""
    return GroupChange(now_ms, kind, member.client_id, member.peer.remote, why, members)


def log_mismatches(group: str, mismatches: Sequence[Mismatch]) -> None:
    """Log the first topics with differing subscriptions, or that members subscribe alike again."""
    if not mismatches:
        log.info("consumer group subscribes alike again", group=group)
    shown = mismatches[:MISMATCHES_LOGGED_MAX]
    for mismatch in shown:
        left = len(mismatches) - len(shown) if mismatch is shown[-1] else 0
        log.warning(
            "consumer group whose members subscribe differently",
            group=group,
            topic=mismatch.topic,
            wanted=mismatch.sentence(),
            **({"more_topics": left} if left else {}),
        )


class GroupHistory:
    """Recent changes by group. Owned by one actor."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[GroupChange]] = OrderedDict()
        self.counts: dict[str, int] = {}
        """Number of changes since the start, by group; includes forgotten groups."""

    def note(self, group: str, change: GroupChange) -> None:
        """Add a change; drop the oldest ones over the limits."""
        if len(self.counts) < COUNTED_MAX or group in self.counts:
            self.counts[group] = self.counts.get(group, 0) + 1
        changes = self._groups.get(group)
        if changes is None:
            changes = self._groups[group] = deque(maxlen=CHANGES_MAX)
            if len(self._groups) > GROUPS_MAX:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        changes.append(change)

    def of(self, group: str) -> list[GroupChange]:
        """Return the changes, oldest first; empty for an unchanged or forgotten group."""
        return list(self._groups.get(group, ()))


class GroupNotices:
    """Notices to the members of changed groups, limited per round of the loop.

    Every change of a group notifies all its members. A client in 1,000 groups that comes or goes
    causes 1,000 times as many notices as a group has members. The rest goes out in the next rounds.
    A group that changes again meanwhile is notified once.
    """

    def __init__(self, groups: Mapping[str, ConsumerGroup]) -> None:
        self._groups = groups
        self._left = NOTICES_PER_ROUND
        self._untold: OrderedDict[str, None] = OrderedDict()
        self._fields: dict[str, str] = {}
        self._peers: Iterator[Peer] = iter(())

    @property
    def is_used(self) -> bool:
        """Whether this round has sent notices."""
        return self._left < NOTICES_PER_ROUND

    def begin_round(self) -> None:
        """Reset the number of notices that a round allows."""
        self._left = NOTICES_PER_ROUND

    def send(self, groups: Iterable[str] = ()) -> None:
        """Notify the members of `groups` after earlier ones, up to the limit of the round."""
        self._untold.update(dict.fromkeys(groups))
        while self._left > 0:
            peer = next(self._peers, None)
            if peer is not None:
                self._left -= 1
                code, opaque = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, next_opaque()
                peer.send(RemotingCommand(code, self._fields, opaque=opaque, flag=ONEWAY_FLAG))
            elif self._untold:
                name, _ = self._untold.popitem(last=False)
                group = self._groups.get(name)
                if group is None:
                    self._left -= 1
                    continue
                self._fields = NotifyConsumerIdsChangedHeader(name).encode()
                self._peers = iter(group.peers())
            else:
                return
