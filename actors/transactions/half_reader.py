"""Reader of half messages for an actor on the event loop, with cold pages read by ColdRead.

Recent half messages come from actors/sending/half_message_cache.py. After a cold read, ColdRead
sends `ColdReadOfHalf`.

The producer names the offset of a half message, so a record counts only if its consume queue
confirms it. Otherwise a body could contain a forged record with the queue offset of another one.
"""

from struct import error as StructError

from actors.dispatching.messages import AwaitDispatch
from actors.engine.actor_address import ActorAddress
from actors.pulling.messages import ReadCold
from actors.sending.half_message_cache import HalfMessageCache, HalfRecord
from actors.transactions.messages import ColdReadOfHalf, End, Resume
from protocol.message import SIZE_AND_MAGIC, MessageRecord, RecordError
from storage.log.reader import message_of
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import UnitsOfRecords, place_of

_FIRST_BYTES = 4096
"""Bytes probed first; most records are shorter."""
_DISPATCHED, _UNIT_READ = 3, 4


class HalfReader:
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
        """Return the cached half message; None if it is not cached, or if the log is damaged."""
        return None if self._damage.ranges else self._recent.find(offset)

    def drop_recent(self, offset: int) -> None:
        self._recent.drop(offset)

    def read(
        self, offset: int, asker: End | Resume, reply_to: ActorAddress, reads: int = 0
    ) -> tuple[bool, MessageRecord | None]:
        """Return whether the result is known, and the record; None if no whole record is there.

        If the result is not known, `reply_to` receives `ColdReadOfHalf`.
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
        self, record: MessageRecord, asker: End | Resume, reply_to: ActorAddress, reads: int
    ) -> tuple[bool, MessageRecord | None]:
        """Continue `read` with a parsed record, which its queue has to confirm."""
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

    def _is_cold(self, start: int, end: int, asker: End | Resume, reply_to: ActorAddress) -> bool:
        self._probe.forget()
        parts = self._probe.cold_records([(start, end)])
        if not parts:
            return False
        reads = 1 if end - start <= _FIRST_BYTES else 2
        self._cold_read.tell(ReadCold(parts, ColdReadOfHalf(start, asker, reads), reply_to))
        return True
