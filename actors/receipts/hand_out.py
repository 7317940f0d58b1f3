"""Messages for a receive: those of its queues, and retries first.

Plain classes over the store. A receive takes from all its queues in turn, and begins with another
one each time, or from the highest queue down if it says so. Retries fill at most half of it while
there are other messages. A retry of another topic is kept for a receive of that topic: a group has
one retry topic for all its topics.

Nothing here waits. What is not in memory, or in doubt, is noted for the caller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct

from actors.receipts.held_receives import HeldReceive, Place, WaitTable
from actors.receipts.ledger import Entry, EntryState, Ledger
from actors.receipts.ledgers import Ledgers
from actors.receipts.neighbours import Neighbours
from actors.statistics.counts import GroupCounts, PullStats, counts_of
from protocol.headers.pop import ALL_QUEUES, PopMessageHeader
from protocol.java_numbers import LONG_END
from protocol.message import HEADS, SYS_FLAG_POSITION, RecordError, scan_head
from protocol.properties import RETRY_TOPIC
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.dispatching.dispatch import property_of
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.message_filter import MessageFilter
from storage.reading.get_message import GetLimits, GetResult, GetStatus, get_message
from storage.reading.page_probe import ColdPart, PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes

QUEUES_MAX = 512
"""Queues of a topic that one receive looks at before others have their turn: 2 ms."""
CHECKED_AT_ONCE = 4_000
"""Queues and places in one check for receives that missed a message: 5 ms."""
READS_MAX = 4
"""Reads of one queue by one receive; each looks at up to 800 messages that a filter drops."""
EFFORT_MAX = 12_800
"""Messages looked at in vain before others have their turn: 1 ms.

