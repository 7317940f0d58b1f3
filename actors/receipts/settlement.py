"""Ends of a message in flight: acknowledged, extended, copied, stored again.

    acknowledged             gone
    changed                  another deadline, and another nonce: the former handle is void
    past its deadline        copied to the group's retry topic or dead-letter queue; a batch
                             received in order is handed out again, and copied only when a message
                             has used up its tries
    lowest of a long queue   stored again in the retry topic and still in flight there, so that
                             the consumer offset can pass

A handle is valid while its nonce is the one of the message's delivery. A message that has not
been handed out since the start has no nonce: a handle from before is valid, unless the message came
after the handle. It then is another message, in a queue that has been deleted or cut off since.

Plain classes on the event loop. Copies are requested by the actor.

Deadlines is a plain table of deliveries. They are found by the tick of their deadline, so that a
tick costs what is due. A delivery that lives with its connection has no deadline until the
connection closes.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from actors.receipts.hand_out import Haul
from actors.receipts.ledger import Delivery, Entry, EntryState, Holder, Ledger
from actors.receipts.ledgers import IN_FLIGHT_MAX, Ledgers
from actors.sending.messages import HeldReturned
from protocol.java_numbers import LONG_END
from protocol.properties import failure_bytes
from protocol.receipts import ReceivedQueue, kind_of

Key = TypeVar("Key", int, str)

TICK_MS = 100
"""Accuracy of deadlines."""

GRACE_MS = 1_000.0
"""Time between the end of a connection and the return of its messages."""


class Deadlines:
    """All deliveries with messages in flight. One owner; times are monotonic."""

    def __init__(self, now_ms: float) -> None:
        self._by_tick: dict[int, dict[Delivery, None]] = {}
        self._by_peer: dict[int, dict[str, dict[Delivery, None]]] = {}
        """Deliveries by connection and group."""
        self._ended: list[tuple[float, dict[Delivery, None]]] = []
        """Deliveries of connections that have ended, with the time of their return."""
        self._tick = int(now_ms) // TICK_MS
        """The next tick to look at."""
        self.now_ms = now_ms
        """Time of the last call of `due`."""

    def add(self, delivery: Delivery) -> None:
        """Note a delivery: by its deadline, or by its connection."""
        if delivery.is_bound:
            groups = self._by_peer.setdefault(delivery.peer.peer_id, {})
            groups.setdefault(delivery.ledger.group, {})[delivery] = None
        else:
            self._by_tick.setdefault(self._tick_of(delivery), {})[delivery] = None

    def leave(self, delivery: Delivery, count: int = 1) -> None:
        """Note that messages have left their delivery; forget an empty one."""
        delivery.left -= count
        if delivery.left == 0:
            self._remove(delivery)

    def _remove(self, delivery: Delivery) -> None:
        if delivery.is_bound:
            groups = self._by_peer.get(delivery.peer.peer_id, {})
            _drop(groups, delivery.ledger.group, delivery)
            if not groups:
                self._by_peer.pop(delivery.peer.peer_id, None)
        else:
            _drop(self._by_tick, self._tick_of(delivery), delivery)

    def _tick_of(self, delivery: Delivery) -> int:
        """Return the first tick at or behind the deadline."""
        return max(self._tick, -(-int(delivery.deadline_ms) // TICK_MS))

    def due(self, now_ms: float) -> list[Delivery]:
        """Remove and return the deliveries past their deadline, the earliest first."""
        self.now_ms = now_ms
        found: list[Delivery] = []
        last = int(now_ms) // TICK_MS
        if last - self._tick > len(self._by_tick):  # after a pause, or with few deliveries
            ticks = sorted(tick for tick in self._by_tick if tick <= last)
        else:
            ticks = [*range(self._tick, last + 1)]
        for tick in ticks:
            found += self._by_tick.pop(tick, ())
        self._tick = last + 1
        for _, deliveries in [each for each in self._ended if each[0] <= now_ms]:
            found += deliveries
        self._ended = [each for each in self._ended if each[0] > now_ms]
        return found

    def end(self, peer_id: int, deadline_ms: float, group: str | None = None) -> None:
        """Give the deliveries of a connection a deadline: those of one group, or all.

        What is acknowledged until then stays in the table, and has nothing to return.
        """
        groups = self._by_peer.get(peer_id, {})
        for each in [*groups] if group is None else [group]:
            if each in groups:
                self._ended.append((deadline_ms, groups.pop(each)))
        if not groups:
            self._by_peer.pop(peer_id, None)


def _drop(table: dict[Key, dict[Delivery, None]], key: Key, delivery: Delivery) -> None:
    found = table.get(key)
    if found is not None and delivery in found:
        del found[delivery]
        if not found:
            del table[key]


AGAIN_MS = 1_000.0
"""Time between a failed copy and the next one."""
MOVED_AT_ONCE = 64
"""Messages of a crowded queue that are stored again at a time."""
TOO_LONG = "its properties leave no room for those of a retry: it is handed out again"
FAILURES_MAX = 10_000
"""Reasons of retries that have not begun, 10 MiB; past it the oldest is forgotten."""


@dataclass(slots=True)
class Copy:
    """A message to store again."""

    entry: Entry
    delay_level: int | None
    is_move: bool = False


@dataclass(slots=True, frozen=True)
class Terms:
    """Conditions of one receive's messages."""

    nonce: int
    deadline_ms: float
    holder: Holder
    now_ms: float
    in_order: bool = False
    attempt_id: str = ""
    failure: str = ""
    """Reason of the retry at the deadline."""


