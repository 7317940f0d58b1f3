"""Reads a half message for an actor on the loop: at once, or once ColdRead has fetched it.

Recent half messages come from actors/sending/half_message_cache.py. ColdRead fetches those that are
cold and sends `ColdReadOfHalf`.

Where a half message lies its producer says, so it counts only if its queue has it there: a body may
look like one, with another one's number.
"""

from dataclasses import dataclass
from struct import error as StructError

from actors.dispatching.messages import AwaitDispatch
from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import Refusable
from actors.pulling.cold_read import ReadCold
from actors.sending.half_message_cache import HalfMessageCache, HalfRecord
from protocol.message import SIZE_AND_MAGIC, MessageRecord, RecordError
from storage.log.reader import message_of
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import UnitsOfRecords, place_of

_FIRST_BYTES = 4096
"""Asked about first; most records are shorter."""
_DISPATCHED, _UNIT_READ = 3, 4


@dataclass(slots=True)
class ColdReadOfHalf:
    """What was missing of the record at `offset` is there for this one; look again."""

    offset: int
    asker: Refusable
    reads: int
    """What has been waited for, the last of these: its head, 1; the rest, which a long record has,
    2; its dispatch, 3; its unit, 4."""

    def refuse(self, remark: str) -> None:
        """The disk cannot be read, or who waits for it is gone."""
        self.asker.refuse(remark)


class HalfReader:
    """Reads for one actor."""

    def __init__(
        self,
        store: MessageStore,
        probe: PageProbe,
        *,
        cold_read: ActorAddress,
        reput: ActorAddress,
        recent: HalfMessageCache,
    ) -> None:
        self._recent = recent
        self._units = UnitsOfRecords(store.consume_queues, store.dispatcher, probe)
        self._log, self._damage = store.commit_log, store.damage
        self._probe = probe
        self._cold_read, self._reput = cold_read, reput

    def recent(self, offset: int) -> HalfRecord | None:
        """What was put there a moment ago, if it is at hand."""
        return None if self._damage.ranges else self._recent.find(offset)

    def drop_recent(self, offset: int) -> None:
        """It has been ended."""
        self._recent.drop(offset)

    def read(
        self, offset: int, asker: Refusable, reply_to: ActorAddress, reads: int = 0
    ) -> tuple[bool, MessageRecord | None]:
        """Whether it is known what lies there, and the record; None if there is no whole one.

        If it is not known, `reply_to` is told `ColdReadOfHalf`.
        """
        recent = self._recent.take(offset)
        if recent is not None and not self._damage.ranges:
            return True, recent
        end = self._log.end_offset
        file = self._log.queue.find(offset) if 0 <= offset < end else None
        if file is None:
            return True, None
        limit = min(end, file.end_offset)
        if reads == 0 and self._is_cold(offset, min(offset + _FIRST_BYTES, limit), asker, reply_to):
            return False, None
        try:
            position = offset - file.first_offset
            size, _ = SIZE_AND_MAGIC.unpack_from(file.view, position)
            if not 0 < size <= limit - offset or self._damage.overlaps(offset, offset + size):
                return True, None
            is_long = size > _FIRST_BYTES
            if reads < 2 and is_long and self._is_cold(offset, offset + size, asker, reply_to):
                return False, None
            record = message_of(file.view[position : position + size], offset)
        except (StructError, RecordError):
            return True, None
        return self._vouched(record, asker, reply_to, reads)

    def _vouched(
        self, record: MessageRecord, asker: Refusable, reply_to: ActorAddress, reads: int
    ) -> tuple[bool, MessageRecord | None]:
        """The same, of what looks like a record."""
        units, place = self._units, place_of(record)
        if reads < _DISPATCHED and not units.is_dispatched(place):
            again = ColdReadOfHalf(record.physical_offset, asker, _DISPATCHED)
            self._reput.tell(AwaitDispatch(place.end_offset, again, reply_to))
            return False, None
        if reads < _UNIT_READ and (parts := units.cold(place)):
            again = ColdReadOfHalf(record.physical_offset, asker, _UNIT_READ)
            self._cold_read.tell(ReadCold(parts, again, reply_to))
            return False, None
        return True, record if units.agree(place) else None

    def _is_cold(self, start: int, end: int, asker: Refusable, reply_to: ActorAddress) -> bool:
        self._probe.forget()
        parts = self._probe.cold_records([(start, end)])
        if not parts:
            return False
        reads = 1 if end - start <= _FIRST_BYTES else 2
        self._cold_read.tell(ReadCold(parts, ColdReadOfHalf(start, asker, reads), reply_to))
        return True
