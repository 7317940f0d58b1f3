"""State of a half message, from the transaction table and from appends not dispatched yet.

The table follows the log. Between an append and its dispatch, only the appending actor knows the
new state. It is kept here until the table has it.

    PREPARED    open                            COMMITTED     committed and settled
    COMMITTING  a commit is stored, but not     ROLLED_BACK   settled without a commit
                the record that settles it      REPLACED      a newer copy counts
    DISCARDED   checked too often, or too old
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from protocol.message import MessageRecord
from storage.message_store import MessageStore
from storage.transactions.table import TransactionTable
from storage.transactions.units import PENDING_STATES, PREPARED, REPLACED


class HalfState(NamedTuple):
    """State of a half message, of the copy that counts if it can be found."""

    state: int
    physical_offset: int
    queue_offset: int


@dataclass(slots=True)
class _Seen:
    """State after an own append; the table knows it when it covers the log up to `end`."""

    state: int
    end: int
    newer: tuple[int, int] = (-1, -1)
    """Physical offset and queue offset of the copy that replaces it."""


W = TypeVar("W")


class Standings(Generic[W]):
    """States of one broker's half messages. One owner, on the event loop like the table's owner."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.busy: dict[int, list[W]] = {}
        """Half messages with an append in progress, and the requests that wait for it."""
        self._seen: dict[int, _Seen] = {}
        self._order: deque[tuple[int, int]] = deque()

    def table(self) -> TransactionTable | None:
        """Return the table; None while a thread builds and owns it."""
        table = self._store.transaction_table
        return None if table.name in self._store.lagging.behind else table

    def whole_table(self) -> TransactionTable | None:
        """Return the table if it covers everything dispatched; else None."""
        table = self.table()
        if table is None or table not in self._store.dispatcher.followers:
            return None
        return table

    def note(self, offset: int, state: int, end: int) -> None:
        """Note that a record below `end` of the log brings a half message to `state`."""
        self._keep(offset, _Seen(state, end))

    def note_replaced(self, offset: int, newer: tuple[int, int], end: int) -> None:
        """Note the copy that replaces a half message: its physical offset and queue offset."""
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
        """Return whether a half message that is pending in the table is really open.

        It is not if it has a newer state or an append in progress.
        """
        return offset not in self._seen and offset not in self.busy

    def is_untouched(self, offset: int) -> bool:
        """Return whether a half message is open, not copied, and without an append in progress."""
        table = self.table()
        if table is None or offset in self._seen or offset in self.busy:
            return False
        pending = table.get_pending(offset)
        if pending is None:
            return offset >= table.covered_offset
        return pending.state == PREPARED

    def of(self, half: MessageRecord) -> HalfState:
        """Return the state of a half message, or of the copy that replaces it."""
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
        """Follow own appends from copy to copy; return PREPARED if none is known."""
        seen = self._seen.get(offset)
        while seen is not None and seen.state == REPLACED:
            offset, queue_offset = seen.newer
            seen = self._seen.get(offset)
        return HalfState(PREPARED if seen is None else seen.state, offset, queue_offset)
