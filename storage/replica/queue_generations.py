"""Feed of a slave's queues, which begin again where the master's queues did.

When a master deletes a topic, or a queue without messages, later queue offsets begin at 0. The
slave sees only a record with queue offset 0 for a queue that has others. It then removes the queue,
and the new one begins with this record.

A master that has lost a queue may begin it at a consumer offset instead. A single record with such
a queue offset may be damaged, so that the record behind it settles the question, too.

The physical offset distinguishes this from a repetition: records that end before the queue's last
record are not new. A flipped bit looks the same, so recovery appends an undecided record 0 to the
old queue. Record 1 then settles the question.

Source: store/DefaultMessageStore.java (cleanUnusedTopic): a slave of 4.9.7 keeps the old queue.
"""

from collections.abc import Sequence

from protocol.codes import TRANSACTION_PREPARED
from storage.dispatching.dispatch import delay_levels_ms
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.queue_numbers import first_finder
from storage.retention.trimming import RemovedQueues, take_out


class QueueGenerations:
    """Dispatch target in place of the queues. One owner, that of the queues."""

    def __init__(self, store: MessageStore) -> None:
        self.removed = RemovedQueues()
        """Queues removed since the last `take_removed`."""
        self.begun: dict[str, int] = {}
        """Topics with restarted queues, and the physical offset of the newest restart."""
        self._store = store
        self._queues = store.consume_queues
        delay_levels = delay_levels_ms(store.config.message_delay_level)
        self._first_at_end = first_finder(store.commit_log, delay_levels)
        self._undecided: dict[tuple[bytes, int], DispatchEntry] = {}
        """Last record of each queue with a queue offset above 0 that the queue already had."""

    def take_removed(self) -> tuple[RemovedQueues, dict[str, int]]:
        """Return the removed queues and `begun`, and reset both."""
        taken = self.removed, self.begun
        self.removed, self.begun = RemovedQueues(), {}
        return taken

    def append(self, entries: Sequence[DispatchEntry]) -> None:
        """Append the units of records, like ConsumeQueues.

        Raises DiskFull or StoreError; the call may then be repeated with the same entries.
        """
        self._queues.append(entries, look=self._look)

    def _look(self, queue: ConsumeQueue, entry: DispatchEntry) -> None:
        """Examine records that do not continue their queue, before they are appended."""
        if _is_before_its_end(queue, entry):
            self._begin_anew(queue, entry)

    def _begin_anew(self, queue: ConsumeQueue, entry: DispatchEntry) -> None:
        """Remove the queue if this record shows that the queue is of an older generation."""
        key = entry.topic, entry.queue_id
        first = self._undecided.pop(key, None)
        if first is not None and entry.queue_offset != first.queue_offset + 1:
            first = None
        if entry.queue_offset == 1:
            first = self._first_at_end(queue)
        if entry.queue_offset and first is None:
            self._undecided[key] = entry
            return
        take_out(self._store, queue, self.removed)
        self.begun[queue.topic] = (first or entry).physical_offset
        if first is not None:
            self._queues.append([first])


def _is_before_its_end(queue: ConsumeQueue, entry: DispatchEntry) -> bool:
    """Return whether a new record has a queue offset that the queue already has."""
    is_known = entry.end_offset <= queue.max_physical_offset
    has_unit = not entry.sys_flag & TRANSACTION_PREPARED
    return (
        has_unit and not is_known and not queue.is_empty and entry.queue_offset < queue.max_offset
    )
