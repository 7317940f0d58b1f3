"""The place that a record says is its own, and whether its queue says so too.

The bytes of a body may look like a record: magic, lengths, CRC and the offset at which it lies are
for whoever made the body to choose. The units of queues are the broker's own. So who names a place
in the log is believed only where a unit points at it: the one of the queue, and with the number,
that the record names.

What has no unit is not believed: a record whose queue was deleted or begun anew since, one whose
unit was put elsewhere (a hole in the numbers), prepared and rolled back ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

from protocol.message import MessageRecord
from storage.dispatching.dispatch import Dispatcher
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.reading.page_probe import ColdPart, PageProbe


class RecordPlace(NamedTuple):
    """Of one record, as it says itself."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int

    @property
    def end_offset(self) -> int:
        """Of the log, where the record ends."""
        return self.physical_offset + self.record_bytes


def place_of(record: MessageRecord) -> RecordPlace:
    """The topic is the one it lies in, also of delayed and half messages."""
    return RecordPlace(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.record_bytes,
    )


class UnitsOfRecords:
    """Asks the queues of one store. Lives on the loop, as who writes them does."""

    def __init__(self, queues: ConsumeQueues, dispatcher: Dispatcher, probe: PageProbe) -> None:
        self._queues, self._dispatcher, self._probe = queues, dispatcher, probe

    def is_dispatched(self, place: RecordPlace) -> bool:
        """Whether the record has its unit by now, if it gets one at all."""
        return place.end_offset <= self._dispatcher.dispatched_offset

    def cold(self, place: RecordPlace) -> Sequence[ColdPart]:
        """What has to be read from the disk before `agree` is asked."""
        queue = self._queue_of(place)
        return () if queue is None else self._probe.cold_units(queue, place.queue_offset, 1)

    def agree(self, place: RecordPlace) -> bool:
        """Whether the unit of this number points at the record, and at nothing more."""
        queue = self._queue_of(place)
        unit = None if queue is None else queue.unit(place.queue_offset)
        return unit is not None and unit[:2] == (place.physical_offset, place.record_bytes)

    def _queue_of(self, place: RecordPlace) -> ConsumeQueue | None:
        """None also where it does not have that number."""
        queue = self._queues.get(place.topic, place.queue_id)
        if queue is None or not queue.min_offset <= place.queue_offset < queue.max_offset:
            return None
        return queue
