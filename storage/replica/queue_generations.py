"""Feeds the queues of a slave, where queues begin anew as they did at its master.

A master that deletes a topic, or a queue without messages, numbers what comes next from 0. All its
slave ever learns of that is a record with number 0 behind a queue that has others: what that queue
had is taken out of use, and the queue begins with this record.

Where the record lies tells it from a repetition: what ends before the queue's last record is not
new. A recovery that cannot be sure (a flipped bit makes the same picture) puts a record 0 at the
end of the old queue; record 1 shows what it was.

Source: store/DefaultMessageStore.java (cleanUnusedTopic): a slave of 4.9.7 keeps the old queue.
"""

from collections.abc import Sequence

from protocol.sysflag import TRANSACTION_PREPARED
from storage.dispatching.dispatch import delay_levels_ms
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.queue_numbers import first_finder
from storage.retention.trimming import RemovedQueues, take_out


class QueueGenerations:
    """Told what a Dispatcher tells the queues. One owner, that of the queues."""

    def __init__(self, store: MessageStore) -> None:
        self.removed = RemovedQueues()
        """What was taken out of use."""
        self.begun: dict[str, int] = {}
        """Topics with queues that have begun anew, and where their newest such record lies."""
        self._store = store
        self._queues = store.consume_queues
        delay_levels = delay_levels_ms(store.config.message_delay_level)
        self._first_at_end = first_finder(store.commit_log, delay_levels)

    def take_removed(self) -> tuple[RemovedQueues, dict[str, int]]:
        """What was taken out of use, and `begun`; both begin anew."""
        taken = self.removed, self.begun
        self.removed, self.begun = RemovedQueues(), {}
        return taken

    def append(self, entries: Sequence[DispatchEntry]) -> None:
        """Adds the units of records, as ConsumeQueues does.

        Raises DiskFull or StoreError; the same entries may then be told again.
        """
        self._queues.append(entries, look=self._look)

    def _look(self, queue: ConsumeQueue, entry: DispatchEntry) -> None:
        """Sees the records whose number does not continue their queue, before they are added."""
        if _is_before_its_end(queue, entry):
            self._begin_anew(queue, entry)

    def _begin_anew(self, queue: ConsumeQueue, entry: DispatchEntry) -> None:
        """Takes the queue out of use if this record shows that it is of an older generation."""
        first: DispatchEntry | None = None
        if entry.queue_offset == 1:
            first = self._first_at_end(queue)
        if entry.queue_offset and first is None:
            return
        take_out(self._store, queue, self.removed)
        self.begun[queue.topic] = (first or entry).physical_offset
        if first is not None:
            self._queues.append([first])


def _is_before_its_end(queue: ConsumeQueue, entry: DispatchEntry) -> bool:
    """Whether a record that the queue does not have has a number that it has."""
    is_known = entry.end_offset <= queue.max_physical_offset
    has_unit = not entry.sys_flag & TRANSACTION_PREPARED
    return (
        has_unit and not is_known and not queue.is_empty and entry.queue_offset < queue.max_offset
    )
