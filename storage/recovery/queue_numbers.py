"""Placement of units for records that do not continue their queue.

A record names its queue and queue offset. In an intact log, the queue offsets of a queue are
consecutive. Otherwise, something is missing, or damaged where no checksum covers it:

- Records missing in a gap of the log: units that point at the gap fill the hole.
- A queue offset with a flipped bit: the next record of the queue continues as if it were right.
- A topic, queue id or flag with a flipped bit: the record appears in the wrong queue, with the
  queue offset that is missing in another one.

Records explained in this way keep their queue offset, as damage that readers skip. All others are
treated as in 4.9.7: their unit goes to the end of the queue.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from protocol.codes import TRANSACTION_PREPARED
from protocol.message import RECORD_BYTES_MIN, RecordHead
from storage.dispatching.dispatch import entry_of
from storage.errors import StoreError
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import ONE_RECORD_BYTES, LogReader, record_at
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.log_chunks import ReadPart

QueueKey = tuple[bytes, int]
_STRAYS_MAX = 1024

NO_UNITS = "there were no units"
"""Reason to rebuild an empty queue, for example after the deletion of its topic."""

FirstFinder = Callable[[ConsumeQueue], DispatchEntry | None]
"""Lookup of the entry of record 0 at the end of a queue, behind others; None without it."""


def first_finder(log: CommitLog, delay_levels: Sequence[int]) -> FirstFinder:
    """Return the lookup for a log without a known end.

    An earlier recovery has put that record there; it begins a new generation of the queue.
    """

    def find(queue: ConsumeQueue) -> DispatchEntry | None:
        unit = queue.unit(queue.max_offset - 1) if queue.max_offset > 1 else None
        if unit is None:
            return None
        files = log.queue
        reader = LogReader(files.find, files.capacity_end, window_bytes=ONE_RECORD_BYTES)
        head = record_at(reader, unit[0], check_crc=False)
        if not isinstance(head, RecordHead):
            return None
        topic = queue.topic.encode("utf-8", "surrogateescape")
        if (head.topic, head.queue_id, head.queue_offset) != (topic, queue.queue_id, 0):
            return None
        return entry_of(head, delay_levels)

    return find


class QueueNumbers:
    """Feed of the queues during one pass over the log, with its records in order."""

    def __init__(
        self,
        queues: ConsumeQueues,
        gaps: Sequence[tuple[int, int, str]],
        damage: Damage,
        *,
        is_whole_log: bool,
        may_begin_late: bool,
        may_lack_units: bool,
        doubtful: Collection[QueueKey] = (),
        first_at_end: FirstFinder = lambda _: None,
        committed: Callable[[str, int], int] = lambda *_: 0,
    ) -> None:
        """Initialize the feed.

        `gaps` are the skipped gaps so far; `first_at_end` finds records left undecided by an
        earlier pass. `is_whole_log` means that the pass begins at the log's beginning.
        `may_begin_late` means that the first messages of a queue may be deleted with the log's
        first files.

        `may_lack_units` means that units of records before this pass may be missing. `doubtful`
        queues lack units unless their next record continues them. `committed` returns the highest
        consumer offset of a queue; a queue that had lost its messages began there.
        """
        self.lost: dict[QueueKey, str] = {}
        """Queues that lack units of records before this pass, with reasons.

        Their records are skipped; they need a rebuild from the whole log.
        """
        self._queues, self._gaps, self._damage = queues, gaps, damage
        self._first_at_end, self._committed = first_at_end, committed
        self._is_whole_log = is_whole_log
        self._may_begin_late = may_begin_late
        self._from_the_first = not may_begin_late and not may_lack_units
        """Whether each queue must begin with its first message."""
        self._known_doubtful = doubtful
        self._doubtful: set[QueueKey] = set()
        """Queues with an undecided first record of this pass: it or the queue is damaged."""
        self._seen: set[QueueKey] = set()
        self._closed_up: set[QueueKey] = set()
        """Queues with an unexplained hole, so that their queue offsets no longer fit."""
        self._pending: dict[QueueKey, DispatchEntry] = {}
        self._strays: list[DispatchEntry] = []

    def feed(self, entries: Sequence[DispatchEntry]) -> None:
        """Append the units of records. Raises StoreError from writing out."""
        if any(not entry.queue_offset for entry in (*entries, *self._pending.values())):
            for entry in entries:  # strict order where a queue may begin again
                if entry.queue_offset == 1 and (entry.topic, entry.queue_id) in self._pending:
                    self._place(entry)  # even if it continues the old queue
                else:
                    self._feed([entry])
        else:
            self._feed(entries)

    def take(self, part: ReadPart) -> bool:
        """Append the records of a chunk; return False if they must be fed one by one.

        Nothing is appended then. Raises like `feed`; the records are then taken.
        """
        return not self._pending and self._queues.append_runs(
            part.runs, part.record_count, part.end, part.last_ms
        )

    def _feed(self, entries: Sequence[DispatchEntry]) -> None:
        odd: list[DispatchEntry] = []
        self._queues.append(entries, odd)
        for entry in odd:
            self._place(entry)

    def finish(self) -> None:
        """Place the records that still wait for a successor."""
        for key, entry in self._pending.items():
            queue = self._queues.get_or_create(_text(key[0]), key[1])
            due = queue.max_offset
            number = entry.queue_offset
            if key in self._doubtful and number > due:
                self.lost[key] = f"units from {due} on were missing"
            elif not queue.takes(number) or self._is_too_late(queue, number):
                self._is_damaged(entry, "its topic, queue id or queue offset is wrong")
            elif key not in self._closed_up and _is_one_bit_off(number, due):
                self._put_instead(entry, due)
            else:
                self._queues.append([entry])
        self._pending.clear()
        for entry in self._strays:
            self._is_damaged(entry, "its topic and queue id cannot name a queue")
        self._strays.clear()

    def _is_too_late(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether no queue can begin at this queue offset (see ConsumeQueues.begin_at)."""
        return (
            queue.is_empty
            and self._from_the_first
            and number > self._committed(queue.topic, queue.queue_id) + 1
        )

    # -- one record -----------------------------------------------------------------------------

    def _place(self, entry: DispatchEntry) -> None:
        topic, queue_id, number = entry.topic, entry.queue_id, entry.queue_offset
        key, start = (topic, queue_id), entry.physical_offset
        if entry.sys_flag & TRANSACTION_PREPARED:
            self._keep_stray(entry)
            return
        if key in self.lost:
            return
        try:
            queue = self._queues.get_or_create(_text(topic), queue_id)
        except StoreError:
            self._keep_stray(entry)
            return
        if key in self._pending:
            self._place_waiting(queue, self._pending.pop(key), entry)
        if key in self.lost:
            return
        first = self._first_at_end(queue) if number == 1 else None
        if first is not None:
            queue.remove(
                self._queues.disk
            )  # as in `_place_waiting`; the earlier pass ended between the two
            self._queues.append([first])
        due = queue.max_offset
        fits = number == due  # `odd` has no records with units.
        begins_late = queue.is_empty and self._may_begin_late and queue.takes(number)
        if fits or begins_late or (number > due and self._fill(queue, number, start)):
            self._queues.append([entry])
        elif not self._from_the_first and not queue.takes(number):
            self._keep_stray(entry)
        elif queue.is_empty and not self._from_the_first:
            self.lost[key] = NO_UNITS
        elif key in self._known_doubtful and number > due:
            self.lost[key] = f"units from {due} on were missing"
        else:
            if key not in self._seen and not self._is_whole_log:
                self._doubtful.add(key)
            self._pending[key] = entry
        self._seen.add(key)

    def _fill(self, queue: ConsumeQueue, number: int, before: int) -> bool:
        """Fill the hole below `number` if its records lie between its neighbors."""
        due, behind = queue.max_offset, queue.max_physical_offset
        if queue.is_empty and not self._from_the_first:
            return False  # it may begin at any queue offset
        gaps = [gap for gap in self._gaps if gap[0] >= behind and gap[1] <= before]
        gap_bytes = sum(end - start for start, end, _ in gaps)
        if number - due <= gap_bytes // RECORD_BYTES_MIN:
            start, end, _ = gaps[0]
            queue.fill_gap(number, start, end - start)
            return True
        found = {
            each.queue_offset: each
            for each in self._misfits((queue.topic, queue.queue_id))
            if behind <= each.physical_offset < before
        }
        if not all(missing in found for missing in range(due, min(number, due + _STRAYS_MAX))):
            return False
        if number > due + _STRAYS_MAX:
            return False
        for missing in range(due, number):
            self._forget(found[missing])
            self._put_instead(found[missing], missing, key=(queue.topic, queue.queue_id))
        return True

    def _misfits(self, key: tuple[str, int]) -> list[DispatchEntry]:
        """Return the records that may belong to this queue instead of the one that they name.

        A first message may also begin its own queue again; it belongs elsewhere by a single bit.
        """
        waiting = [each for each in self._pending.values() if self._is_foreign(each)]
        may = [each for each in waiting if each.queue_offset or _is_one_bit_apart(each, key)]
        return [*self._strays, *may]

    def _is_foreign(self, entry: DispatchEntry) -> bool:
        """Return whether its queue is empty or already has a message with this queue offset."""
        queue = self._queues.get(_text(entry.topic), entry.queue_id)
        return queue is None or queue.is_empty or entry.queue_offset < queue.max_offset

    def _forget(self, entry: DispatchEntry) -> None:
        if self._pending.get((entry.topic, entry.queue_id)) is entry:
            del self._pending[entry.topic, entry.queue_id]
        else:
            self._strays.remove(entry)

    def _place_waiting(
        self, queue: ConsumeQueue, waiting: DispatchEntry, entry: DispatchEntry
    ) -> None:
        """Place a record that has waited for its successor `entry`."""
        due, number = queue.max_offset, entry.queue_offset
        if waiting.queue_offset == 0 and number == 1:
            queue.remove(self._queues.disk)  # its topic was deleted and recreated
            self._queues.append([waiting])
        elif number == due + 1:
            self._put_instead(waiting, due)
        elif number == due or not queue.takes(waiting.queue_offset):
            self._keep_stray(waiting)
        elif (waiting.topic, waiting.queue_id) in self._doubtful:
            self.lost[waiting.topic, waiting.queue_id] = f"units from {due} on were missing"
        else:
            self._closed_up.add((waiting.topic, waiting.queue_id))
            self._queues.append([waiting])

    def _put_instead(
        self, entry: DispatchEntry, number: int, key: tuple[str, int] | None = None
    ) -> None:
        """Give a damaged record the queue offset that it must have had."""
        self._is_damaged(entry, f"it must have been message {number} of its queue")
        topic, queue_id = key or (_text(entry.topic), entry.queue_id)
        name = topic.encode("utf-8", "surrogateescape")
        placed = replace(entry, topic=name, queue_id=queue_id, queue_offset=number, sys_flag=0)
        self._queues.append([placed])

    def _keep_stray(self, entry: DispatchEntry) -> None:
        """Keep a record that fits no queue, until a queue lacks its queue offset."""
        if len(self._strays) < _STRAYS_MAX:
            self._strays.append(entry)

    def _is_damaged(self, entry: DispatchEntry, reason: str) -> None:
        start, end = entry.physical_offset, entry.end_offset
        self._damage.add(start, end, f"the record at {start} is damaged: {reason}")


def _is_one_bit_off(number: int, due: int) -> bool:
    """Return whether one flipped bit explains `number`; 0 may begin a new queue generation."""
    return number > 0 and (number ^ due).bit_count() == 1


def _is_one_bit_apart(entry: DispatchEntry, key: tuple[str, int]) -> bool:
    """Return whether one flipped bit of topic or queue id explains that a record names no `key`."""
    named, wanted = entry.topic, key[0].encode("utf-8", "surrogateescape")
    differing = [one ^ other for one, other in zip(named, wanted, strict=False)]
    differing.append(entry.queue_id ^ key[1])
    return len(named) == len(wanted) and sum(map(int.bit_count, differing)) == 1


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
