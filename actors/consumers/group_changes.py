"""The last changes of each consumer group: who joined, left or changed it, and when.

Bounded: CHANGES_MAX of each group, and of GROUPS_MAX groups, those that changed last.  Lost with a
restart, like the groups themselves.  Times are of the wall clock, ms.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import StrEnum

from structlog import get_logger

from actors.tables.consumer_views import Member, Mismatch
from protocol.bodies_own import GroupChange

log = get_logger(__name__)

CHANGES_MAX = 64
GROUPS_MAX = 1000
COUNTED_MAX = 100_000


class GroupEvent(StrEnum):
    """What has happened."""

    JOINED = "joined"
    LEFT = "left"
    SUBSCRIBED = "changed its subscription"


def change_of(member: Member, kind: GroupEvent, why: str, members: int, now_ms: int) -> GroupChange:
    """What has happened to a member; `members` are left, or there, after it."""
    return GroupChange(now_ms, kind, member.client_id, member.peer.remote, why, members)


def log_mismatches(group: str, mismatches: Sequence[Mismatch]) -> None:
    """A line for each topic that the members do not subscribe alike, or that all is well again."""
    if not mismatches:
        log.info("consumer group subscribes alike again", group=group)
    for mismatch in mismatches:
        log.warning(
            "consumer group whose members subscribe differently",
            group=group,
            topic=mismatch.topic,
            wanted=mismatch.sentence(),
        )


class GroupHistory:
    """Owned by one actor."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[GroupChange]] = OrderedDict()
        self.counts: dict[str, int] = {}
        """By group: how many there were since the start; of those that are forgotten, too."""

    def note(self, group: str, change: GroupChange) -> None:
        """One more; the oldest goes when there are too many."""
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
        """Oldest first; empty for a group that has not changed, or that was forgotten."""
        return list(self._groups.get(group, ()))
