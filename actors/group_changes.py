"""Who joined, left or changed a consumer group, when: the last of each, for operators.

Bounded: CHANGES_MAX of each group, and of GROUPS_MAX groups, those that changed last.  Lost with a
restart, like the groups themselves.  Times are of the wall clock, ms.
"""

from collections import OrderedDict, deque
from enum import StrEnum

from protocol.bodies_own import GroupChange

CHANGES_MAX = 64
GROUPS_MAX = 1000


class Change(StrEnum):
    """What has happened."""

    JOINED = "joined"
    LEFT = "left"
    SUBSCRIBED = "changed its subscription"


class GroupChanges:
    """Owned by one actor."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[GroupChange]] = OrderedDict()

    def note(self, group: str, change: GroupChange) -> None:
        """One more; the oldest goes when there are too many."""
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
