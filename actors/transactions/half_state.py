"""The state of a half message: from the transaction table, and from puts not dispatched yet.

The table follows the log; between a put and its dispatch only whoever had it put knows of it.  Such
knowledge is kept until the table has it too.

    PREPARED    nobody has ended it                COMMITTED     a commit, and what settles it
    COMMITTING  a commit is stored, and nothing    ROLLED_BACK   settled without a commit
                settles it yet                     REPLACED      a newer copy counts
    DISCARDED   given up
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from protocol.message import MessageRecord
from storage.message_store import MessageStore
from storage.transactions.table import TransactionTable
from storage.transactions.units import PENDING_STATES, PREPARED, REPLACED


class HalfState(NamedTuple):
    """The state of a half message, and of which copy of it: the one that counts, where that can be
    found."""

    state: int
    physical_offset: int
    queue_offset: int


@dataclass(slots=True)
class _Seen:
    """Put by us; the table knows it when it covers the log up to `end`."""

    state: int
    end: int
    newer: tuple[int, int] = (-1, -1)
    """Place in the log and number of the copy that replaces it."""


W = TypeVar("W")


class Standings(Generic[W]):
    """Answers for one broker. One owner, on the loop, where the table's owner lives too."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.busy: dict[int, list[W]] = {}
        """Half messages of which something is being put, and who waits for that."""
        self._seen: dict[int, _Seen] = {}
        self._order: deque[tuple[int, int]] = deque()

    def table(self) -> TransactionTable | None:
        """The table; None while it is being made, by a thread that owns it then."""
        table = self._store.transaction_table
        return None if table.name in self._store.lagging.behind else table

    def whole_table(self) -> TransactionTable | None:
        """The table, if it knows all that the queues know; else None."""
        table = self.table()
        if table is None or table not in self._store.dispatcher.followers:
            return None
        return table

    def note(self, offset: int, state: int, end: int) -> None:
        """A record below `end` of the log has brought the half message at `offset` to `state`."""
        self._keep(offset, _Seen(state, end))

    def note_replaced(self, offset: int, newer: tuple[int, int], end: int) -> None:
        """It lies in the log again: place and number of its copy."""
        self._keep(offset, _Seen(REPLACED, end, newer))

    def _keep(self, offset: int, seen: _Seen) -> None:
        self._forget_known(self.table())
        self._seen[offset] = seen
        self._order.append((seen.end, offset))

    def _forget_known(self, table: TransactionTable | None) -> None:
        order = self._order
        if table is None or not order:
            return
        covered = table.covered_offset
        while order and order[0][0] <= covered:
            end, offset = order.popleft()
            seen = self._seen.get(offset)
            if seen is not None and seen.end == end:
                del self._seen[offset]

    def is_open(self, offset: int) -> bool:
        """Whether a half message that the table calls pending is so, and left alone."""
        return offset not in self._seen and offset not in self.busy

    def is_untouched(self, offset: int) -> bool:
        """Whether nobody has ended the half message there, or put it again."""
        table = self.table()
        if table is None or offset in self._seen or offset in self.busy:
            return False
        pending = table.get_pending(offset)
        if pending is None:
            return offset >= table.covered_offset
        return pending.state == PREPARED

    def of(self, half: MessageRecord) -> HalfState:
        """How it stands with a half message, or with the copy that replaces it."""
        table = self.table()
        self._forget_known(table)
        found = self._followed(half.physical_offset, half.queue_offset)
        if found.state != PREPARED or table is None:
            return found
        pending = table.get_pending(found.physical_offset)
        if pending is not None:
            state = pending.state
            return found if state == PREPARED else HalfState(state, *found[1:])
        unit = table.find(found.physical_offset)
        if unit is None:
            return found
        if unit.state != REPLACED:
            return found._replace(state=unit.state)
        last = table.last_copy(half)
        if last is None:
            return found._replace(state=REPLACED)
        if last.state not in PENDING_STATES:
            return found._replace(state=last.state)
        pending = table.get_pending(last.physical_offset)
        assert pending is not None
        found = self._followed(last.physical_offset, pending.queue_offset)
        return found._replace(state=last.state) if found.state == PREPARED else found

    def _followed(self, offset: int, queue_offset: int) -> HalfState:
        """What we have put, from copy to copy; PREPARED where we know nothing."""
        seen = self._seen.get(offset)
        while seen is not None and seen.state == REPLACED:
            offset, queue_offset = seen.newer
            seen = self._seen.get(offset)
        return HalfState(PREPARED if seen is None else seen.state, offset, queue_offset)