Where a filter reads properties, each message counts for PROPERTIES_EFFORT: 10 ms.
"""
PROPERTIES_EFFORT = 16
READ_BYTES_OF_EFFORT = 80
"""Bytes that a filter reads in the time of one message looked at in vain."""
_EXAMINED_MAX = 800

_CHECK: Place = ("", "")
"""Place whose turn is that of the checks."""
_PLACE = Struct(
    ">i"  # record_bytes
    "16x"  # magic, body_crc, queue_id, flag
    "q"  # queue_offset
    "q"  # physical_offset
)
_SYS_FLAG = Struct(">i")
_RECONSUME_TIMES = 12  # index among the fields of a head
_RETRY_TOPIC = b"\x02%b\x01" % RETRY_TOPIC.encode()
_SKIPPED = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.OFFSET_TOO_SMALL,
)


@dataclass(slots=True)
class Haul:
    """Messages that a receive gets from one queue."""

    ledger: Ledger
    offsets: list[int] = field(default_factory=list)
    """Messages that need no entries."""
    entries: list[Entry] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    """Offsets of both in the order of the records."""
    views: list[memoryview] = field(default_factory=list)
    body_bytes: int = 0

    def add(self, entry: Entry, view: memoryview) -> None:
        entry.state = EntryState.HELD
        self.entries.append(entry)
        self.order.append(entry.offset)
        self.views.append(view)
        self.body_bytes += len(view)


@dataclass(slots=True)
class Taken:
    """All that one receive gets, and what it would have to wait for."""

    found: list[Haul] = field(default_factory=list)
    hauls: dict[Ledger, Haul] = field(default_factory=dict)
    """Hauls of all queues looked at; `found` has the ones with messages."""
    left: int = 0
    """Messages that it may still take."""
    rest: int = 0
    """Messages of the queues looked at that are left."""
    retries: int = 0
    """Retries among those that are left."""
    cold: list[ColdPart] = field(default_factory=list)
    """Parts of files to read first."""
    doubtful: list[tuple[Ledger, int]] = field(default_factory=list)
    """Units that must be verified."""
    unread: OSError | None = None
    """Error of a read; that queue is left out."""
    crowded: list[Ledger] = field(default_factory=list)
    effort: int = 0
    """Work of reads without a message, in messages."""
    has_more: bool = False
    """Whether a queue has to be looked at again soon."""
    has_no_room: bool = False
    """Whether a queue was left out because there are too many ledgers."""


class HandOut:
    """Reader of queues for receives. Used by Receipts alone, on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        ledgers: Ledgers,
        limits: GetLimits,
        probe: PageProbe,
        *,
        read_queues: Callable[[str], int],
        is_pulled: Callable[[str, str, int], bool],
    ) -> None:
        """`read_queues(topic)` is the number of readable queues.

        `is_pulled(group, topic, queue_id)` tells whether pulls of the group have this queue.
        """
        self.store, self.ledgers = store, ledgers
        self.limits, self.probe = limits, probe
        self._times = QueueTimes(store.commit_log, store.damage, probe)
        self._read_queues, self.is_pulled = read_queues, is_pulled
        self.is_closed: Callable[[str], bool] = lambda group: False
        """Whether the retry topic of a group must not be read for a moment."""
        self.is_early = False
        """Whether clients may still reclaim what they held before the start of the broker."""
        self.effort = 0
        """Work of filters that read properties, of all receives since its owner set it to 0."""
        self._turns: dict[Place, int] = {}
        self._asked = 0
        """Queues that `missed` and notifications have asked."""
        self._checked = 0
        """Number of the first place of the next call of `missed`."""

    def forget(self) -> None:
        """Forget which pages are in memory, and read changed limits."""
        self.probe.forget()
        self.limits = self.limits.renewed(self.store.config)
        if len(self._turns) > 100_000:
            self._turns.clear()

    def came_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the wall clock at the append of a message, ms; LONG_END if it is not readable."""
        queue = self.store.consume_queues.get(topic, queue_id)
        try:
            found = self._times.came_at(queue, offset)
        except ColdPages:
            return LONG_END
        return LONG_END if found < 0 else found

    def _next_turn(self, place: Place) -> int:
        """Return where the next receive of a group and topic begins."""
        turn = self._turns[place] = self._turns.get(place, -1) + 1
        return turn

    def take(self, receive: HeldReceive, header: PopMessageHeader, *, reads_cold: bool) -> Taken:
        """Return the messages for a receive, not yet noted as in flight.

        It looks at QUEUES_MAX queues; `receive.looked` tells whether there are more. With
        `reads_cold`, cold pages are read here: they have been brought into memory.
        """
        looked = receive.looked
        turn = receive.turn = receive.turn if looked else self._next_turn(receive.place)
        group, topic = header.consumer_group, header.topic
        taken = Taken(left=max(0, header.max_msg_nums))
        retry = RETRY_TOPIC_PREFIX + group
        retries: Sequence[int] = ()
        if not header.order and topic != retry and not self.is_closed(group):
            retries = self._queues(retry, ALL_QUEUES, turn, looked)
        half = taken.left // 2 if taken.left > 1 else turn % 2
        read = _Reading(self, taken, topic, header, receive.wanted, reads_cold=reads_cold)
        if half and retries:
            taken.left, kept_back = half, taken.left - half
            for queue_id in retries:
                read.queue(retry, queue_id)
            taken.left += kept_back
        own = self._queues(topic, header.queue_id, turn, looked, header.highest_queue_first)
        for queue_id in () if topic == retry and self.is_closed(group) else own:
            if not taken.left:
                break
            read.queue(topic, queue_id)
        for queue_id in retries if taken.left else ():
            read.queue(retry, queue_id)
        taken.found = [each for each in taken.hauls.values() if each.views]
        taken.rest = self._rest(group, topic, own)
        if topic != retry:
            taken.retries = self._rest(group, retry, retries, topic)
            taken.rest += taken.retries
        if not taken.has_more:
            receive.looked = _behind(looked, own, retries)
        return taken

    def finds(self, receive: HeldReceive) -> bool:
        """Return whether a notification finds messages; `receive.looked` as in `take`."""
        looked = receive.looked
        turn = receive.turn = receive.turn if looked else self._next_turn(receive.place)
        found, receive.looked = self._has_messages(
            receive.place, receive.queue_id, order=receive.header.order, turn=turn, looked=looked
        )
        return found

    def missed(self, waits: WaitTable) -> list[tuple[Place, int]]:
        """Return awaited queues that have messages, the next ones of all at each call."""
        found: list[tuple[Place, int]] = []
        turn, end = self._next_turn(_CHECK) * QUEUES_MAX, self._asked + CHECKED_AT_ONCE
        places = waits.some(self._checked, CHECKED_AT_ONCE)
        for place, queue_ids in places:
            if self._asked >= end:
                return found
            self._checked += 1
            for queue_id in queue_ids:
                if self._asked < end and self._has_messages(place, queue_id, turn=turn)[0]:
                    found.append((place, queue_id))
        self._checked = 0
        return found

    def _has_messages(
        self, place: Place, queue_id: int, *, turn: int, order: bool = False, looked: int = 0
    ) -> tuple[bool, int]:
        """Return whether a receive would probably find messages, and its new `looked`."""
        group, topic = place
        retry = RETRY_TOPIC_PREFIX + group
        own = self._queues(topic, queue_id, turn, looked)
        retries: Sequence[int] = ()
        places = [(topic, each) for each in own]
        if not order and topic != retry:
            retries = self._queues(retry, ALL_QUEUES, turn, looked)
            places += [(retry, each) for each in retries]
        self._asked += len(places)
        for name, each in places:
            ledger = self.ledgers.find(group, name, each)
            queue = self.store.consume_queues.get(name, each)
            if queue is None or self.is_pulled(group, name, each):
                continue
            start = queue.min_offset if ledger is None else ledger.next
            if ledger is not None and (ledger.count if order else ledger.is_ordered):
                continue
            if self.is_early and ledger is not None and ledger.is_former:
                continue
            if start < queue.max_offset or (ledger is not None and ledger.has_kept(topic)):
                return True, 0
        return False, _behind(looked, own, retries)

    def _queues(
        self, topic: str, queue_id: int, turn: int, looked: int, highest_first: bool = False
    ) -> Sequence[int]:
        """Return the queues to ask behind `looked` ones, in the order of this turn."""
        if queue_id > ALL_QUEUES:
            return () if looked else (queue_id,)
        count = self._read_queues(topic)
        order = range(looked, min(count, looked + QUEUES_MAX))
        if highest_first:
            return [count - 1 - each for each in order]
        return [(turn + each) % count for each in order]

    def _rest(self, group: str, topic: str, queue_ids: Sequence[int], kept_for: str = "") -> int:
        rest = 0
        for each in queue_ids:
            queue = self.store.consume_queues.get(topic, each)
            ledger = self.ledgers.peek(group, topic, each)
            if queue is not None and ledger is not None and not ledger.is_ordered:
                rest += max(0, queue.max_offset - ledger.next)
                if kept_for:
                    rest += ledger.has_kept(kept_for)
        return rest


def _behind(looked: int, *parts: Sequence[int]) -> int:
    """Return the number of queues looked at if there may be more; else 0."""
    return looked + QUEUES_MAX if max(map(len, parts)) == QUEUES_MAX else 0


class _Reading:
    """One receive on its way through the queues."""

    def __init__(
        self,
        owner: HandOut,
        taken: Taken,
        topic: str,
        header: PopMessageHeader,
        wanted: MessageFilter | None,
        *,
        reads_cold: bool,
    ) -> None:
        self._owner, self._taken, self._topic = owner, taken, topic
        self._header, self._wanted, self._reads_cold = header, wanted, reads_cold
        self._is_costly = wanted is not None and wanted.matches is not None

    def queue(self, topic: str, queue_id: int) -> None:
        """Take from one queue what the receive still lacks."""
        owner, taken, header = self._owner, self._taken, self._header
        queue = owner.store.consume_queues.get(topic, queue_id)
        if (
            not taken.left
            or queue is None
            or owner.is_pulled(header.consumer_group, topic, queue_id)
        ):
            return
        if taken.effort >= EFFORT_MAX or (self._is_costly and owner.effort >= EFFORT_MAX):
            taken.has_more = True
            return
        if not owner.ledgers.has_room(header.consumer_group, topic, queue_id):
            taken.has_no_room = True
            return
        ledger = owner.ledgers.open(header.consumer_group, topic, queue_id, header.init_mode)
        owner.ledgers.note_used(ledger)
        if owner.is_early and ledger.is_former and header.hold_with_connection:
            return
        if header.order:
            if ledger.count and not (
                ledger.is_ordered and header.attempt_id and header.attempt_id == ledger.attempt_id
            ):
                return
            if ledger.entries:
                ledger.rewind()
        elif ledger.is_ordered:
            return
        if ledger.next > queue.max_offset:  # the queue has lost its end
            ledger.begin(owner.ledgers.stored(*ledger.place), queue.max_offset)
            owner.ledgers.note_changed(ledger)
        if ledger.is_crowded:
            taken.crowded.append(ledger)
            if ledger.is_full:
                return
        haul = taken.hauls.get(ledger)
        if haul is None:  # retries may be asked twice, and clients expect each queue once
            haul = taken.hauls[ledger] = Haul(ledger)
        if ledger.is_retry and topic != self._topic:
            self._take_kept(queue, haul)
        self._take_next(queue, haul)

    def _take_next(self, queue: ConsumeQueue, haul: Haul) -> None:
        ledger, taken = haul.ledger, self._taken
        is_others = ledger.is_retry and ledger.topic != self._topic
        for _ in range(READS_MAX):
            if ledger.pass_settled(queue.max_offset):
                self._owner.ledgers.note_changed(ledger)
            if not taken.left or ledger.next >= queue.max_offset:
                return
            wanted, left = None if is_others else self._wanted, taken.left
            result = self._get(queue, ledger.next, taken.left, wanted, ledger)
            if result is None:
                return
            self._owner.ledgers.note_changed(ledger)
            if result.status is GetStatus.FOUND:
                self._add(result, haul, is_others=is_others)
            elif result.status not in _SKIPPED or result.next_offset <= ledger.next:
                return
            if result.status is GetStatus.OFFSET_TOO_SMALL:
                ledger.drop_below(result.next_offset)
            examined = min(result.next_offset - ledger.next, _EXAMINED_MAX)
            ledger.advance(result.next_offset)
            if wanted is not None and self._is_costly:
                work = result.read_bytes // READ_BYTES_OF_EFFORT
                work = max(PROPERTIES_EFFORT * examined, work)
                taken.effort += work
                self._owner.effort += work
            elif taken.left == left:
                taken.effort += examined
            if taken.effort >= EFFORT_MAX:
                break
        taken.has_more |= ledger.next < queue.max_offset

    def _get(
        self,
        queue: ConsumeQueue,
        offset: int,
        count: int,
        wanted: MessageFilter | None,
        ledger: Ledger,
    ) -> GetResult | None:
        """Return a read; None if it has to wait for the disk or the scrubber, or fails."""
        owner, taken = self._owner, self._taken
        try:
            result = get_message(
                queue,
                owner.store.commit_log,
                offset,
                count,
                wanted,
                owner.limits,
                damage=owner.store.damage,
                probe=None if self._reads_cold else owner.probe,
                verified=ledger.verified == offset,
            )
        except OSError as error:
            taken.unread = error
            return None
        if result.status is GetStatus.COLD:
            taken.cold += result.cold
            return None
        if result.status is GetStatus.IN_DOUBT:
            taken.doubtful.append((ledger, offset))
            return None
        return result

    def _add(self, result: GetResult, haul: Haul, *, is_others: bool) -> None:
        """Add the records of a result, without those that are settled or in flight."""
        ledger, taken = haul.ledger, self._taken
        if ledger.is_retry or ledger.ahead or self._header.order:
            self._add_each(result, haul, is_others=is_others)
            return
        offsets: Sequence[int] = range(ledger.next, result.next_offset)
        if len(offsets) != result.count:
            offsets = [_PLACE.unpack_from(each)[1] for each in _records(result.views)]
        haul.offsets += offsets
        haul.order += offsets
        haul.views += result.views
        haul.body_bytes += result.body_bytes
        taken.left -= result.count

    def _add_each(self, result: GetResult, haul: Haul, *, is_others: bool) -> None:
        ledger, taken = haul.ledger, self._taken
        for record in _records(result.views):
            _, offset, physical_offset = _PLACE.unpack_from(record)
            if offset in ledger.ahead:
                continue
            tries, topic = ledger.tries.get(offset, 0), self._topic
            if ledger.is_retry:
                tries, origin = _retry_of(record)
                topic = origin if is_others and origin else topic
            entry = Entry(ledger, offset, physical_offset, EntryState.KEPT, tries)
            if topic != self._topic:
                ledger.keep(entry, topic)
                continue
            haul.add(entry, record)
            taken.left -= 1

    def _take_kept(self, queue: ConsumeQueue, haul: Haul) -> None:
        """Take retries that receives of other topics have left."""
        ledger = haul.ledger
        for entry in ledger.kept(self._topic):
            if not self._taken.left:
                return
            result = self._get(queue, entry.offset, 1, None, ledger)
            if result is None:
                return
            (record,) = [*_records(result.views)][:1] or (None,)
            if record is None or _PLACE.unpack_from(record)[1] != entry.offset:
                ledger.settle(entry)  # deleted with its file
                self._owner.ledgers.note_changed(ledger)
                continue
            haul.add(entry, record)
            self._taken.left -= 1


def count_given(taken: Taken, stats: PullStats, neighbours: Neighbours) -> int:
    """Count messages as pulled ones are; return how many there are."""
    total = 0
    for haul in taken.found:
        ledger, count = haul.ledger, len(haul.order)
        total += count
        stats.get_count += count
        stats.get_bytes += haul.body_bytes
        key = ledger.topic, ledger.group
        counts = counts_of(stats.by_group, key, GroupCounts)
        counts.count += count
        counts.bytes += haul.body_bytes
        counts.times += 1
        counts.pulled[ledger.queue_id] = ledger.next  # tells in flight from ready in metrics
        neighbours.note_handed_out(*key, ledger.queue_id, ledger.next)
    return total


def _records(views: Sequence[memoryview]) -> list[memoryview]:
    found: list[memoryview] = []
    for view in views:
        position, end = 0, len(view)
        while position < end:
            size = _PLACE.unpack_from(view, position)[0]
            found.append(view[position : position + size])
            position += size
    return found


def _retry_of(record: memoryview) -> tuple[int, str]:
    """Return the tries of a retry and the topic that it comes from; empty if it does not say."""
    try:
        properties = scan_head(record, 0).properties
    except RecordError:
        return 0, ""
    head = HEADS[_SYS_FLAG.unpack_from(record, SYS_FLAG_POSITION)[0] >> 4 & 3]
    origin = property_of(b"\x02" + properties, _RETRY_TOPIC)  # parsing took up to 4 ms
    return head.unpack_from(record)[_RECONSUME_TIMES], origin.decode("utf-8", "replace")
