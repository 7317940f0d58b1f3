"""Says whether a record at a place that a client named is what its queue has there.

Owns: nothing; it reads the units of queues below the watermark.
Told by: QueryMessage, SendBack, ConsumerCalls (`CheckRecord`), Reput and ColdRead (the same again).
Tells: Reput (`AwaitDispatch`: a message that has just come has no unit yet), ColdRead (`ReadCold`),
who asked (`RecordChecked`).

Asked under access control alone: a body that looks like a record would else show its maker what
lies behind it in the log. Without, everybody may read everything.
"""

from actors.dispatching.messages import AwaitDispatch, CheckRecord, RecordChecked
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.pulling.cold_read import ReadCold
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import UnitsOfRecords

_DISPATCHED, _READ = 1, 2


class RecordChecker(Actor):
    """Lives on the loop."""

    def __init__(
        self, store: MessageStore, probe: PageProbe, *, reput: ActorAddress, cold_read: ActorAddress
    ) -> None:
        super().__init__()
        self._units = UnitsOfRecords(store.consume_queues, store.dispatcher, probe)
        self._reput, self._cold_read = reput, cold_read

    @handles(CheckRecord, reads_only=True)
    def on_check(self, message: CheckRecord) -> None:
        """Waits once for dispatch and once for the disk; then what there is counts."""
        units, place = self._units, message.place
        if message.reads < _DISPATCHED and not units.is_dispatched(place):
            message.reads = _DISPATCHED
            self._reput.tell(AwaitDispatch(place.end_offset, message, self.address))
        elif message.reads < _READ and (parts := units.cold(place)):
            message.reads = _READ
            self._cold_read.tell(ReadCold(parts, message, self.address))
        else:
            message.reply_to.tell(RecordChecked(message.token, units.agree(place)))