class Settlement:
    """Messages in flight of all queues. Used by Receipts alone."""

    def __init__(
        self,
        ledgers: Ledgers,
        deadlines: Deadlines,
        physical_offset: Callable[[str, int, int], int | None],
        tries_max: Callable[[str], int],
        came_at: Callable[[str, int, int], int],
    ) -> None:
        """`physical_offset(topic, queue_id, offset)` is that of a message in the log.

        `tries_max(group)` is the number of retries before the dead-letter queue. `came_at(topic,
        queue_id, offset)` is the time of a message, in ms as in nonces, LONG_END if unknown.
        """
        self._ledgers, self._deadlines, self._came_at = ledgers, deadlines, came_at
        self._physical_offset, self._tries_max = physical_offset, tries_max
        self.copies: deque[Copy] = deque()
        """Messages to store again, to be taken by the owner."""
        self.freed: dict[tuple[str, str, int], None] = {}
        """Group, topic and queue of batches received in order that are out of the way."""
        self._moving: set[Entry] = set()
        self._moving_groups: dict[str, int] = {}
        self._failures: dict[Entry, str] = {}
        self._rests_until_ms = 0.0
        """Time until which nothing is stored again, after a failure."""
        self._in_flight: Counter[str] = Counter()
        """Messages in flight by group; may count some that a reset has dropped."""
        self._in_flight_of_all = 0

    def has_room(self, group: str) -> bool:
        """Return whether a group has fewer messages in flight than are left for others."""
        return self._in_flight[group] < IN_FLIGHT_MAX - self._in_flight_of_all

    def count_again(self) -> None:
        """Count what is in flight; call it every few seconds."""
        self._in_flight = self._ledgers.in_flight
        self._in_flight_of_all = self._in_flight.total()

    def _count(self, ledger: Ledger, number: int) -> None:
        self._in_flight[ledger.group] += number
        self._in_flight_of_all += number

    # --- from the receive to its end

    def deliver(self, haul: Haul, terms: Terms) -> ReceivedQueue:
        """Note messages as in flight; return them for the answer."""
        ledger, entries = haul.ledger, haul.entries
        offsets = haul.order
        if haul.offsets:
            delivery = self._delivery(ledger, haul.offsets, terms)
            ledger.hand_out(delivery)
            self._deadlines.add(delivery)
        if entries:
            delivery = self._delivery(ledger, [each.offset for each in entries], terms)
            self._deadlines.add(delivery)
        for entry in entries:
            entry.delivery = delivery
            if entry.offset not in ledger.entries:
                ledger.take(entry)
        tries = 0
        if terms.in_order:
            ledger.is_ordered, ledger.attempt_id = True, terms.attempt_id
            tries = max(each.tries for each in entries)
            for entry in entries:
                ledger.tries[entry.offset] = entry.tries + 1
        self._count(ledger, len(offsets))
        self._ledgers.note_changed(ledger)
        return ReceivedQueue(kind_of(ledger.topic), ledger.queue_id, offsets, tries)

    def _delivery(self, ledger: Ledger, offsets: list[int], terms: Terms) -> Delivery:
        return Delivery(
            ledger,
            terms.nonce,
            offsets,
            deadline_ms=terms.deadline_ms,
            peer=terms.holder,
            since_ms=terms.now_ms,
        )

    def acknowledge(self, ledger: Ledger | None, offset: int, nonce: int) -> bool:
        """Settle a message; return whether its handle is valid, or it is settled already."""
        if ledger is None:
            return False
        if (delivery := ledger.held.get(offset)) is not None:
            if delivery.nonce != nonce:
                return False
            del ledger.held[offset]
            ledger.settled.append(offset)
            self._note_settled(ledger, delivery, 1)
            return True
        return self._end(ledger, offset, nonce, self._void_from(ledger, (offset,), nonce))

    def _void_from(self, ledger: Ledger, offsets: Sequence[int], nonce: int) -> int:
        """Return the first of ascending offsets, at or above `next`, with another message."""
        topic, queue_id, first = ledger.topic, ledger.queue_id, bisect_left(offsets, ledger.next)
        end = bisect_right(
            offsets, nonce, first, key=lambda each: self._came_at(topic, queue_id, each)
        )
        return offsets[end] if end < len(offsets) else LONG_END

    def _end(self, ledger: Ledger, offset: int, nonce: int, void_from: int) -> bool:
        """Settle a message with an entry, or without a delivery below `void_from`."""
        entry = ledger.find(offset)
        if entry is None:
            if offset >= ledger.next:
                if offset >= void_from or len(ledger.ahead) >= ledger.ahead_max:
                    return False
                ledger.ahead.add(offset)
                self._note_passed(ledger, offset)
            return True
        if not self._is_valid(entry, nonce):
            return False
        self._settle(entry)
        return True

    def acknowledge_all(self, ledger: Ledger | None, offsets: Sequence[int], nonce: int) -> int:
        """Settle several messages of a queue; return how many were still in flight or are now."""
        if ledger is None:
            return 0
        held, count = ledger.held, 0
        void_from = self._void_from(ledger, offsets, nonce)
        left: dict[Delivery, int] = {}
        for offset in offsets:
            delivery = held.get(offset)
            if delivery is None:
                count += self._end(ledger, offset, nonce, void_from)
            elif delivery.nonce != nonce:
                continue
            else:
                del held[offset]
                ledger.settled.append(offset)
                left[delivery] = left.get(delivery, 0) + 1
        for delivery, number in left.items():
            self._note_settled(ledger, delivery, number)
            count += number
        return count

    def _note_settled(self, ledger: Ledger, delivery: Delivery, count: int) -> None:
        self._deadlines.leave(delivery, count)
        self._count(ledger, -count)
        self._ledgers.note_changed(ledger)

    def change(self, ledger: Ledger | None, offset: int, nonce: int, terms: Terms) -> Entry | None:
        """Give a message another deadline and nonce; return None if its handle is not valid."""
        if ledger is None:
            return None
        entry = ledger.find(offset)
        if entry is None:
            entry = self._adopted(ledger, offset, nonce)
        if entry is None or not self._is_valid(entry, nonce):
            return None
        since_ms = terms.now_ms if entry.delivery is None else entry.delivery.since_ms
        self._leave(entry)
        entry.delivery = self._delivery(ledger, [offset], terms)
        entry.delivery.since_ms = since_ms
        entry.state = EntryState.HELD
        self._deadlines.add(entry.delivery)
        self._failures.pop(entry, None)
        if terms.failure:
            self._failures[entry] = failure_bytes(terms.failure).decode()
            if len(self._failures) > FAILURES_MAX:
                del self._failures[next(iter(self._failures))]
        return entry

    def failure_of(self, entry: Entry) -> str | None:
        """Return the reason that the client gave for the retry of a message."""
        return self._failures.get(entry)

    def give_back(
        self, ledger: Ledger | None, offset: int, nonce: int, holder: Holder, failure: str = ""
    ) -> Entry | None:
        """Begin the copy of a message that its client wants to be retried.

        Return None if its handle is not valid. The caller requests the copy.
        """
        terms = Terms(nonce, 0.0, holder, 0.0, failure=failure)
        entry = self.change(ledger, offset, nonce, terms)
        if entry is None or entry in self._moving:
            return None
        self._leave(entry)
        entry.state = EntryState.COPYING
        return entry

    def _adopted(self, ledger: Ledger, offset: int, nonce: int) -> Entry | None:
        """Return a message that was handed out before a restart as one in flight."""
        if offset < ledger.next or offset in ledger.ahead or ledger.is_ordered:
            return None
        if len(ledger.ahead) >= ledger.ahead_max or not self.has_room(ledger.group):
            return None
        physical_offset = self._physical_offset(ledger.topic, ledger.queue_id, offset)
        if physical_offset is None or offset >= self._void_from(ledger, (offset,), nonce):
            return None
        entry = Entry(ledger, offset, physical_offset, EntryState.KEPT, 0)
        ledger.take(entry)
        self._count(ledger, 1)
        self._ledgers.note_changed(ledger)
        return entry

    # --- deadlines

    def expire(self, delivery: Delivery, now_ms: float) -> None:
        """Let the messages of a delivery go back that are still held."""
        for entry in delivery.held():
            if entry.state is not EntryState.HELD:
                continue
            if entry in self._moving:
                self._hold_again(entry, now_ms + TICK_MS)
            elif entry.ledger.is_ordered:
                entry.state = EntryState.OVER
            elif entry.is_too_long:
                self._put_back(entry)
            else:
                entry.state = EntryState.COPYING
                self.copies.append(Copy(entry, None))
        if delivery.ledger.is_over:
            self._end_batch(delivery.ledger)

    def _end_batch(self, ledger: Ledger) -> None:
        """Hand a batch received in order out again, without messages that had all their tries."""
        most = self._tries_max(ledger.group)
        dead = [
            each
            for each in ledger.entries.values()
            if ledger.tries[each.offset] > most and not each.is_too_long
        ]
        for entry in dead:
            entry.state = EntryState.COPYING
            self.copies.append(Copy(entry, -1))
        if not dead:
            self._count(ledger, -len(ledger.entries))
            for entry in ledger.entries.values():
                self._failures.pop(entry, None)
            ledger.rewind()
            self._free(ledger)

    def returned(self, result: HeldReturned, retries: Callable[[str, int], Ledger]) -> None:
        """Note the result of a copy; `retries(group, queue_id)` is a ledger of the retry topic."""
        entry: Entry = result.held
        if result.is_move:
            self._moved(entry, result, retries)
            return
        if not self._ledgers.has(entry.ledger) or entry.ledger.entries.get(entry.offset) != entry:
            return  # the group's offset has been reset meanwhile
        if result.is_stored or result.is_gone:
            ledger = entry.ledger
            self._settle(entry)
            if ledger.entries and ledger.is_over:
                self._end_batch(ledger)
        else:
            if result.is_too_long:
                entry.is_too_long, result.remark = True, TOO_LONG
            entry.state = EntryState.HELD
            self._hold_again(entry, self._deadlines.now_ms + AGAIN_MS)

    def _hold_again(self, entry: Entry, deadline_ms: float) -> None:
        """Keep a message under the same handle for a moment; its client may still settle it."""
        former = entry.delivery
        assert former is not None
        place, offset = entry.origin or (entry.ledger, entry.offset)
        entry.delivery = Delivery(
            place,
            former.nonce,
            [offset],
            deadline_ms=deadline_ms,
            peer=former.peer,
            since_ms=former.since_ms,
        )
        self._deadlines.add(entry.delivery)

    # --- crowded queues

    def move(self, ledger: Ledger) -> None:
        """Have the lowest messages of a queue stored again, and let its offset pass."""
        if self.is_moving(ledger.group) or self._deadlines.now_ms < self._rests_until_ms:
            return
        for entry in ledger.lowest_entries(MOVED_AT_ONCE):
            self._moving.add(entry)
            self._moving_groups[ledger.group] = self._moving_groups.get(ledger.group, 0) + 1
            self.copies.append(Copy(entry, None, is_move=True))

    def is_moving(self, group: str) -> bool:
        """Whether messages of a group are being stored again: its retry topic must not be read."""
        return group in self._moving_groups

    def _moved(
        self, entry: Entry, result: HeldReturned, retries: Callable[[str, int], Ledger]
    ) -> None:
        if entry not in self._moving:
            return  # of an actor that has failed
        self._moving.discard(entry)
        group, former = entry.ledger.group, entry.ledger
        self._moving_groups[group] -= 1
        if not self._moving_groups[group]:
            del self._moving_groups[group]
        if not result.is_stored:
            self._rests_until_ms = self._deadlines.now_ms + AGAIN_MS
            if result.is_gone and former.entries.get(entry.offset) is entry:
                self._settle(entry)
            return
        (record,) = result.results
        ledger, offset = retries(group, record.queue_id), record.queue_offset
        is_there = former.entries.get(entry.offset) is entry
        if not is_there:  # acknowledged meanwhile
            if offset >= ledger.next:
                ledger.ahead.add(offset)
            self._note_passed(ledger, offset)
        elif entry.state is EntryState.KEPT or offset in ledger.entries:
            self._settle(entry)
        else:
            passed = entry.offset
            del former.entries[passed]
            if entry.origin is None:
                entry.origin = former, entry.offset
                former.moved[entry.offset] = entry
            entry.ledger, entry.offset = ledger, offset
            entry.physical_offset = record.physical_offset
            ledger.take(entry)
            self._note_passed(former, passed)
        self._ledgers.note_changed(ledger)

    # --- parts

    def _settle(self, entry: Entry) -> None:
        ledger, was_ordered = entry.ledger, entry.ledger.is_ordered
        self._leave(entry)
        self._failures.pop(entry, None)
        ledger.settle(entry)
        self._count(ledger, -1)
        self._ledgers.note_changed(ledger)
        if was_ordered and not ledger.is_ordered:
            self._free(ledger)

    def _put_back(self, entry: Entry) -> None:
        self._leave(entry)
        self._failures.pop(entry, None)
        entry.ledger.put_back(entry)
        self._count(entry.ledger, -1)
        self._free(entry.ledger)

    def _note_passed(self, ledger: Ledger, offset: int) -> None:
        ledger.settled.append(offset)
        self._ledgers.note_changed(ledger)

    def _leave(self, entry: Entry) -> None:
        if entry.delivery is not None:
            self._deadlines.leave(entry.delivery)

    def _free(self, ledger: Ledger) -> None:
        self.freed[ledger.place] = None
        self._ledgers.note_changed(ledger)

    def _is_valid(self, entry: Entry, nonce: int) -> bool:
        """Return whether a handle with this nonce may settle a message."""
        if entry.state is EntryState.COPYING:
            return False
        if entry.delivery is None:
            ledger = entry.ledger
            return self._came_at(ledger.topic, ledger.queue_id, entry.offset) <= nonce
        return entry.delivery.nonce == nonce
