"""Follows the commit log: feeds consume queues and index, and tells who waits for messages.

Owns: every write to ConsumeQueue, the dispatched offset, and the followers (index, transaction
table) that are not CatchUp's at the time (actors/dispatching/hand_over.py).
Told by: PutMessage (`Appended`, with the dispatch entries alongside so that nothing is parsed
twice), its own tick, FlushRealTime (`WriteOutQueues`, `QueuesSynced`), CleanFiles (`TrimBefore`,
`RemoveQueues`), CatchUp (`FollowersCaughtUp`), QueryMessage (`WriteOutIndex`), RecordChecker and
Transactions (`AwaitDispatch`), the scrubber (`RepairUnits`, `RebuildIndex`).
Tells: PullHold (`Arrived`, `CaughtUp`, `QueuesEmptied`), FlushRealTime (`QueuesWritten`),
PutMessage (`WritesForbidden`), CleanFiles (`Trimmed`, `QueuesRemoved`, `QueuesBegunAnew`), CatchUp
(`FollowerBehind`).

At its start it reads from the log whatever was appended and not dispatched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from structlog import get_logger

from actors.dispatching.hand_over import (
    AwaitDispatch,
    FollowerBehind,
    FollowersCaughtUp,
    GapCloser,
    IndexWritten,
    RebuildIndex,
    RebuildTable,
    WriteOutIndex,
)
from actors.dispatching.repair import RepairUnits, repair_units
from actors.dispatching.sync_queues import QueuesSynced, QueuesWritten, WriteOutQueues
from actors.dispatching.trim import (
    QueuesBegunAnew,
    QueuesEmptied,
    QueuesRemoved,
    RemoveQueues,
    TrimBefore,
    Trimmed,
    TrimSome,
    begin_again,
)
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import BATCH_END
from storage.errors import StoreError
from storage.message_store import MessageStore
from storage.queues.dispatch_entry import Dispatched, cut_behind, extended
from storage.queues.unsynced import UnsyncedQueues
from storage.replica.queue_generations import QueueGenerations
from storage.retention.trimming import RemovedQueues, Trimming, remove_queues

log = get_logger(__name__)
WRITE_OUT_MS = 200
"""How long a unit may lie in memory only; the log is enough to bring it back."""
WRITTEN_AT_ONCE = 64
"""Queues, some 0.5 ms; those of ten thousand held everybody up for 60 to 90."""
DISPATCHED_MAX = 2_000
"""Records at a time, about 10 ms; then whoever else has mail has his turn."""
DISPATCHED_KEYS_MAX = 6_000
"""Index keys of these records, 10 ms too: a record may have 129 of them."""


@dataclass(slots=True)
class Appended:
    """The log holds everything below `end_offset`; `entries` are its new records, in order."""

    end_offset: int
    entries: list[Dispatched]
    """Reput's own from then on."""


@dataclass(slots=True)
class Arrived:
    """These queues hold more messages now; `entries` are these records, in order."""

    entries: Sequence[Dispatched]


@dataclass(slots=True)
class CaughtUp:
    """Any queue may hold more messages than was told: Reput has begun again from the log."""


@dataclass(slots=True)
class WritesForbidden:
    """The disk failed: PutMessage takes no more messages; None: it may again."""

    reason: str | None
    source: str = "reput"
    """Whose word it is; only the same may lift it."""
    final: bool = False
    """Nobody may lift it: the log cannot be trusted until the store is opened anew."""


@dataclass(slots=True)
class _Tick:
    """Write out."""


@dataclass(slots=True)
class _DispatchMore:
    """What did not fit into the last turn; its BatchEnd does it."""


@dataclass(slots=True)
class _WriteMore:
    """Write out some more queues."""


@dataclass(slots=True)
class _CloseGap:
    """Feed the followers that know less than the queues, a few records."""


@dataclass(slots=True)
class DispatchProgress:
    """How far dispatch has come; read by whoever reports it."""

    dispatched_offset: int
    store_timestamp: int = 0


class HeldPullCount(Protocol):
    """The pulls that wait for messages."""

    count: int


