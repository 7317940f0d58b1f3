"""Dispatcher of the commit log to consume queues, index, tables and held pulls.

Owns: all writes to consume queues, the dispatched offset, and the followers (index, tables) that
CatchUp does not own.
Receives: Appended from PutMessage; FollowersCaughtUp from CatchUp; WriteOutQueues and QueuesSynced
from FlushRealTime; TrimBefore and RemoveQueues from CleanFiles; WriteOutIndex from QueryMessage;
AwaitDispatch from RecordChecker and Transactions; RepairUnits, RebuildIndex and RebuildTable from
the scrubber; its own ticks.
Sends: Arrived, CaughtUp and QueuesEmptied to PullHold and Receipts; WritesForbidden to PutMessage;
QueuesWritten to FlushRealTime; Trimmed, QueuesRemoved and QueuesBegunAnew to CleanFiles;
FollowerBehind, RebuildIndex and RebuildTable to CatchUp.

`Appended` has the dispatch entries with it, so that no record is parsed twice. At its start, Reput
reads appended but undispatched records from the commit log.

The last steps of a follower (index, table) from CatchUp to Reput:

    after a start   far behind       CatchUp reads the log for it, on a thread
    nearly there    small gap        GapCloser reads the rest on the loop, in small steps
    then            no gap           Reput feeds it along with the queues
    damaged         RebuildIndex     Reput drops it and sends FollowerBehind to CatchUp

The owner updates `Lagging.behind` before it messages the other actor. Therefore a restarted actor
knows its followers, even if the message was lost.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

from actors.dispatching.messages import (
    Appended,
    Arrived,
    AwaitDispatch,
    CaughtUp,
    FollowerBehind,
    FollowersCaughtUp,
    IndexWritten,
    QueuesBegunAnew,
    QueuesEmptied,
    QueuesRemoved,
    QueuesSynced,
    QueuesWritten,
    RebuildIndex,
    RebuildTable,
    RemoveQueues,
    RepairsRefused,
    RepairUnits,
    TrimBefore,
    Trimmed,
    WriteOutIndex,
    WriteOutQueues,
    WritesForbidden,
)
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import BATCH_END, Message
from actors.engine.server_log import get_logger
from storage.dispatching.dispatch import Dispatcher, Follower, cut_behind, extended
from storage.dispatching.followers import SLICE_RECORDS, Lagging, feed
from storage.errors import StoreError
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import Dispatched
from storage.queues.unsynced import UnsyncedQueues
from storage.replica.queue_generations import QueueGenerations
from storage.retention.trimming import KEPT_TOPICS, RemovedQueues, Trimming, remove_queues


class GapCloser:
    """Reput's followers that have seen less than the consume queues.

    The dispatcher does not feed them until `step` has closed their gap.
    """

    def __init__(self, lagging: Lagging, dispatcher: Dispatcher) -> None:
        self._lagging = lagging
        self._dispatcher = dispatcher
        self._open: dict[Follower, int] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def owns(self, follower: Follower | None) -> bool:
        """Return whether Reput owns a follower, with a gap or without."""
        return follower is not None and follower.name not in self._lagging.behind

    def begin(self) -> None:
        """Collect Reput's followers after its start."""
        self._open.clear()
        self._dispatcher.followers = ()
        for follower in self._lagging.in_time():
            self.adopt(follower, follower.covered_offset)

    def adopt(self, follower: Follower, position: int) -> None:
        """Add a follower that has read the log up to `position`, unless it is fed already."""
        if not self.owns(follower) or follower in self._dispatcher.followers:
            return
        if position >= self._dispatcher.dispatched_offset:
            self._open.pop(follower, None)
            self._dispatcher.followers += (follower,)
        else:
            self._open.setdefault(follower, position)

    def part_with_those_behind(self, end_offset: int) -> None:
        """Stop feeding followers that missed records below `end_offset`, after a failure."""
        for follower in self._dispatcher.followers:
            if follower.covered_offset < end_offset:
                self._set_apart(follower)
                self._open[follower] = follower.covered_offset

    def give_away(self, follower: Follower) -> None:
        """Make CatchUp the owner of a follower."""
        self._set_apart(follower)
        self._open.pop(follower, None)
        self._lagging.behind.add(follower.name)

    def _set_apart(self, follower: Follower) -> None:
        fed = self._dispatcher.followers
        self._dispatcher.followers = tuple(each for each in fed if each is not follower)

    def step(self) -> None:
        """Read and feed a few records.

        Raises StoreError or OSError, and may then be called again.
        """
        if not self._open:
            return
        position = min(self._open.values())
        part = self._lagging.reader.read(position, SLICE_RECORDS)
        late = [each for each, known in self._open.items() if known <= position]
        feed(late, part)
        for follower in late:
            self._open[follower] = part.next_offset
            self.adopt(follower, part.next_offset)


