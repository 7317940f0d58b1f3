"""PutMessage of a slave: refuses what producers send, and appends what the master has.

Owns: the log's end as the master's bytes arrive (`ReplicaLog`).
Told by: HaSlave (`AppendReplica`), and by all that tell PutMessage.
Tells: HaSlave (`Replicated`), Reput (what to dispatch), AllocateFile (make the next file, or the
first one at another place), SlaveSync (`UnknownTopics`), whoever wants something appended (not
here).

Bytes wait for the next file, and while the disk takes no queue units; what the disk refuses is
asked of the master again.

Records count as come, and are reported, as soon as they are in the log. When few have come Reput
hears of them a little later, of several transfers at once: to dispatch them costs more than to take
them. 4.9.7 dispatches every millisecond.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from structlog import get_logger

from actors.dispatching.reput import WritesForbidden
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.sends import Sends
from actors.replication.messages import UnknownTopics
from actors.retention.clean_files import DISK_USE
from actors.retention.messages import DropFiles, QueuesGone
from actors.sending.admission import Admission
from actors.sending.allocate_file import BeginLogAt, FileFailed, FilePrepared
from actors.sending.internal_append import InternalAppend, InternalAppends
from actors.sending.log_tail import CREATE_FAILED, LogTail
from actors.sending.send_rules import RefusedError
from actors.statistics.put_stats import PutStats
from actors.tables.messages import TopicReady
from protocol.bodies import TopicConfig
from protocol.codes import ResponseCode
from storage.errors import StoreError
from storage.log.commit_log import CommitLog
from storage.queues.dispatch_entry import Dispatched
from storage.replica.replica_log import ReplicaLog
from storage.retention.trimming import KEPT_TOPICS

log = get_logger(__name__)

SHARE_BYTES = 128 << 10
"""Written and published at a time: some 5 ms of the loop with records of 250 bytes."""

DISPATCH_MS = 2
"""So long Reput does not hear of records, if they are few."""
FEW_RECORDS = 16


@dataclass(slots=True)
class AppendReplica:
    """These bytes of the master's log lie at `offset`, behind all that were told before."""

    offset: int
    data: bytes
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """The log is gone with it: whoever has the next one asks the master again."""
        self.reply_to.tell(Replicated(1, remark))


@dataclass(slots=True)
class Replicated:
    """So many AppendReplica are done with; if one failed, why."""

    count: int
    failure: str | None = None


@dataclass(slots=True)
class _GoOn:
    """There is more to write."""


@dataclass(slots=True)
class _Dispatch:
    """Tell Reput what it has not heard of."""


