"""All ledgers of a broker, kept in step with the table of consumer offsets.

A consumer offset that no ledger has committed comes from elsewhere: a reset, a deletion of the
topic, a clone, a pull of the same group. The ledger then begins there. The table is read on every
use, so that no other actor has to know about receives.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from actors.engine.interfaces import SnapshotRef
from actors.receipts.ledger import Ledger
from actors.tables.messages import AdvanceOffset
from actors.tables.offset_journal import Ahead
from actors.tables.offset_searches import Offsets
from protocol.headers.pop import FROM_MIN
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.message_store import MessageStore
from storage.tables.offsets import offset_key

IN_FLIGHT_MAX = 200_000
"""Messages in flight of all queues, some 70 MiB.

A group has at most as many as are left for others, half of them if it is alone; past that its
receives get nothing. So no group takes the messages in flight of all others.
"""


LEDGERS_MAX = 200_000
"""Queues of all groups that receive, 250 MiB; any group may receive from any topic.

Past it, a receive gets nothing from another queue until unused ledgers are forgotten.
"""

SWEPT_AT_ONCE = 4_000
"""Ledgers looked at in one step of a search for unused ones: 5 ms."""

_NONE: Mapping[int, int] = {}


class Ledgers:
    """Ledgers by group, topic and queue. One owner."""

    def __init__(
        self,
        store: MessageStore,
        offsets: SnapshotRef[Offsets],
        ahead: SnapshotRef[Ahead],
        starts_in_memory: Callable[[str, int], bool],
    ) -> None:
        """`offsets` are the present ones, and `ahead` are settled messages above them.

        `starts_in_memory` tells whether a queue is young.
        """
        self._store, self._offsets, self._ahead = store, offsets, ahead
        self._starts_in_memory = starts_in_memory
        self._ledgers: dict[tuple[str, str, int], Ledger] = {}
        self._changed: dict[Ledger, None] = {}
        self._busy: dict[Ledger, None] = {}
        """Ledgers that may have messages in flight; most have none."""
        self._unused: set[Ledger] = set()
        self._search: Iterator[None] = iter(())

    def __iter__(self) -> Iterator[Ledger]:
        """Yield all ledgers with messages in flight, and some others."""
        return iter([*self._busy])

    def has(self, ledger: Ledger) -> bool:
        return self._ledgers.get(ledger.place) is ledger

    @property
    def in_flight(self) -> Counter[str]:
        """Messages in flight by group."""
        found: Counter[str] = Counter()
        for each in self:
            if count := each.count:
                found[each.group] += count
            else:
                del self._busy[each]
        return found

    def stored(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the present consumer offset."""
        return self._offsets.value.get(offset_key(topic, group), {}).get(queue_id)

    def find(self, group: str, topic: str, queue_id: int) -> Ledger | None:
        """Return the ledger of a queue; None if the group has never received from it.

        Past LEDGERS_MAX, a queue without a ledger gets none.
        """
        return (
            self._known(group, topic, queue_id) if self.has_room(group, topic, queue_id) else None
        )

    def _known(self, group: str, topic: str, queue_id: int) -> Ledger | None:
        ledger = self._ledgers.get((group, topic, queue_id))
        if ledger is None:
            stored = self.stored(group, topic, queue_id)
            if stored is None:
                return None
            ledger = self._begin(group, topic, queue_id, stored)
            queue = self._store.consume_queues.get(topic, queue_id)
            ledger.is_former = queue is not None and stored < queue.max_offset
            return ledger
        stored = self._offsets.value.get(ledger.key, _NONE).get(queue_id)
        if not ledger.agrees(stored):
            self._begin_again(ledger, stored)
        return ledger

    def has_room(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a queue has a ledger or may get one."""
        return len(self._ledgers) < LEDGERS_MAX or (group, topic, queue_id) in self._ledgers

    def peek(self, group: str, topic: str, queue_id: int) -> Ledger | None:
        """Return the ledger of a queue, perhaps behind the table of consumer offsets."""
        return self._ledgers.get((group, topic, queue_id))

    def open(self, group: str, topic: str, queue_id: int, init_mode: int = FROM_MIN) -> Ledger:
        """Return the ledger of a queue; a group without an offset begins where `init_mode` says.

        There is no limit here: a copy that is stored needs the ledger of its retry queue.
        """
        ledger = self._known(group, topic, queue_id)
        if ledger is None:
            ledger = self._begin(group, topic, queue_id, None, init_mode)
        ledger.init_mode = init_mode
        return ledger

    def _begin(
        self, group: str, topic: str, queue_id: int, stored: int | None, init_mode: int = FROM_MIN
    ) -> Ledger:
        ledger = Ledger(group, topic, queue_id, is_retry=topic == RETRY_TOPIC_PREFIX + group)
        ledger.init_mode = init_mode
        self._ledgers[group, topic, queue_id] = ledger
        self._begin_again(ledger, stored)
        return ledger

    def _begin_again(self, ledger: Ledger, stored: int | None) -> None:
        start = self._start(ledger) if stored is None else stored
        ahead = self._ahead.value.get((ledger.key, ledger.queue_id))
        settled = () if ahead is None else [each for each in ahead.offsets() if each >= start]
        ledger.begin(stored, start, settled)
        self.note_changed(ledger)

    def _start(self, ledger: Ledger) -> int:
        """Return where a group without a consumer offset begins."""
        topic, queue_id = ledger.topic, ledger.queue_id
        queue = self._store.consume_queues.get(topic, queue_id)
        if queue is None:
            return 0
        if ledger.is_retry or ledger.init_mode == FROM_MIN:
            return queue.min_offset
        return 0 if self._starts_in_memory(topic, queue_id) else queue.max_offset

    def note_changed(self, ledger: Ledger) -> None:
        """Note that the messages in flight have changed: the consumer offset may advance."""
        self._changed[ledger] = self._busy[ledger] = None

    def commits(self) -> list[AdvanceOffset]:
        """Return the consumer offsets to store."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        found: list[AdvanceOffset] = []
        for ledger in changed:
            if ledger.ahead:  # the next message may be settled by a handle from before a restart
                queue = self._store.consume_queues.get(ledger.topic, ledger.queue_id)
                ledger.pass_settled(0 if queue is None else queue.max_offset)
            commit = ledger.commit()
            if commit is not None:
                found.append(AdvanceOffset(*ledger.place, commit[1], commit[0], commit[2]))
        return found

    def committed(self, commits: Sequence[AdvanceOffset]) -> None:
        """Note the answer to these commits."""
        for each in commits:
            ledger = self._ledgers.get((each.group, each.topic, each.queue_id))
            if ledger is not None:
                ledger.committed(each.offset)

    def look_for_unused(self) -> None:
        """Begin a search for unused ledgers, which `forget_some` continues."""
        self._search = self.forget_unused()

    def forget_some(self) -> None:
        next(self._search, None)

    def forget_unused(self) -> Iterator[None]:
        """Forget ledgers that have been empty and unchanged since the last search, in steps.

        Forget those of deleted topics and groups as well, whatever is in them.
        """
        for number, ledger in enumerate([*self._ledgers.values()], 1):
            was_unused = ledger in self._unused
            self._unused.discard(ledger)
            if self.has(ledger) and self._is_empty(ledger):
                if was_unused:
                    ledger.begin(None, 0)
                    del self._ledgers[ledger.place]
                    self._busy.pop(ledger, None)
                else:
                    self._unused.add(ledger)
            if number % SWEPT_AT_ONCE == 0:
                yield

    def note_used(self, ledger: Ledger) -> None:
        """Note that a receive has asked a queue."""
        self._unused.discard(ledger)

    def _is_empty(self, ledger: Ledger) -> bool:
        stored = self._offsets.value.get(ledger.key, _NONE).get(ledger.queue_id)
        if not ledger.agrees(stored):
            return True  # the next use begins again
        return not (
            ledger.count
            or ledger.ahead
            or ledger.moved
            or ledger.tries
            or ledger in self._changed
            or stored not in (None, ledger.next)
        )
