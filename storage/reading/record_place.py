"""Check whether a record position named by a client is confirmed by the record's queue.

A message body may contain bytes that look like a record, with valid magic, lengths, CRC and offset.
Queue units, however, are written by the broker alone. A position is trusted only if the unit of the
queue and queue offset that the record names points at it.

Records without a unit are not trusted. Examples are records of a deleted or recreated queue, of
misplaced units (a hole in the queue offsets), and prepared or rolled-back records.
"""

from collections.abc import Sequence
from typing import NamedTuple

from protocol.message import MessageRecord
from storage.dispatching.dispatch import Dispatcher
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.reading.page_probe import ColdPart, PageProbe


class RecordPlace(NamedTuple):
    """Position of one record, as the record states it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.record_bytes


def place_of(record: MessageRecord) -> RecordPlace:
    """Return the position of a record; the topic is the stored one, also of delayed messages."""
    return RecordPlace(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.record_bytes,
    )


class UnitsOfRecords:
    """Lookup of the queue unit that belongs to a record. For the event loop only."""

    def __init__(self, queues: ConsumeQueues, dispatcher: Dispatcher, probe: PageProbe) -> None:
        self._queues, self._dispatcher, self._probe = queues, dispatcher, probe

    def is_dispatched(self, place: RecordPlace) -> bool:
        """Return whether the record is dispatched, so that its unit exists if it gets one."""
        return place.end_offset <= self._dispatcher.dispatched_offset

    def cold(self, place: RecordPlace) -> Sequence[ColdPart]:
        """Return the parts to read from the disk before `agree`."""
        queue = self._queue_of(place)
        return () if queue is None else self._probe.cold_units(queue, place.queue_offset, 1)

    def agree(self, place: RecordPlace) -> bool:
        """Return whether the unit of this queue offset points at exactly this record."""
        queue = self._queue_of(place)
        unit = None if queue is None else queue.unit(place.queue_offset)
        return unit is not None and unit[:2] == (place.physical_offset, place.record_bytes)

    def _queue_of(self, place: RecordPlace) -> ConsumeQueue | None:
        """Return the queue if it contains the queue offset, else None."""
        queue = self._queues.get(place.topic, place.queue_id)
        if queue is None or not queue.min_offset <= place.queue_offset < queue.max_offset:
            return None
        return queue
