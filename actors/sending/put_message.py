"""The one actor that appends: it *is* the append lock.

Owns: the end of the commit log, the next offset of every queue, the counters of puts.
Told by: connections (`Sends`, all sends of one read); Schedule, SendBack, PullMessage, Transactions
and ReplyMessage (`PutOwn`); AllocateFile (`FilePrepared`), the topic table (`TopicReady`),
GroupCommit, Reput and CleanFiles (`WritesForbidden`), CleanFiles (`DropFiles`, `QueuesGone`).
Tells: the connections (answers, at the end of the batch), GroupCommit under SYNC_FLUSH and of a
SYNC_MASTER, HaMaster (`LogGrew`), Reput (what to dispatch, so that nothing is parsed twice),
AllocateFile (make the next file), the topic table (make this topic; its sends are parked meanwhile,
in order).

A batch is whatever was waiting: checked one by one, written with one call, answered with one
message per connection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from structlog import get_logger

from actors.config import BrokerConfig
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.address import Address
from actors.engine.published import Published
from actors.following.clean_files import DropFiles, FilesDropped, QueuesGone
from actors.following.reput import Appended, WritesForbidden
from actors.network.hooks import Hooks, SendContext
from actors.network.sends import Sends
from actors.replication.replicas import Slaves
from actors.sending.allocate_file import FileFailed, FilePrepared, PrepareFile
from actors.sending.append_batch import AppendBatch, Pending
from actors.sending.group_commit import CommitUpTo
from actors.sending.own_put import COMMIT_RECORDS, OwnPuts, PutOwn
from actors.sending.put_answers import STOPPED, PutAnswers, Stored
from actors.sending.send_prepare import Preparer
from actors.sending.send_rules import RefusedError
from actors.sending.take_send import BUSY, SendTaker
from actors.statistics.put_stats import PutStats
from actors.tables.groups import GroupFinder
from actors.tables.topics import CreateSystemTopic, CreateTopicOnSend, TopicReady
from protocol.bodies import TopicConfig
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.send_wire import Send
from storage.cleaning import disk_use
from storage.errors import StoreError
from storage.message_store import MessageStore

log = get_logger(__name__)

COMMIT_BYTES = 1 << 20
"""Bodies gathered before a batch is written without waiting for its end: one write's worth."""

SLOW_PUT_MS = 500.0
TICK_MS = 100
DLQ_QUEUES = 1
CREATE_FAILED = "create mapped file failed, server is busy or broken."


Refusal = RefusedError | RemoteError


@dataclass(slots=True)
class _Tick:
    """Look for sends that were parked too long."""


