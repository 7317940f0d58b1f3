"""In-flight messages of one group in one queue: plain values on the event loop.

    settled           acknowledged, copied to the retry topic or dead-letter queue, or filtered out
    in flight         given to a client (HELD), on its way to a copy (COPYING), or, in a retry
                      topic, kept for a receive of its own topic (KEPT)
    next              first offset that has not been looked at
    lowest            lowest offset that is not settled: the group's consumer offset

The ledger holds nothing that must survive: a new one begins at the consumer offset, and with the
settled messages above it, which ConsumerOffsets keeps.

A `Delivery` is what one receive got from one queue. Its messages share nonce and deadline, and
most are acknowledged before anything else happens to them: the ledger notes no more than the
delivery of each. A message gets an `Entry` when it is treated by itself, and a delivery of its own
with another deadline.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import ClassVar

from protocol.headers.pop import FROM_MIN
from storage.tables.offsets import offset_key

ENTRIES_MAX = 4_096
"""Messages in flight of a queue, past which the lowest is stored again in the retry topic."""
SPAN_MAX = 20_000
"""Offsets from the lowest to the next, past which the same is done."""
AHEAD_MAX = 4_096
"""Acknowledgements above `next` of messages from before a restart."""

_SPARSE = 4
"""Offsets for each message in flight of a retry topic before its messages are stored again."""

UNKNOWN = -1
"""Physical offset of a message that has not been looked up."""

NEVER_MS = float("inf")
"""Deadline of messages that are held with their connection."""


class EntryState(IntEnum):
    """EntryState of a message in flight."""

    HELD = 0
    COPYING = 1
    KEPT = 2
    OVER = 3
    """Past its deadline, it waits for the rest of its batch received in order."""


class Delivery:
    """Messages of one queue that one receive got."""

    __slots__ = (
        "cursor",
        "deadline_ms",
        "ledger",
        "left",
        "nonce",
        "offsets",
        "peer",
        "since_ms",
    )

    def __init__(
        self,
        ledger: "Ledger",
        nonce: int,
        offsets: Sequence[int],
        *,
        deadline_ms: float,
        peer: "Holder",
        since_ms: float,
    ) -> None:
        """`since_ms` is the monotonic time of the receive."""
        self.ledger, self.nonce, self.offsets = ledger, nonce, offsets
        self.deadline_ms, self.peer, self.since_ms = deadline_ms, peer, since_ms
        self.left = len(offsets)
        """Messages that have not left it."""
        self.cursor = 0
        """Index of the first offset that may still be held."""

    @property
    def is_bound(self) -> bool:
        """Whether its messages are held as long as the connection of their client lives."""
        return self.deadline_ms == NEVER_MS

    def held(self) -> list["Entry"]:
        """Return the messages that still belong to this delivery, in order."""
        found = (self.ledger.find(offset) for offset in self.offsets)
        return [each for each in found if each is not None and each.delivery is self]


class Holder:
    """Client of a delivery: its connection, and its address for figures."""

    __slots__ = ("peer_id", "remote")

    def __init__(self, peer_id: int, remote: str) -> None:
        self.peer_id, self.remote = peer_id, remote


class Entry:
    """One message in flight."""

    __slots__ = (
        "delivery",
        "is_too_long",
        "ledger",
        "offset",
        "origin",
        "physical_offset",
        "state",
        "tries",
    )

    def __init__(
        self, ledger: "Ledger", offset: int, physical_offset: int, state: EntryState, tries: int
    ) -> None:
        self.ledger, self.offset, self.physical_offset = ledger, offset, physical_offset
        self.state, self.tries = state, tries
        self.delivery: Delivery | None = None
        """None until it is handed out."""
        self.is_too_long = False
        """Whether no copy of it can be stored: it is handed out again where it is."""
        self.origin: tuple[Ledger, int] | None = None
        """Ledger and offset under which its handle names it, if it has been stored again."""


class Ledger:
    """In-flight messages of one group in one queue. One owner."""

    __slots__ = (
        "_batches",
        "_goes_back",
        "_heap",
        "_kept",
        "_told",
        "ahead",
        "ahead_max",
        "attempt_id",
        "doubt",
        "entries",
        "group",
        "held",
        "init_mode",
        "is_former",
        "is_ordered",
        "is_retry",
        "key",
        "moved",
        "next",
        "queue_id",
        "settled",
        "topic",
        "tries",
        "verified",
    )
    entries_max: ClassVar[int] = ENTRIES_MAX
    span_max: ClassVar[int] = SPAN_MAX

    def __init__(self, group: str, topic: str, queue_id: int, *, is_retry: bool) -> None:
        """`is_retry`: the topic is the group's retry topic."""
        self.group, self.topic, self.queue_id, self.is_retry = group, topic, queue_id, is_retry
        self.key = offset_key(topic, group)
        """Key in the table of consumer offsets."""
        self.init_mode = FROM_MIN
        """Beginning without a consumer offset, as the last receive asked for it."""
        self.next = 0
        self.held: dict[int, Delivery] = {}
        """Messages that clients hold, without an entry."""
        self.entries: dict[int, Entry] = {}
        self.ahead: set[int] = set()
        """Offsets at or above `next` that are settled or in flight: they are passed."""
        self.ahead_max = AHEAD_MAX
        self.settled: list[int] = []
        """Offsets settled since the last commit."""
        self.moved: dict[int, Entry] = {}
        """Messages stored again in the retry topic, by the offset in their handles."""
        self.is_former = False
        """Whether clients may hold messages from before this ledger: some are not settled."""
        self.is_ordered = False
        """Whether the batch in flight was received in order."""
        self.attempt_id = ""
        self.tries: dict[int, int] = {}
        """Deliveries of messages received in order."""
        self.doubt = self.verified = -1
        """Offset of a unit that the scrubber has been asked about, or has verified."""
        self._batches: list[Delivery] = []
        """Deliveries of `held`, in the order of their offsets; an empty deque takes 0.6 KiB."""
        self._heap: list[int] = []
        """Offsets of `entries`, and of former ones."""
        self._kept: dict[str, deque[int]] = {}
        self._told: list[int | None] = []
        """Committed offsets that ConsumerOffsets may hold at present, the oldest first."""
        self._goes_back = False

    # --- the consumer offset

    def begin(self, stored: int | None, start: int, ahead: Collection[int] = ()) -> None:
        """Forget everything and begin at `start`; `stored` is the present consumer offset.

        Messages `ahead` of it are settled.
        """
        for entry in self.entries.values():
            if entry.origin is not None:
                entry.origin[0].moved.pop(entry.origin[1], None)
        again = [self.moved[offset] for offset in self.moved if offset >= start]
        for entry in again:  # they are handed out again, where they came from
            entry.ledger.settle(entry)
        self.next = start
        self.held, self.entries, self.ahead, self.settled = {}, {}, {*ahead}, []
        self.ahead_max = AHEAD_MAX + len(ahead)
        self.is_ordered, self.attempt_id, self.tries = False, "", {}
        self._batches, self._heap, self._kept = [], [], {}
        self._told = [stored]
        self._goes_back = stored is not None and start < stored

    def agrees(self, stored: int | None) -> bool:
        """Return whether a stored consumer offset is one that this ledger has committed.

        Commits take a moment: those without an answer count, and the one before.
        """
        return stored in self._told

    def commit(self) -> tuple[int | None, int, list[int]] | None:
        """Return what to commit; None without progress.

        That is the last committed offset, the new one, and the offsets above it that have been
        settled since the last call.
        """
        lowest, last = self.lowest, self._told[-1]
        settled, self.settled = self.settled, []
        if settled:
            settled = [each for each in settled if each > lowest]
        if last is not None and lowest <= last and not self._goes_back:
            return (last, last, settled) if settled else None
        self._goes_back = False
        self._told.append(lowest)
        return last, lowest, settled

    def committed(self, offset: int) -> None:
        """Note the answer to a commit."""
        told = self._told
        if offset in told:
            del told[: told.index(offset)]

    @property
    def lowest(self) -> int:
        """The lowest offset that is not settled."""
        low, heap, entries = self._lowest_held(), self._heap, self.entries
        while heap and heap[0] not in entries:
            heappop(heap)
        return heap[0] if heap and heap[0] < low else low

    def _lowest_held(self) -> int:
        batches, held = self._batches, self.held
        if not held:
            batches.clear()
        while batches:
            first = batches[0]
            offsets, cursor, end = first.offsets, first.cursor, len(first.offsets)
            while cursor < end and held.get(offsets[cursor]) is not first:
                cursor += 1
            first.cursor = cursor
            if cursor < end:
                return offsets[cursor]
            del batches[0]
        return self.next

    @property
    def place(self) -> tuple[str, str, int]:
        """Group, topic and queue id."""
        return self.group, self.topic, self.queue_id

    @property
    def count(self) -> int:
        """Messages in flight, those kept for other topics included."""
        return len(self.held) + len(self.entries)

    @property
    def is_crowded(self) -> bool:
        """Whether the lowest messages must be stored again, so that the queue does not stop."""
        return self._exceeds(1)

    @property
    def is_full(self) -> bool:
        """Whether the queue must wait until its lowest messages are stored again."""
        return self._exceeds(2)

    def _exceeds(self, times: int) -> bool:
        if self.is_ordered:
            return False
        count, span = self.count, self.next - self.lowest
        if self.is_retry and span < _SPARSE * count:
            return False  # storing them again would add as many offsets to this very queue
        too_many = count > times * self.entries_max and not self.is_retry
        return too_many or span > times * self.span_max

    # --- messages

    def find(self, offset: int) -> Entry | None:
        """Return the message that a handle names by its offset."""
        delivery = self.held.pop(offset, None)
        if delivery is not None:
            entry = Entry(self, offset, UNKNOWN, EntryState.HELD, 0)
            entry.delivery = delivery
            self.take(entry)
            return entry
        return self.entries.get(offset) or self.moved.get(offset)

    def hand_out(self, delivery: Delivery) -> None:
        """Note messages in flight that need no entries."""
        self.held.update(dict.fromkeys(delivery.offsets, delivery))
        self._batches.append(delivery)

    def drop_below(self, offset: int) -> None:
        """Forget messages that have been deleted with their file."""
        for each in [each for each in self.held if each < offset]:
            del self.held[each]
        for entry in [*self.entries.values()]:
            if entry.offset < offset:
                self.settle(entry)

    def take(self, entry: Entry) -> None:
        """Note a message in flight."""
        offset = entry.offset
        self.entries[offset] = entry
        heappush(self._heap, offset)
        if offset >= self.next:
            self.ahead.add(offset)

    def keep(self, entry: Entry, topic: str) -> None:
        """Note a retry that waits for a receive of its topic."""
        self.take(entry)
        self._kept.setdefault(topic, deque()).append(entry.offset)

    def kept(self, topic: str) -> Iterator[Entry]:
        """Yield the retries that wait for a receive of `topic`, the oldest first.

        Those that are passed are not yielded again; the rest is.
        """
        waiting = self._kept.get(topic)
        while waiting:
            entry = self.entries.get(waiting[0])
            if entry is not None and entry.state is EntryState.KEPT:
                yield entry
            waiting.popleft()
        self._kept.pop(topic, None)

    def has_kept(self, topic: str) -> bool:
        return next(self.kept(topic), None) is not None

    def pass_settled(self, end: int) -> bool:
        """Move `next` behind offsets that need not be looked at; return whether there were any.

        `end` is that of the queue: a message stored again may not be in it yet.
        """
        ahead, before = self.ahead, self.next
        while self.next in ahead and self.next < end:
            ahead.discard(self.next)
            self.next += 1
        return self.next > before

    def advance(self, next_offset: int) -> None:
        """Note that everything below `next_offset` has been looked at."""
        self.next = next_offset
        if self.ahead:
            self.ahead = {offset for offset in self.ahead if offset >= next_offset}

    def settle(self, entry: Entry) -> None:
        """Forget a message: it is acknowledged or safely copied."""
        if self.entries.get(entry.offset) is not entry:
            return
        del self.entries[entry.offset]
        self.settled.append(entry.offset)
        if entry.origin is not None:
            ledger, offset = entry.origin
            ledger.moved.pop(offset, None)
        if self.is_ordered and not self.entries:
            self.is_ordered, self.attempt_id, self.tries = False, "", {}

    def put_back(self, entry: Entry) -> None:
        """Have one message handed out again, where it is."""
        offset = entry.offset
        del self.entries[offset]
        if entry.origin is not None:
            entry.origin[0].moved.pop(entry.origin[1], None)
        self.ahead.update(range(offset + 1, self.next))
        self.ahead.discard(offset)
        self.next = min(self.next, offset)

    def rewind(self) -> None:
        """Have the unsettled messages of a batch received in order handed out again."""
        lowest = self.lowest
        between = range(lowest + 1, self.next)
        self.ahead.update(offset for offset in between if offset not in self.entries)
        self.entries, self._heap = {}, []
        self.is_ordered, self.attempt_id = False, ""
        self.next = lowest

    @property
    def is_over(self) -> bool:
        """Whether every message of a batch received in order is past its deadline."""
        return self.is_ordered and all(
            each.state is EntryState.OVER for each in self.entries.values()
        )

    def lowest_entries(self, count: int) -> list[Entry]:
        """Return the lowest messages in flight that can be stored again."""
        found: list[Entry] = []
        for offset in sorted((*self.held, *self.entries))[: count * 2]:
            entry = self.find(offset)
            if entry is not None and entry.state is not EntryState.COPYING:
                found.append(entry)
            if len(found) == count:
                break
        return found
