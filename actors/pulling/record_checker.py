"""Verification that the record at an offset named by a client is one of its consume queue.

Owns: nothing; reads queue units below the watermark.
Receives: CheckRecord from QueryMessage, SendBack and ConsumerCalls, and again from Reput and
ColdRead.
Sends: AwaitDispatch to Reput, because a new message has no unit yet; ReadCold to ColdRead;
the answer that CheckRecord carries to the requester.

Used only under access control. A body that looks like a record could otherwise reveal the bytes
behind it in the log. Without access control every client may read everything.
"""

from actors.dispatching.messages import AwaitDispatch, CheckRecord
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.pulling.messages import ReadCold
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import UnitsOfRecords

_DISPATCHED, _READ = 1, 2


class RecordChecker(Actor):
    """Actor on the event loop."""

    def __init__(
        self, store: MessageStore, probe: PageProbe, *, reput: ActorAddress, cold_read: ActorAddress
    ) -> None:
        super().__init__()
        self._units = UnitsOfRecords(store.consume_queues, store.dispatcher, probe)
        self._reput, self._cold_read = reput, cold_read

    @handles(CheckRecord, reads_only=True)
    def on_check(self, message: CheckRecord) -> None:
        """Check the record, after at most one wait for its dispatch and one for the disk."""
        units, place = self._units, message.place
        if message.reads < _DISPATCHED and not units.is_dispatched(place):
            message.reads = _DISPATCHED
            self._reput.tell(AwaitDispatch(place.end_offset, message, self.address))
        elif message.reads < _READ and (parts := units.cold(place)):
            message.reads = _READ
            self._cold_read.tell(ReadCold(parts, message, self.address))
        else:
            message.answer.is_own = units.agree(place)
            message.reply_to.tell(message.answer)