class Reput(Actor):
    """Lives on the loop; writes are small and buffered."""

    def __init__(
        self,
        store: MessageStore,
        following: DispatchProgress,
        *,
        pull_hold: ActorAddress,
        put_message: ActorAddress,
        catch_up: ActorAddress,
        clean_files: ActorAddress,
        held: HeldPullCount,
        generations: QueueGenerations | None = None,
    ) -> None:
        """While nothing is `held` PullHold is told of no messages: it looks for itself whether some
        came before it holds a pull. `generations`: a slave's, which feeds its queues."""
        super().__init__()
        self._store = store
        self._clean_files, self._generations = clean_files, generations
        self._pull_hold, self._put_message, self._held = pull_hold, put_message, held
        self._catch_up = catch_up
        self._gap = GapCloser(store.lagging, store.dispatcher)
        self._gap_asked = False
        self._wrong_table: RebuildTable | None = None
        self._refused: str | None = None
        self._gathered: list[Dispatched] = []
        self._awaited: list[AwaitDispatch] = []
        self._is_writing = False
        self.following = following
        self._end_offset = 0

    def on_start(self) -> None:
        self._end_offset = self._store.dispatch_rest()
        self.following.dispatched_offset = self._end_offset
        self._gap.begin()
        self._close_gap_soon()
        self._pull_hold.tell(CaughtUp())
        self.every(WRITE_OUT_MS, _Tick())

    @handles(Appended)
    def on_appended(self, message: Appended) -> None:
        """Keeps the entries for the end of the batch."""
        gathered = self._gathered
        self._gathered = extended(gathered, message.entries) if gathered else message.entries
        self._end_offset = message.end_offset

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Dispatches what was gathered, in bulk."""
        gathered = self._gathered
        if not gathered:
            return
        entries, rest = cut_behind(gathered, DISPATCHED_MAX, DISPATCHED_KEYS_MAX)
        last = entries[-1]
        end_offset = last.physical_offset + last.record_bytes
        dispatcher = self._store.dispatcher
        try:
            dispatcher.dispatch_to_queues(entries)
        except StoreError as error:
            self._disk_refused(error)
            self._gap.part_with_those_behind(dispatcher.dispatched_offset)
            if dispatcher.dispatched_offset < end_offset:
                return  # the same entries are dispatched again on the next tick
        self._gathered = rest
        if self._generations is not None:
            self._tell_begun_anew(self._generations)
        if rest:
            self.address.tell(_DispatchMore())
        self.following.dispatched_offset = end_offset if rest else self._end_offset
        self.following.store_timestamp = last.store_timestamp
        if self._held.count:
            self._pull_hold.tell(Arrived(entries))

    @handles(_DispatchMore)
    def on_dispatch_more(self, _: _DispatchMore) -> None:
        """The end of this batch comes."""

    def _feed(self) -> None:
        """Tells the followers what they have not been told of the records that were dispatched."""
        dispatcher = self._store.dispatcher
        try:
            dispatcher.feed()
        except StoreError as error:
            self._disk_refused(error)
            self._gap.part_with_those_behind(dispatcher.dispatched_offset)

    def _tell_begun_anew(self, generations: QueueGenerations) -> None:
        """What a slave has taken out of use because its master had begun anew is to be deleted."""
        if generations.removed.queues:
            removed, topics = generations.take_removed()
            self._clean_files.tell(QueuesBegunAnew(removed, topics))

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Units reach their files a little later, in one write per queue."""
        self.on_batch_end(BATCH_END)
        self._answer_awaited()
        self._feed()
        if not self._is_writing:  # else those of the last tick are not through
            self.on_write_more(_WriteMore())

    @handles(_WriteMore)
    def on_write_more(self, _: _WriteMore) -> None:
        """Some queues, then whoever else has mail; after the last one what follows the log."""
        self._is_writing = False
        try:
            self._is_writing = self._store.dispatcher.write_out(WRITTEN_AT_ONCE)
        except StoreError as error:
            self._disk_refused(error)
            return
        if self._is_writing:
            self.system.loop.tell_in_next_round(self.address, _WriteMore())
            return
        if self._gap and not self._close_gap():
            return
        if self._refused is not None and not self._gathered:
            log.info("the disk takes queue units again")
            self._refused = None
            self._put_message.tell(WritesForbidden(None))

    def can_stop(self) -> bool:
        """Once everything is dispatched that the disk takes."""
        return not self._gathered or self._refused is not None

    # --- followers

    @handles(FollowersCaughtUp)
    def on_caught_up(self, message: FollowersCaughtUp) -> None:
        """Followers that know nearly everything are fed here from now on."""
        for follower in message.followers:
            self._gap.adopt(follower, message.position)
        self._close_gap_soon()

    def _close_gap_soon(self) -> None:
        if self._gap and not self._gap_asked:
            self._gap_asked = True
            self.address.tell(_CloseGap())

    @handles(_CloseGap)
    def on_close_gap(self, _: _CloseGap) -> None:
        """One step, then whoever else has mail, then the next one."""
        self._gap_asked = False
        if self._close_gap():
            self._close_gap_soon()

    def _close_gap(self) -> bool:
        try:
            self._gap.step()
        except (StoreError, OSError) as error:
            self._disk_refused(error)  # the next tick tries again
            return False
        return True

    @handles(AwaitDispatch)
    def on_await_dispatch(self, message: AwaitDispatch) -> None:
        """Somebody wants the units of messages that have just come."""
        if message.end_offset <= self._store.dispatcher.dispatched_offset:
            message.reply_to.tell(message.then)
        elif self._gathered and self._refused is None:
            self.address.tell(message)  # the end of this batch comes first
        else:  # `Appended` is on its way, the disk refuses, or nothing ends there
            self._awaited.append(message)

    def _answer_awaited(self) -> None:
        awaited, self._awaited = self._awaited, []
        for message in awaited:
            message.reply_to.tell(message.then)

    def on_stop(self) -> None:
        self._answer_awaited()

    def on_failure(self, *_: object) -> None:
        self._answer_awaited()

    @handles(WriteOutIndex)
    def on_write_out_index(self, message: WriteOutIndex) -> None:
        """A query wants to find the newest keys too."""
        self.on_batch_end(BATCH_END)
        if self._gathered and self._refused is None:
            self.address.tell(message)
            return
        self._feed()
        index = self._store.index
        if index is not None and self._gap.owns(index):
            try:
                index.write_out()
            except StoreError as error:
                self._disk_refused(error)
        message.reply_to.tell(IndexWritten(message.request))

    @handles(RebuildIndex)
    def on_rebuild_index(self, message: RebuildIndex) -> None:
        """An index file is wrong: it and the newer ones are made anew, behind."""
        index = self._store.index
        if index is None:
            return
        if not self._gap.owns(index):
            self._catch_up.tell(message)
            return
        if not (paths := index.drop_from(message.path)):
            return  # deleted meanwhile
        log.warning("index made anew", path=message.path, reason=message.reason, files=len(paths))
        self._gap.give_away(index)
        self._catch_up.tell(FollowerBehind(paths))

    @handles(RebuildTable)
    def on_rebuild_table(self, message: RebuildTable) -> None:
        """The transaction table is wrong: it is made anew, behind."""
        if self._gap.owns(self._store.transaction_table):
            self._wrong_table = message
        else:
            self._catch_up.tell(message)

    def _part_with_wrong_table(self) -> None:
        """When the next sync is asked for, so none is under way: it would vouch for the old one."""
        message, self._wrong_table = self._wrong_table, None
        if message is not None:
            self._gap.give_away(self._store.transaction_table)
            self._catch_up.tell(message)

    def _disk_refused(self, error: StoreError | OSError) -> None:
        """Units wait in memory; no more messages are taken until the disk takes them."""
        if self._refused is None:
            self._refused = str(error)
            log.error("consume queues or index not written", reason=self._refused)
            self._put_message.tell(WritesForbidden(self._refused))

    @handles(WriteOutQueues)
    def on_write_out(self, message: WriteOutQueues) -> None:
        """Says what a sync has to cover, and up to which time the queues are then complete."""
        index, table, sinks = self._store.index, None, None
        self._feed()
        self._part_with_wrong_table()
        try:
            unsynced = self._store.consume_queues.unsynced(message.least_pages)
            if self._gap.owns(self._store.transaction_table):
                table = self._store.transaction_table.unsynced(message.least_pages)
        except StoreError as error:
            self._disk_refused(error)
            unsynced = UnsyncedQueues(None)
        full_index = None
        if index is not None and self._gap.owns(index):  # else CatchUp syncs what it fills
            full_index = index.unsynced()
        if self._gap.owns(self._store.sink_table):
            sinks = self._store.sink_table.unsynced(at_once=message.least_pages == 0)
        message.reply_to.tell(QueuesWritten(unsynced, full_index, table, sinks))

    @handles(QueuesSynced)
    def on_synced(self, message: QueuesSynced) -> None:
        """Remembers that nothing of this needs another sync."""
        self._store.consume_queues.mark_synced(message.unsynced)
        index = self._store.index
        if message.full_index is not None and index is not None and self._gap.owns(index):
            index.mark_synced(message.full_index)
        if message.table is not None and self._gap.owns(self._store.transaction_table):
            self._store.transaction_table.mark_synced(message.table)
        if message.sinks is not None and self._gap.owns(self._store.sink_table):
            self._store.sink_table.mark_synced(message.sinks)

    @handles(TrimBefore)
    def on_trim(self, message: TrimBefore) -> None:
        """Takes out of use what is derived from records that the log has no more."""
        self.address.tell(TrimSome(Trimming(self._store, message.offset), message.reply_to))

    @handles(TrimSome)
    def on_trim_some(self, message: TrimSome) -> None:
        """Some queues at a time, other mail in between."""
        try:
            is_complete = message.trimming.step()
        except StoreError as error:
            log.error("queues not trimmed", reason=str(error))
            message.refuse(str(error))
            return
        if is_complete:
            message.reply_to.tell(Trimmed(message.trimming.paths))
        else:
            self.address.tell(message)

    @handles(RemoveQueues)
    def on_remove_queues(self, message: RemoveQueues) -> None:
        """Takes whole queues out of use."""
        removed, refused = RemovedQueues(), None
        only, known = message.only, message.known
        if only is not None and known is not None and only in known.value:
            message.reply_to.tell(QueuesRemoved(removed))  # messages may have come to it again
            return
        try:
            remove_queues(
                self._store,
                message.topics,
                removed,
                only=only,
                before=message.before,
                queue_ids=message.queue_ids,
            )
        except StoreError as error:
            refused = str(error)
        if removed.queues:
            if message.offsets is not None:
                begin_again(self._store.consume_queues, removed, message.offsets.value)
            self._pull_hold.tell(QueuesEmptied([each[:2] for each in removed.queues]))
        message.reply_to.tell(QueuesRemoved(removed, refused))

    @handles(RepairUnits)
    def on_repair_units(self, message: RepairUnits) -> None:
        """The scrubber found units that are wrong, or that need no more checks."""
        repair_units(self._store.consume_queues, message)