class PutMessage(Actor):
    """Appends for everybody. Lives on the loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: Published[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        preparer: Preparer,
        answers: PutAnswers,
        hooks: Hooks,
        stats: PutStats,
        slaves: Slaves,
        random: Random,
        addresses: Mapping[str, Address],
    ) -> None:
        super().__init__()
        self._store = store
        self._topics = topics
        self._log = store.commit_log
        self._config = config
        self._answers, self._hooks = answers, hooks
        self.stats, self._slaves = stats, slaves
        self._to = addresses
        self._reput = addresses["reput"]
        self._batch = AppendBatch(self._log)
        self._taker = SendTaker(
            config,
            store.config,
            topics=topics,
            groups=groups,
            preparer=preparer,
            random=random,
            make_topic=self._make_topic,
            group_bytes_max=self._log.group_bytes_max,
            stats=stats,
        )
        self._waits = store.config.is_sync_flush or config.is_sync_master
        self._own = OwnPuts(
            self._log,
            self._taker.system_topic,
            stats,
            is_sync=self._waits,
            addresses=addresses,
            put_message=lambda: self.address,
        )
        self._pending: list[Pending] = []
        self._pending_bytes = 0
        self._batch_started_ms = 0.0
        self._file_wanted = -1
        self._waiting_for_file = False
        self._forbidden: dict[str, WritesForbidden] = {}

    def on_start(self) -> None:
        self._taker.start_at(self._store.consume_queues.next_offsets())
        self._want_file()
        self.every(TICK_MS, _Tick())

    # --- taking sends

    @handles(Sends)
    def on_sends(self, message: Sends) -> None:
        """Checks every send; what passes waits for the end of the batch."""
        message.owed = len(message.sends)
        arrived_ms, now_ms = self.system.clock.monotonic_ms(), self.system.clock.now_ms()
        if not self._pending:
            self._batch_started_ms = arrived_ms
        self._taker.look_at_topics()
        if self._takes_nothing:
            refused = self._not_available()
            for send in message.sends:
                self._refuse_checked(message, send, refused, self._context(message, send), now_ms)
        elif self._hooks.see_sends:
            for send in message.sends:
                self._take(message, send, self._context(message, send), now_ms, arrived_ms)
        else:
            take, pending, body_bytes = self._taker.take, self._pending, 0
            for send in message.sends:  # as _take, unrolled: the call costs a tenth of its work
                try:
                    item = take(message, send, None, now_ms, arrived_ms)
                except (RefusedError, RemoteError) as error:
                    self._refuse(message, send, error, None)
                    continue
                if item is not None:
                    pending.append(item)
                    body_bytes += len(send[9])
            self._pending_bytes += body_bytes
        if message.frames or not message.owed:
            message.hand_over()
        if self._pending_bytes > COMMIT_BYTES and not self._waiting_for_file:
            self._commit()

    @property
    def _takes_nothing(self) -> bool:
        return bool(self._forbidden) or self._config.is_slave

    def _take(
        self,
        message: Sends,
        send: Send,
        context: SendContext | None,
        now_ms: int,
        arrived_ms: float,
    ) -> None:
        try:
            pending = self._taker.take(message, send, context, now_ms, arrived_ms)
        except (RefusedError, RemoteError) as error:
            self._refuse(message, send, error, context)
        else:
            if pending is not None:
                self._pending.append(pending)
                self._pending_bytes += len(send[9])

    def _context(self, message: Sends, send: Send) -> SendContext | None:
        if not self._hooks.see_sends:
            return None
        context = SendContext(
            producer_group=send[0].producer_group,
            topic=send[0].topic,
            body_bytes=len(send[9]),
            properties=send[8],
            born_timestamp_ms=send[6],
            client=message.peer.remote,
            queue_id=send[4],
        )
        self._hooks.before(context)
        return context

    def _make_topic(self, topic: str, message: Sends, send: Send) -> None:
        shape, tail = send[0], send[1]
        if topic != shape.topic:
            self._to["topics"].tell(CreateSystemTopic(topic, DLQ_QUEUES, self.address))
            return
        self._to["topics"].tell(
            CreateTopicOnSend(
                topic=shape.topic,
                default_topic=shape.default_topic,
                queue_nums=shape.default_topic_queue_nums,
                unit_mode=tail.unit_mode,
                producer=message.peer.remote,
                reply_to=self.address,
            )
        )

    @handles(TopicReady)
    def on_topic_ready(self, message: TopicReady) -> None:
        """The topic exists now, or may not: its parked sends go on, in order."""
        self._own.topic_ready(message, self._topics.value)
        arrived_ms, now_ms = self.system.clock.monotonic_ms(), self.system.clock.now_ms()
        for sends, send, context in self._taker.topic_ready(message.topic):
            if message.config is None:
                self._refuse(sends, send, self._taker.unknown_topic(message.topic), context)
            elif self._takes_nothing:
                self._refuse_checked(sends, send, self._not_available(), context, now_ms)
            else:
                self._take(sends, send, context, now_ms, arrived_ms)
            sends.hand_over()

    @handles(PutOwn)
    def on_put_own(self, message: PutOwn) -> None:
        """Keeps what another actor has stored for the end of the batch."""
        self._own.take(message, self._topics.value)
        if self._own.pending_count >= COMMIT_RECORDS and not self._waiting_for_file:
            self._commit_own()

    # --- the end of a batch

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Writes what has gathered."""
        if self._pending and not self._waiting_for_file:
            self._commit()
        if self._own.pending and not self._waiting_for_file:
            self._commit_own()

    def _commit_own(self) -> None:
        if self._takes_nothing:
            self._own.refuse_all(self._not_available())
            return
        self._waiting_for_file = self._own.append(self.system.clock.now_ms(), self._not_available)
        self._slaves.log_grew()
        self._want_file()

    def _commit(self) -> None:
        """One write for all pending sends, then their answers; what finds no room waits."""
        pending = self._pending
        try:
            stored, waits, entries = self._batch.append(pending, self.system.clock.now_ms())
        except (OSError, StoreError) as error:
            self._pending, self._pending_bytes = [], 0
            log.error("append failed", reason=str(error), sends=len(pending))
            self._refuse_all(pending, self._not_available())
            return
        self._pending, self._pending_bytes = pending[len(stored) :], 0
        if self._pending:
            self._waiting_for_file = True
        self._want_file()
        if entries:
            stats = self.stats
            stats.put_count += len(entries)
            stats.put_bytes += sum([item[5] for item in stored])
            end_offset = self._log.end_offset
            self._slaves.log_grew()  # first of all: a slave works meanwhile
            self._answer(stored, waits, end_offset)
            self._reput.tell(Appended(end_offset, entries))
        took_ms = self.system.clock.monotonic_ms() - self._batch_started_ms
        self.stats.took(took_ms, len(stored))
        if took_ms > SLOW_PUT_MS:
            log.warning("slow put", ms=round(took_ms), sends=len(stored))

    def _answer(self, stored: list[Stored], waits: list[bool], end_offset: int) -> None:
        """Those that wait for the disk or a slave travel to GroupCommit, but where WAIT=false."""
        if self._waits:
            group_commit = self._to["group_commit"]
            later = [item for item, wait in zip(stored, waits, strict=True) if wait]
            group_commit.tell(CommitUpTo(end_offset, later))
            if len(later) == len(stored):
                return
            stored = [item for item, wait in zip(stored, waits, strict=True) if not wait]
        self._answers.stored(stored, ResponseCode.SUCCESS)

    # --- files

    def _want_file(self) -> None:
        offset = self._log.next_file_offset_to_prepare()
        if offset is not None and offset != self._file_wanted:
            self._file_wanted = offset
            self._to["allocate_file"].tell(PrepareFile(offset, self.address))

    @handles(FilePrepared)
    def on_file_prepared(self, message: FilePrepared) -> None:
        """The log has room again, unless this file came to the PutMessage before this one."""
        if message.offset != self._log.queue.capacity_end:
            return
        self._log.adopt(message.file)
        self._waiting_for_file = False
        self.on_batch_end(BatchEnd())

    @handles(FileFailed)
    def on_file_failed(self, message: FileFailed) -> None:
        """Who waited for the file is refused; the next send asks for it again."""
        self._file_wanted = -1
        if self._waiting_for_file:
            self._waiting_for_file = False
            error = RefusedError(ResponseCode.SYSTEM_ERROR, CREATE_FAILED)
            self._own.refuse_all(error)
            self._refuse_all(self._pending, error)
            self._pending, self._pending_bytes = [], 0

    @handles(DropFiles)
    def on_drop_files(self, message: DropFiles) -> None:
        """The log begins behind these from now on; its last file stays."""
        message.reply_to.tell(FilesDropped(self._log.drop_before(message.offset)))

    @handles(QueuesGone)
    def on_queues_gone(self, message: QueuesGone) -> None:
        """The next message of such a queue has offset 0, unless one has come meanwhile."""
        self._taker.forget_queues(message.queues)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Refuses the sends that have waited for a file longer than a busy page cache may last."""
        if not self._waiting_for_file:
            return
        oldest_ms = self.system.clock.monotonic_ms() - self._config.os_page_cache_busy_timeout_ms
        late = [item for item in self._pending if item[10] <= oldest_ms]
        if late:
            self._refuse_all(late, RefusedError(ResponseCode.SYSTEM_ERROR, BUSY))
            self._pending = [item for item in self._pending if item[10] > oldest_ms]

    @handles(WritesForbidden)
    def on_writes_forbidden(self, message: WritesForbidden) -> None:
        """The disk failed: nothing more is taken until it is well again."""
        before = self._forbidden.get(message.source)
        if before is not None and before.final:
            return
        if message.reason is not None:
            self._forbidden[message.source] = message
            if before is None:
                log.error("no more messages are taken", reason=message.reason)
        elif self._forbidden.pop(message.source, None) is not None and not self._forbidden:
            log.info("messages are taken again")

    # --- refusals

    def _not_available(self) -> RefusedError:
        used = disk_use(self._store.config, self.system.disk)
        return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, STOPPED % used)

    def _refuse_checked(
        self, sends: Sends, send: Send, error: Refusal, context: SendContext | None, now_ms: int
    ) -> None:
        """Refuses a send that the store does not take, unless it should not have been sent."""
        try:
            self._taker.check(sends, send, now_ms)
        except RefusedError as earlier:
            error = earlier
        self._refuse(sends, send, error, context)

    def _refuse(
        self, sends: Sends, send: Send, error: Refusal, context: SendContext | None
    ) -> None:
        self.stats.failed_count += 1
        self._answers.refused(sends, send, error, context)

    def _refuse_all(self, pending: Sequence[Pending], error: Refusal) -> None:
        touched: dict[Sends, None] = {}
        for item in pending:
            self._refuse(item[0], item[1], error, item[9])
            touched[item[0]] = None
        for sends in touched:
            sends.hand_over()

    def on_failure(self, *_: object) -> None:
        """Nothing that was taken is left silent."""
        self._refuse_waiting(RefusedError(ResponseCode.SYSTEM_ERROR, "put message restarted"))

    def on_stop(self) -> None:
        self.on_batch_end(BatchEnd())
        self._refuse_waiting(self._not_available())

    def _refuse_waiting(self, error: RefusedError) -> None:
        pending, self._pending = self._pending, []
        # What was in hand when this actor failed has been refused as a whole.
        self._refuse_all([item for item in pending if item[0].owed], error)
        for sends, send, context in self._taker.give_up_parked():
            self._refuse(sends, send, error, context)
            sends.hand_over()
        self._own.give_up(error)
