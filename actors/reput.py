"""Follows the commit log: feeds consume queues and index, and tells who waits for messages.

Owns: every write to ConsumeQueue and IndexFile, the dispatched offset.
Told by: PutMessage (`Appended`, with the dispatch entries alongside so that nothing is parsed
twice), its own tick, FlushRealTime (`WriteOutQueues`, `QueuesSynced`).
Tells: PullHold (`Arrived`, `CaughtUp`), FlushRealTime (`QueuesWritten`), PutMessage
(`WritesForbidden`).

At its start it reads from the log whatever was appended and not dispatched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from structlog import get_logger

from actors.actor import Actor, BatchEnd, handles
from actors.address import Address
from storage.consume_queues import UnsyncedQueues
from storage.dispatch import DispatchEntry
from storage.errors import StoreError
from storage.index import FullFiles
from storage.message_store import MessageStore

log = get_logger(__name__)
WRITE_OUT_MS = 200
"""How long a unit may lie in memory only; the log is enough to bring it back."""


@dataclass(slots=True)
class Appended:
    """The log holds everything below `end_offset`; `entries` are its new records, in order."""

    end_offset: int
    entries: Sequence[DispatchEntry]


@dataclass(slots=True)
class Arrived:
    """These queues hold more messages now; one entry per record, in order."""

    entries: Sequence[DispatchEntry]


@dataclass(slots=True)
class CaughtUp:
    """Any queue may hold more messages than was told: Reput has begun again from the log."""


@dataclass(slots=True)
class WritesForbidden:
    """The disk failed: PutMessage takes no more messages; None: it may again."""

    reason: str | None
    final: bool = False
    """Nobody may lift it: the log cannot be trusted until the store is opened anew."""


@dataclass(slots=True)
class WriteOutQueues:
    """Say what a sync of the queues has to cover; with 0 pages everything, written out first."""

    least_pages: int
    reply_to: Address

    def refuse(self, _remark: str) -> None:
        """Reput died with it: this time nothing is synced, and nothing is vouched for."""
        self.reply_to.tell(QueuesWritten(UnsyncedQueues(None), None))


@dataclass(slots=True)
class QueuesWritten:
    """These files want a sync, of the index those that are full; their owner is told afterwards."""

    unsynced: UnsyncedQueues
    full_index: FullFiles | None


@dataclass(slots=True)
class QueuesSynced:
    """What QueuesWritten named is on the disk."""

    unsynced: UnsyncedQueues
    full_index: FullFiles | None


@dataclass(slots=True)
class _Tick:
    """Write out."""


@dataclass(slots=True)
class Following:
    """How far dispatch has come; read by whoever reports it."""

    dispatched_offset: int
    store_timestamp: int = 0


class Reput(Actor):
    """Lives on the loop; writes are small and buffered."""

    def __init__(
        self,
        store: MessageStore,
        following: Following,
        *,
        pull_hold: Address,
        put_message: Address,
    ) -> None:
        super().__init__()
        self._store = store
        self._pull_hold, self._put_message = pull_hold, put_message
        self._refused: str | None = None
        self._gathered: list[DispatchEntry] = []
        self.following = following
        self._end_offset = 0

    def on_start(self) -> None:
        self._end_offset = self._store.catch_up()
        self.following.dispatched_offset = self._end_offset
        self._pull_hold.tell(CaughtUp())
        self.every(WRITE_OUT_MS, _Tick())

    @handles(Appended)
    def on_appended(self, message: Appended) -> None:
        """Keeps the entries for the end of the batch."""
        self._gathered.extend(message.entries)
        self._end_offset = message.end_offset

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Dispatches everything that was gathered, in bulk."""
        self._dispatch()

    def _dispatch(self) -> None:
        entries = self._gathered
        if not entries:
            return
        try:
            self._store.dispatcher.dispatch(entries)
        except StoreError as error:
            self._disk_refused(error)  # the same entries are dispatched again on the next tick
            return
        self._gathered = []
        self.following.dispatched_offset = self._end_offset
        self.following.store_timestamp = entries[-1][6]
        self._pull_hold.tell(Arrived(entries))

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Units reach their files a little later, in one write per queue."""
        self._dispatch()
        try:
            self._store.dispatcher.write_out()
        except StoreError as error:
            self._disk_refused(error)
            return
        if self._refused is not None and not self._gathered:
            log.info("the disk takes queue units again")
            self._refused = None
            self._put_message.tell(WritesForbidden(None))

    def _disk_refused(self, error: StoreError) -> None:
        """Units wait in memory; no more messages are taken until the disk takes them."""
        if self._refused is None:
            self._refused = str(error)
            log.error("consume queues or index not written", reason=self._refused)
            self._put_message.tell(WritesForbidden(self._refused))

    @handles(WriteOutQueues)
    def on_write_out(self, message: WriteOutQueues) -> None:
        """Says what a sync has to cover, and up to which time the queues are then complete."""
        index = self._store.index
        try:
            unsynced = self._store.consume_queues.unsynced(message.least_pages)
        except StoreError as error:
            self._disk_refused(error)
            unsynced = UnsyncedQueues(None)
        full_index = None if index is None else index.unsynced()
        message.reply_to.tell(QueuesWritten(unsynced, full_index))

    @handles(QueuesSynced)
    def on_synced(self, message: QueuesSynced) -> None:
        """Remembers that nothing of this needs another sync."""
        self._store.consume_queues.mark_synced(message.unsynced)
        if message.full_index is not None and self._store.index is not None:
            self._store.index.mark_synced(message.full_index)