log = get_logger(__name__)
WRITE_OUT_MS = 200
"""Longest time that a unit is in memory only; a crash rebuilds it from the commit log."""
WRITTEN_AT_ONCE = 64
"""Queues per turn, some 0.5 ms; ten thousand blocked the loop for 60 to 90 ms."""
DISPATCHED_MAX = 2_000
"""Records per turn, about 10 ms; then other actors run."""
DISPATCHED_KEYS_MAX = 6_000
"""Index keys per turn, also 10 ms: a record may have 129 of them."""


@dataclass(slots=True)
class _Tick:
    """Write out units."""


@dataclass(slots=True)
class _DispatchMore:
    """Dispatch, at the end of its batch, the entries past the last turn's limit."""


@dataclass(slots=True)
class _WriteMore:
    """Write out some more queues."""


@dataclass(slots=True)
class _CloseGap:
    """Feed a few records to the followers with a gap."""


@dataclass(slots=True)
class _TrimSome(Message):
    """Trim the next queues."""

    trimming: Trimming
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Report the files that are out of use: Reput has failed."""
        self.reply_to.tell(Trimmed(self.trimming.paths, is_complete=False))


@dataclass(slots=True)
class DispatchProgress:
    """Progress of dispatch, for reports of other actors."""

    dispatched_offset: int
    store_timestamp: int = 0


class HeldPullCount(Protocol):
    """Number of held pulls, as PullHold shares it."""

    count: int


class Reput(Actor):
    """Actor on the loop: its writes are small and buffered."""

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
        receipts: ActorAddress,
        waiting: HeldPullCount,
        generations: QueueGenerations | None = None,
    ) -> None:
        """Create the actor; `generations` is a slave's, which feeds its queues.

        While `held` counts 0, PullHold gets no `Arrived`: it checks the queue before it holds a
        pull. `waiting` counts the receives that wait in Receipts.
        """
        super().__init__()
        self._store = store
        self._clean_files, self._generations = clean_files, generations
        self._pull_hold, self._put_message, self._held = pull_hold, put_message, held
        self._receipts, self._waiting = receipts, waiting
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
        self._receipts.tell(CaughtUp())
        self.every(WRITE_OUT_MS, _Tick())

    @handles(Appended)
    def on_appended(self, message: Appended) -> None:
        """Keep the entries until the end of the batch."""
        gathered = self._gathered
        self._gathered = extended(gathered, message.entries) if gathered else message.entries
        self._end_offset = message.end_offset

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Dispatch the gathered entries."""
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
                return  # the next tick dispatches the same entries again
        self._gathered = rest
        if self._generations is not None:
            self._tell_begun_anew(self._generations)
        if rest:
            self.address.tell(_DispatchMore())
        self.following.dispatched_offset = end_offset if rest else self._end_offset
        self.following.store_timestamp = last.store_timestamp
        if self._held.count:
            self._pull_hold.tell(Arrived(entries))
        if self._waiting.count:
            self._receipts.tell(Arrived(entries))

    @handles(_DispatchMore)
    def on_dispatch_more(self, _: _DispatchMore) -> None:
        """Do nothing: the batch end that follows dispatches."""

    def _feed(self) -> None:
        """Feed the followers the records dispatched since the last call."""
        dispatcher = self._store.dispatcher
        try:
            dispatcher.feed()
        except StoreError as error:
            self._disk_refused(error)
            self._gap.part_with_those_behind(dispatcher.dispatched_offset)

    def _tell_begun_anew(self, generations: QueueGenerations) -> None:
        """Have old queues deleted that a slave's master has started again from 0."""
        if generations.removed.queues:
            removed, topics = generations.take_removed()
            self._clean_files.tell(QueuesBegunAnew(removed, topics))

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Dispatch, feed and write out: one write per queue."""
        self.on_batch_end(BATCH_END)
        self._answer_awaited()
        self._feed()
        if not self._is_writing:  # the last tick's writes have ended
            self.on_write_more(_WriteMore())

    @handles(_WriteMore)
    def on_write_more(self, _: _WriteMore) -> None:
        """Write out some queues, then let other actors run; after the last, close gaps."""
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
            log.info("queue unit writes resumed")
            self._refused = None
            self._put_message.tell(WritesForbidden(None))

    def can_stop(self) -> bool:
        """Return whether everything is dispatched that the disk accepts."""
        return not self._gathered or self._refused is not None

    # --- followers

    @handles(FollowersCaughtUp)
    def on_caught_up(self, message: FollowersCaughtUp) -> None:
        """Adopt followers that have nearly reached the end of the commit log."""
        for follower in message.followers:
            self._gap.adopt(follower, message.position)
        self._close_gap_soon()

    def _close_gap_soon(self) -> None:
        if self._gap and not self._gap_asked:
            self._gap_asked = True
            self.address.tell(_CloseGap())

    @handles(_CloseGap)
    def on_close_gap(self, _: _CloseGap) -> None:
        """Take one step, then let other actors run."""
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
        """Answer now, or after the next batch or tick."""
        if message.end_offset <= self._store.dispatcher.dispatched_offset:
            message.reply_to.tell(message.then)
        elif self._gathered and self._refused is None:
            self.address.tell(message)  # the end of this batch comes first
        else:  # `Appended` is still to come, the disk fails, or no record ends there
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
        """Write the newest index entries for a query."""
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
        """Drop an invalid index file and the newer ones; CatchUp rebuilds them."""
        index = self._store.index
        if index is None:
            return
        if not self._gap.owns(index):
            self._catch_up.tell(message)
            return
        if not (paths := index.drop_from(message.path)):
            return  # deleted meanwhile
        log.warning(
            "index rebuild started", path=message.path, reason=message.reason, files=len(paths)
        )
        self._gap.give_away(index)
        self._catch_up.tell(FollowerBehind(paths))

    @handles(RebuildTable)
    def on_rebuild_table(self, message: RebuildTable) -> None:
        """Mark the transaction table as invalid, or pass the message on to its owner."""
        if self._gap.owns(self._store.transaction_table):
            self._wrong_table = message
        else:
            self._catch_up.tell(message)

    def _part_with_wrong_table(self) -> None:
        """Give the invalid transaction table to CatchUp.

        Called at a sync request, when no sync is running that would vouch for the old table.
        """
        message, self._wrong_table = self._wrong_table, None
        if message is not None:
            self._gap.give_away(self._store.transaction_table)
            self._catch_up.tell(message)

    def _disk_refused(self, error: StoreError | OSError) -> None:
        """Forbid writes until the disk accepts the units that wait in memory."""
        if self._refused is None:
            self._refused = str(error)
            log.error("consume queues or index not written", reason=self._refused)
            self._put_message.tell(WritesForbidden(self._refused))

    @handles(WriteOutQueues)
    def on_write_out(self, message: WriteOutQueues) -> None:
        """Reply with the files to sync and the store time that they then cover."""
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
        if index is not None and self._gap.owns(index):  # otherwise CatchUp syncs it
            full_index = index.unsynced()
        if self._gap.owns(self._store.sink_table):
            sinks = self._store.sink_table.unsynced(at_once=message.least_pages == 0)
        message.reply_to.tell(QueuesWritten(unsynced, full_index, table, sinks))

    @handles(QueuesSynced)
    def on_synced(self, message: QueuesSynced) -> None:
        """Mark the files as synced."""
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
        """Take data derived from deleted records out of use."""
        self.address.tell(_TrimSome(Trimming(self._store, message.offset), message.reply_to))

    @handles(_TrimSome)
    def on_trim_some(self, message: _TrimSome) -> None:
        """Trim some queues, then let other actors run."""
        try:
            is_complete = message.trimming.step()
        except StoreError as error:
            log.error("queues not trimmed", reason=str(error))
            message.on_undelivered(str(error))
            return
        if is_complete:
            message.reply_to.tell(Trimmed(message.trimming.paths))
        else:
            self.address.tell(message)

    @handles(RemoveQueues)
    def on_remove_queues(self, message: RemoveQueues) -> None:
        """Take whole queues out of use."""
        removed, refused, only = RemovedQueues(), None, message.only
        known = None if message.known is None else message.known.value
        if only is not None and known is not None and only in known:
            # the topic exists again
            message.reply_to.tell(QueuesRemoved(removed, message.request))
            return
        try:
            remove_queues(
                self._store,
                known,
                removed,
                only=only,
                before=message.before,
                queue_ids=message.queue_ids,
            )
        except StoreError as error:
            refused = str(error)
        if removed.queues:
            if message.staying is not None:
                begin_again(self._store.consume_queues, removed, message.staying.value)
            emptied = QueuesEmptied([each[:2] for each in removed.queues])
            self._pull_hold.tell(emptied)
            self._receipts.tell(emptied)
        message.reply_to.tell(QueuesRemoved(removed, message.request, refused))

    @handles(RepairUnits)
    def on_repair_units(self, message: RepairUnits) -> None:
        repair_units(self._store.consume_queues, message)


def begin_again(queues: ConsumeQueues, removed: RemovedQueues, topics: Container[str]) -> None:
    """Continue emptied queues of remaining topics at their ends.

    4.9.7 restarts at 0. Groups, consumers that broadcast, and slaves then skip the messages whose
    queue offsets they know already.
    """
    for topic, queue_id, end in removed.queues:
        if topic in topics or topic in KEPT_TOPICS:
            queues.get_or_create(topic, queue_id).begin_at(end)


def repair_units(queues: ConsumeQueues, message: RepairUnits) -> None:
    """Carry out a RepairUnits as the owner of the queues."""
    try:
        for queue, repair in message.repairs:
            if _is_there(queues, queue) and repair.queue_offset < queue.max_offset:
                queue.repair(
                    repair.queue_offset,
                    repair.physical_offset,
                    repair.record_bytes,
                    repair.tags_code,
                )
    except StoreError as error:
        message.scrubber.tell(RepairsRefused(str(error)))
    else:
        for queue, start in message.verified:
            if _is_there(queues, queue):
                queue.verified_from = min(queue.verified_from, start)
    message.tell_answers()


def _is_there(queues: ConsumeQueues, queue: ConsumeQueue) -> bool:
    return queues.get(queue.topic, queue.queue_id) is queue