class PutReplica(Actor):
    """Appends for the master alone. Lives on the loop."""

    def __init__(
        self,
        replica: ReplicaLog,
        commit_log: CommitLog,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        admission: Admission,
        internal_appends: InternalAppends,
        log_end: LogTail,
        stats: PutStats,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__()
        self._replica = replica
        self._log = commit_log
        self._topics = topics
        self._admission, self._own = admission, internal_appends
        self._end, self._stats = log_end, stats
        self._to = addresses
        self._incoming: deque[AppendReplica] = deque()
        self._begins_at = -1
        self._damaged_at = -1
        self._undispatched: list[Dispatched] = []
        self._dispatch_is_due = False
        self._reput_end = self._log.end_offset
        self._table: object = None
        self._looked_up: set[bytes] = set()
        """Topics that were looked up in this table."""

    def on_start(self) -> None:
        self._want_file()

    # --- what a slave refuses

    @handles(Sends)
    def on_sends(self, message: Sends) -> None:
        """Messages are put to the master."""
        self._admission.refuse(message, self._end.not_available())

    @handles(InternalAppend)
    def on_internal_append(self, message: InternalAppend) -> None:
        """Keeps it for the end of the batch: that is where PutMessage answers, too."""
        self._own.keep(message, self._topics.value)

    @handles(TopicReady)
    def on_topic_ready(self, message: TopicReady) -> None:
        """What waited for this topic waits for the end of the batch now."""
        self._own.topic_ready(message, self._topics.value)

    # --- what the master has

    @handles(AppendReplica)
    def on_append_replica(self, message: AppendReplica) -> None:
        """Keeps the bytes for the end of the batch."""
        self._incoming.append(message)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Writes what has gathered, as far as there is a place for it."""
        if self._end.waits_for_file:
            return
        if self._own.pending:
            self._own.refuse(self._end.not_available())
        if not self._incoming or self._takes_no_bytes:
            return
        reply_to, done, failure = self._incoming[0].reply_to, 0, None
        enough = self._replica.received_offset + SHARE_BYTES
        try:
            while self._incoming and self._write(self._incoming[0]):
                self._incoming.popleft()
                done += 1
                if self._replica.received_offset >= enough:
                    break
            self._publish()
        except StoreError as error:
            failure = str(error)
            done += len(self._incoming)
            self._incoming.clear()
        self._want_file()
        if done or failure:
            reply_to.tell(Replicated(done, failure))
        if self._incoming and not self._end.waits_for_file:
            self.address.tell(_GoOn())

    @handles(_GoOn)
    def on_go_on(self, _: _GoOn) -> None:
        """The end of this batch takes the next share."""

    @property
    def _takes_no_bytes(self) -> bool:
        """While queue units find no room, or a flush has failed. A disk that fills up is no
        reason: the master has stored the message already."""
        return self._end.is_forbidden_but_by(DISK_USE)

    def _write(self, message: AppendReplica) -> bool:
        """Whether all of it is in the log now; if not, it waits for a file."""
        replica = self._replica
        if replica.is_empty and message.offset:
            replica.check_begin(message.offset)
            self._begin_at(message.offset)
            return False
        if message.offset != replica.received_offset:
            raise StoreError(f"{message.offset} is not {replica.received_offset}, where we are")
        done = replica.write(message.data)
        if done < len(message.data):
            message.offset += done
            message.data = message.data[done:]
            self._end.waits_for_file = True
            return False
        return True

    def _begin_at(self, offset: int) -> None:
        self._begins_at = offset
        self._end.waits_for_file = True
        unused = self._log.queue.files
        self._to["allocate_file"].tell(BeginLogAt(offset, unused, self.address))

    def _publish(self) -> None:
        """Records that are whole now can be read and dispatched."""
        before = self._log.end_offset
        try:
            self._undispatched += self._replica.publish()
        finally:
            if self._replica.damaged_at != self._damaged_at:
                self._damaged_at = self._replica.damaged_at
                log.warning("the master's log holds no record there", offset=self._damaged_at)
        if self._log.end_offset == before:
            return
        if len(self._undispatched) > FEW_RECORDS:
            self._tell_reput()
        elif not self._dispatch_is_due:
            self._dispatch_is_due = True
            self.after(DISPATCH_MS, _Dispatch())

    @handles(_Dispatch)
    def on_dispatch(self, _: _Dispatch) -> None:
        """The time is over; perhaps Reput has been told meanwhile."""
        self._dispatch_is_due = False
        if self._reput_end != self._log.end_offset:
            self._tell_reput()

    def _tell_reput(self) -> None:
        entries, self._undispatched = self._undispatched, []
        self._reput_end = self._log.end_offset
        self._stats.put_count += len(entries)
        self._stats.put_bytes += sum([entry.record_bytes for entry in entries])
        self._end.dispatch(entries)
        self._look_up({entry.topic for entry in entries})

    def _look_up(self, topics: set[bytes]) -> None:
        """Each topic once in each version of the table: a deleted one is never in it."""
        table = self._topics.value
        if table is not self._table:
            self._table = table
            self._looked_up.clear()
        fresh = topics - self._looked_up
        if fresh:
            self._looked_up |= fresh
            names = sorted(topic.decode("utf-8", "replace") for topic in fresh)
            unknown = [each for each in names if each not in table and each not in KEPT_TOPICS]
            if unknown:
                self._to["slave_sync"].tell(UnknownTopics(unknown))

    # --- files

    def _want_file(self) -> None:
        """Nothing is made in advance for a log of which nobody knows where it begins."""
        if not self._replica.is_empty or (self._end.waits_for_file and self._begins_at < 0):
            self._end.want_file()

    @handles(FilePrepared)
    def on_file_prepared(self, message: FilePrepared) -> None:
        """The first file of an empty log, or the next one."""
        if message.offset == self._begins_at and self._replica.is_empty:
            log.info("the log begins where the master's last file does", offset=message.offset)
            self._begins_at = -1
            self._end.waits_for_file = False
            self._replica.begin_at(message.file)
            return
        if self._end.adopt(message):
            self.on_batch_end(BatchEnd())

    @handles(FileFailed)
    def on_file_failed(self, message: FileFailed) -> None:
        """The master is asked again, in a while."""
        if self._end.give_up_file():
            self._own.refuse(RefusedError(ResponseCode.SYSTEM_ERROR, CREATE_FAILED))
        self._begins_at = -1
        self._give_up_incoming(message.reason)

    @handles(DropFiles)
    def on_drop_files(self, message: DropFiles) -> None:
        """The log begins behind these from now on; its last file stays."""
        self._end.drop_files(message)

    @handles(QueuesGone)
    def on_queues_gone(self, _: QueuesGone) -> None:
        """Whoever gives numbers to messages has to know; here the master does."""

    @handles(WritesForbidden)
    def on_writes_forbidden(self, message: WritesForbidden) -> None:
        """The disk failed: nothing more is written until it is well again."""
        self._end.forbid(message)

    def _give_up_incoming(self, reason: str) -> None:
        incoming = list(self._incoming)
        self._incoming.clear()
        for message in incoming:
            message.reply_to.tell(Replicated(1, reason))

    # --- the end

    def on_stop(self) -> None:
        self.on_batch_end(BatchEnd())
        self._own.refuse_all(self._end.not_available())
        self._give_up_incoming("the slave is stopping")
        self._tell_reput()
        try:
            self._replica.drop_partial()
        except StoreError as error:
            log.error("a record that is not whole stays behind the log's end", reason=str(error))

    def on_failure(self, *_: object) -> None:
        """Nothing that was taken is left silent."""
        self._own.refuse_all(RefusedError(ResponseCode.SYSTEM_ERROR, "put message restarted"))
        self._give_up_incoming("put message restarted")
