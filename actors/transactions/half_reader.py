"""Reader of half messages for an actor on the event loop, with cold pages read by ColdRead.

Recent half messages come from actors/sending/half_message_cache.py. After a cold read, ColdRead
sends `ColdReadOfHalf`.

The producer names the offset of a half message, so a record counts only if its consume queue
confirms it. Otherwise a body could contain a forged record with the queue offset of another one.
"""

from struct import Struct
from struct import error as StructError

from actors.dispatching.messages import AwaitDispatch
from actors.engine.actor_address import ActorAddress
from actors.pulling.messages import ReadCold
from actors.sending.half_message_cache import HalfMessageCache, HalfRecord
from actors.transactions.messages import ColdReadOfHalf, End, Resume
from protocol.message import MessageRecord, RecordError
from protocol.topic_names import HALF_TOPIC
from storage.log.reader import RECORD_BYTES_MAX, message_of
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import RecordPlace, UnitsOfRecords, place_of

_FIRST_BYTES = 4096
"""Bytes probed first; most records are shorter."""
_HEAD_READ, _UNKNOWN_READ, _DISPATCHED, _UNIT_READ, _RECORD_READ = range(1, 6)

_PLACE = Struct(
    ">i"  # record_bytes
    "8x"  # magic, body_crc
    "i"  # queue_id
    "4x"  # flag
    "q"  # queue_offset
)


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

        If the result is not known, `reply_to` receives `ColdReadOfHalf`. A record is read only
        after its unit confirms it, as a body may name any size. Only an operator's request, whose
        topic is unknown before, is read first.
        """
        recent = self._recent.take(offset)
        if recent is not None and not self._damage.ranges:
            return True, recent
        end = self._log.end_offset
        file = self._log.queue.find(offset) if 0 <= offset < end else None
        if file is None:
            return True, None
        limit = min(end, file.end_offset)
        first_end = min(offset + _FIRST_BYTES, limit)
        if reads < _HEAD_READ and self._is_cold(offset, first_end, asker, reply_to, _HEAD_READ):
            return False, None
        is_end, position = isinstance(asker, End), offset - file.first_offset
        try:
            size, queue_id, queue_offset = _PLACE.unpack_from(file.view, position)
            longest = min(limit - offset, RECORD_BYTES_MAX)
            if not 0 < size <= longest or self._damage.overlaps(offset, offset + size):
                return True, None
            place = RecordPlace(HALF_TOPIC, queue_id, queue_offset, offset, size)
            if is_end and not (known := self._vouched(place, asker, reply_to, reads)):
                return known is not None, None
            step = _RECORD_READ if is_end else _UNKNOWN_READ
            is_long = size > _FIRST_BYTES and reads < step
            if is_long and self._is_cold(offset, offset + size, asker, reply_to, step):
                return False, None
            record = message_of(file.view[position : position + size], offset)
        except (StructError, RecordError):
            return True, None
        known = is_end or self._vouched(place_of(record), asker, reply_to, reads)
        return known is not None, record if known else None

    def _vouched(
        self, place: RecordPlace, asker: End | Resume, reply_to: ActorAddress, reads: int
    ) -> bool | None:
        """Return whether the queue confirms a record; None if `reply_to` is told when it can."""
        units, offset = self._units, place.physical_offset
        if reads < _DISPATCHED and not units.is_dispatched(place):
            again = ColdReadOfHalf(offset, asker, _DISPATCHED)
            self._reput.tell(AwaitDispatch(place.end_offset, again, reply_to))
            return None
        if reads < _UNIT_READ and (parts := units.cold(place)):
            again = ColdReadOfHalf(offset, asker, _UNIT_READ)
            self._cold_read.tell(ReadCold(parts, again, reply_to))
            return None
        return units.agree(place)

    def _is_cold(
        self, start: int, end: int, asker: End | Resume, reply_to: ActorAddress, step: int
    ) -> bool:
        self._probe.forget()
        parts = self._probe.cold_records([(start, end)])
        if not parts:
            return False
        again = ColdReadOfHalf(start, asker, step)
        self._cold_read.tell(ReadCold(parts, again, reply_to))
        return True
