"""PutMessage of a slave: rejects sends and appends the master's bytes.

Owns: the end of the commit log (`ReplicaLog`).
Receives: AppendReplica from HaSlave, and all messages of PutMessage.
Sends: Replicated to HaSlave; dispatch entries to Reput; requests for files to AllocateFile;
UnknownTopics to SlaveSync; refusals to the senders of internal appends.

Bytes wait for the next file, and while queue units cannot be written. After a disk error HaSlave
requests the bytes again.

Records are reported to the master as soon as they are in the log. Reput gets a few records a little
later, with those of further transfers. To dispatch them costs more than to write them. 4.9.7
dispatches every millisecond.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from actors.dispatching.messages import WritesForbidden
from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.messages import Sends
from actors.replication.messages import AppendReplica, Replicated, UnknownTopics
from actors.retention.clean_files import DISK_USE
from actors.retention.messages import DropFiles, QueuesGone
from actors.sending.admission import Admission
from actors.sending.internal_append import InternalAppends
from actors.sending.messages import BeginLogAt, FileFailed, FilePrepared, InternalAppend
from actors.sending.put_message import CREATE_FAILED, LogTail
from actors.sending.send_rules import RefusedError
from actors.statistics.counts import PutStats
from actors.tables.messages import TopicReady
from protocol.bodies_tables import TopicConfig
from protocol.codes import ResponseCode
from storage.errors import StoreError
from storage.log.commit_log import CommitLog
from storage.queues.dispatch_entry import Dispatched
from storage.replica.replica_log import ReplicaLog
from storage.retention.trimming import KEPT_TOPICS

log = get_logger(__name__)

SHARE_BYTES = 128 << 10
"""Bytes written and published per turn: some 5 ms with records of 250 bytes."""

DISPATCH_MS = 2
"""Delay of dispatch for at most FEW_RECORDS records."""
FEW_RECORDS = 16


@dataclass(slots=True)
class _GoOn:
    """Write the next share."""


@dataclass(slots=True)
class _Dispatch:
    """Send the gathered entries to Reput."""


class PutReplica(Actor):
    """Actor on the loop that appends for the master alone."""

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
        """Topics already looked up in `_table`."""

    def on_start(self) -> None:
        self._want_file()

    # --- rejected messages

    @handles(Sends)
    def on_sends(self, message: Sends) -> None:
        """Reject sends: producers must use the master."""
        self._admission.refuse(message, self._end.not_available())

    @handles(InternalAppend)
    def on_internal_append(self, message: InternalAppend) -> None:
        """Keep it until the end of the batch, as PutMessage does."""
        self._own.keep(message, self._topics.value)

    @handles(TopicReady)
    def on_topic_ready(self, message: TopicReady) -> None:
        """Move messages that waited for the topic to the end of the batch."""
        self._own.topic_ready(message, self._topics.value)

    # --- the master's bytes

    @handles(AppendReplica)
    def on_append_replica(self, message: AppendReplica) -> None:
        """Keep the bytes until the end of the batch."""
        self._incoming.append(message)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Write the gathered bytes, up to a share or the end of the file."""
        if self._end.waits_for_file:
            return
        if self._own.pending:
            self._own.refuse(self._end.not_available())
        if not (self._incoming or self._replica.has_more) or self._takes_no_bytes:
            return
        reply_to = self._incoming[0].reply_to if self._incoming else None
        done, failure = 0, None
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
        if (done or failure) and reply_to is not None:
            reply_to.tell(Replicated(done, failure))
        if (self._incoming or self._replica.has_more) and not self._end.waits_for_file:
            self.address.tell(_GoOn())

    @handles(_GoOn)
    def on_go_on(self, _: _GoOn) -> None:
        """Do nothing: the end of this batch writes the next share."""

    @property
    def _takes_no_bytes(self) -> bool:
        """Whether queue units cannot be written, or a flush has failed.

        A full disk is no reason: the master has stored the message already.
        """
        return self._end.is_forbidden_but_by(DISK_USE)

    def _write(self, message: AppendReplica) -> bool:
        """Write a message's bytes; return False if a part waits for a file."""
        replica = self._replica
        if replica.is_empty and message.offset:
            replica.check_begin(message.offset)
            self._begin_at(message.offset)
            return False
        if message.offset != replica.received_offset:
            raise StoreError(f"expected offset {replica.received_offset}, got {message.offset}")
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
        """Make complete records readable and gather their dispatch entries."""
        before = self._log.end_offset
        try:
            self._undispatched += self._replica.publish()
        finally:
            if self._replica.damaged_at != self._damaged_at:
                self._damaged_at = self._replica.damaged_at
                log.warning("invalid record received", offset=self._damaged_at)
        if self._log.end_offset == before:
            return
        if len(self._undispatched) > FEW_RECORDS:
            self._tell_reput()
        elif not self._dispatch_is_due:
            self._dispatch_is_due = True
            self.after(DISPATCH_MS, _Dispatch())

    @handles(_Dispatch)
    def on_dispatch(self, _: _Dispatch) -> None:
        """Send the gathered entries, unless that was done meanwhile."""
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
        """Look up each topic once per version of the table, and report unknown ones."""
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
        """Request the next file, unless it is unknown where the log begins."""
        if not self._replica.is_empty or (self._end.waits_for_file and self._begins_at < 0):
            self._end.want_file()

    @handles(FilePrepared)
    def on_file_prepared(self, message: FilePrepared) -> None:
        """Use the next file, or the first file of an empty log."""
        if message.offset == self._begins_at and self._replica.is_empty:
            log.info("commit log started at the master's last file", offset=message.offset)
            self._begins_at = -1
            self._end.waits_for_file = False
            self._replica.begin_at(message.file)
            return
        if self._end.adopt(message):
            self.on_batch_end(BatchEnd())

    @handles(FileFailed)
    def on_file_failed(self, message: FileFailed) -> None:
        """Refuse the waiting bytes; HaSlave requests them again later."""
        if self._end.give_up_file():
            self._own.refuse(RefusedError(ResponseCode.SYSTEM_ERROR, CREATE_FAILED))
        self._begins_at = -1
        self._give_up_incoming(message.reason)

    @handles(DropFiles)
    def on_drop_files(self, message: DropFiles) -> None:
        """Remove deleted files; the last file stays."""
        self._end.drop_files(message)

    @handles(QueuesGone)
    def on_queues_gone(self, _: QueuesGone) -> None:
        """Do nothing: the master assigns queue offsets."""

    @handles(WritesForbidden)
    def on_writes_forbidden(self, message: WritesForbidden) -> None:
        """Stop writing until writes are permitted again."""
        self._end.forbid(message)

    def _give_up_incoming(self, reason: str) -> None:
        incoming = list(self._incoming)
        self._incoming.clear()
        for message in incoming:
            message.reply_to.tell(Replicated(1, reason))

    # --- stop

    def can_stop(self) -> bool:
        """Return whether all whole records are published, as the rest is removed."""
        return not self._replica.has_more or self._end.waits_for_file or self._takes_no_bytes

    def on_stop(self) -> None:
        self.on_batch_end(BatchEnd())
        self._own.refuse_all(self._end.not_available())
        self._give_up_incoming("the slave is stopping")
        self._tell_reput()
        try:
            self._replica.drop_partial()
        except StoreError as error:
            log.error("partial record not removed", reason=str(error))

    def on_failure(self, *_: object) -> None:
        """Refuse every accepted message that is unanswered."""
        self._own.refuse_all(RefusedError(ResponseCode.SYSTEM_ERROR, "put message restarted"))
        self._give_up_incoming("put message restarted")
