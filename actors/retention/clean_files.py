"""Deletes what is old or what the full disk has no room for, and watches how full it is.

Owns: the files that have been taken out of use and are not deleted yet.
Told by: its own ticks, connections (`Request`: 306, 316, 329, 30005), topics (`RemoveTopic`,
`TablesComplete`), PutMessage (`FilesDropped`), Reput (`Trimmed`, `QueuesRemoved`,
`QueuesBegunAnew`), SlaveSync (`RemoveTopic`).
Tells: PutMessage (`DropFiles`, `QueuesGone`, `WritesForbidden`), Reput (`TrimBefore`,
`RemoveQueues`), FlushRealTime (`SyncSoon`), Connections (`CopyOut`), SlaveSync
(`QueuesBegunAnew`), ConsumerOffsets (`ForgetTopic`, of queues whose topic is in no table).

What readers have leased, or no archive has yet, stays (keeping.py).

The owner of a file takes it out of use, on the loop; the deleting, which may take the disk a while,
is done here. First a file of the log goes, from memory and from the disk, then what is derived of
it: a crash in between leaves queues that know more than the log has, which a start corrects.
Always the oldest file first, each gone for good before the next one: a power cut leaves no hole.

Source: store/DefaultMessageStore.java (CleanCommitLogService, CleanConsumeQueueService,
cleanExpiredConsumerQueue, cleanUnusedTopic).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.dispatching.messages import (
    QueuesBegunAnew,
    QueuesRemoved,
    RemoveQueues,
    TrimBefore,
    Trimmed,
    WritesForbidden,
)
from actors.dispatching.reput import DispatchProgress
from actors.engine.actor import Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.engine.short_collections import end_unreferenced
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.messages import CopyOut
from actors.network.request import Request, Responder, serves
from actors.retention.retention_holds import KeepingReport, RetentionHolds
from actors.tables.messages import ForgetTopic
from actors.tables.topics import RemoveTopic, TablesComplete
from protocol.bodies import TopicConfig
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from storage.errors import StoreError, store_error
from storage.files.mapped_file import MappedFile
from storage.message_store import MessageStore
from storage.queues.unsynced import sync_directories
from storage.replica.replica_mark import unmark
from storage.retention.cleaning import Cleaning, Expired, disk_use
from storage.retention.trimming import RemovedQueues, removed_dir, unused_files

log = get_logger(__name__)

DISK_USE = "disk use"
"""Who forbids writes when the disk fills up."""

FIRST_ROUND_MS = 60_000
DISK_CHECK_MS = 10_000
FIRST_DISK_CHECK_MS = 1_000


@dataclass(slots=True)
class DropFiles(Message):
    """Take whole files of the log below `offset` out of it."""

    offset: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """PutMessage died with it: the files stay for another round."""
        self.reply_to.tell(FilesDropped([]))


@dataclass(slots=True)
class FilesDropped:
    """Nobody finds these in the log any more; who has a view of one keeps it."""

    files: Sequence[MappedFile]


@dataclass(slots=True)
class QueuesGone:
    """These queues are gone from the disk, and were at this offset: topic, queue id, offset."""

    queues: Sequence[tuple[str, int, int]]


@dataclass(slots=True)
class _CheckDisk:
    """See how full the disk is."""


@dataclass(slots=True)
class _Round:
    """See what may go."""


@dataclass(slots=True)
class _Next:
    """Delete the next file."""


@dataclass(slots=True)
class SyncSoon:
    """Told to FlushRealTime: do not wait for the long interval."""


class CleanFiles(Responder):
    """Runs on a thread, for deleting 1 GiB may take the disk a while."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        following: DispatchProgress,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        offsets: SnapshotRef[Mapping[str, Mapping[int, int]]],
        addresses: Mapping[str, ActorAddress],
        kept: SnapshotRef[KeepingReport],
    ) -> None:
        super().__init__()
        self._kept = kept
        self._store, self._following = store, following
        self._topics, self._offsets, self._to = topics, offsets, addresses
        self._is_busy = False
        """A round is under way: an answer or a pause is waited for."""
        self._is_full: bool | None = None
        self._could_not_delete = self._found_nothing = self._has_deleted = False
        self._expired: deque[Expired] = deque()
        self._doomed: deque[str] = deque()
        self._trimmed_before = 0
        self._asked: deque[Request | None] = deque()

    def on_start(self) -> None:
        store = self._store
        self._cleaning = Cleaning(store.config, self.system.disk, self.system.clock)
        self._keeping = RetentionHolds(store, self.system.disk, self.system.clock, self._kept)
        if self.incarnation > 1:  # the one before may have left files behind, oldest first
            self._doomed.extend(unused_files(store))
        self._doom_removed()
        self.after(FIRST_DISK_CHECK_MS, _CheckDisk())
        self.after(FIRST_ROUND_MS, _Round())

    # --- how full the disk is

    @handles(_CheckDisk)
    def on_check_disk(self, _: _CheckDisk) -> None:
        """Stops and resumes the taking of messages."""
        self._check_disk()
        self.after(DISK_CHECK_MS, _CheckDisk())

    def _check_disk(self) -> None:
        use = disk_use(self._store.config, self.system.disk)
        if use.is_full or use.is_full != self._is_full:  # again and again: it may have restarted
            self._is_full = use.is_full
            reason = f"the disk is full ({use}): make room" if use.is_full else None
            self._to["put_message"].tell(WritesForbidden(reason, source=DISK_USE))

    # --- one round

    @handles(_Round)
    def on_round(self, _: _Round) -> None:
        """Decides what goes; begins only when the round before has come to its end."""
        if not self._is_busy:
            try:
                self._decide()
            except OSError as error:
                log.warning("no log file deleted", reason=str(error))
            self._go_on()
        self.after(self._store.config.clean_interval_ms, _Round())

    def _decide(self) -> None:
        if self._has_deleted:  # what a map keeps on the disk would have other files go
            end_unreferenced()
            self._has_deleted = False
        commit_log = self._store.commit_log
        # What a crash would have to read again is still needed, however full the disk is.
        needed_from = min(
            commit_log.flushed_offset,
            self._following.dispatched_offset,
            self._store.checkpoint.durable_offset,
        )
        self._keeping.leased()  # operators see them, and the dead ones go
        decision = self._cleaning.decide(
            commit_log.queue.files, needed_from, held=self._keeping.holds
        )
        self._keeping.tell(decision)
        self._expired.extend(decision.expired)
        use = disk_use(self._store.config, self.system.disk)
        nothing = use.wants_room and not self._expired
        if nothing and not self._found_nothing:
            log.warning("the disk fills up, and no log file may go yet", used=str(use))
        self._found_nothing = nothing

    @handles(_Next)
    def on_next(self, _: _Next) -> None:
        """The pause after a file is over."""
        self._go_on()

    def _go_on(self) -> None:
        """Deletes what is out of use; then one file of the log; then what is derived of those."""
        self._is_busy = True
        config = self._store.config
        if self._doomed:
            if not self._delete_lot():
                self._expired.clear()
                self._is_busy = False  # the next round tries again, before anything else goes
            elif self._doomed:
                self.after(max(1, config.delete_queue_files_interval_ms), _Next())
            else:
                self.after(max(1, config.delete_log_files_interval_ms), _Next())
        elif self._expired and self._is_leased_since(self._expired[0]):
            self._expired.clear()
            self._is_busy = False  # the next round decides anew
        elif self._expired:
            offset = self._expired[0].file.end_offset
            self._to["put_message"].tell(DropFiles(offset, self.address))
        elif self._store.commit_log.min_offset() > self._trimmed_before:
            self._trimmed_before = self._store.commit_log.min_offset()
            self._to["reput"].tell(TrimBefore(self._trimmed_before, self.address))
        else:
            self._is_busy = False

    def _is_leased_since(self, expired: Expired) -> bool:
        """Whether a reader has come since the round decided that this file goes."""
        losers = {hold.who for hold in expired.losers}
        return any(
            hold.offset < expired.file.end_offset and hold.who not in losers
            for hold in self._keeping.leased()
        )

    @handles(FilesDropped)
    def on_files_dropped(self, message: FilesDropped) -> None:
        """Nobody finds them any more: they go."""
        expired = self._expired.popleft() if self._expired else None
        reason = None if expired is None else expired.reason
        if not message.files:
            self._expired.clear()
        elif expired is not None:
            self._keeping.tell_losses(expired)
        for file in message.files:
            self._doomed.append(file.path)
            if file.is_mapped:
                self._to["connections"].tell(CopyOut(file.view))
            log.info("log file deleted", file=file.path, reason=reason)
        self._go_on()
        self._check_disk()

    @handles(Trimmed)
    def on_trimmed(self, message: Trimmed) -> None:
        """Deletes the files that belong to nothing any more."""
        self._doomed.extend(message.paths)
        if message.paths:
            log.info("queue and index files deleted", count=len(message.paths))
        if message.is_complete or self._doomed:
            self._go_on()
        else:
            self._is_busy = False
        if not message.is_complete:
            self._trimmed_before = 0

    def _delete_lot(self) -> bool:
        """Deletes what is out of use in the first directory; False when the disk refuses."""
        disk, doomed = self.system.disk, self._doomed
        directory = doomed[0].rpartition("/")[0]
        while doomed and doomed[0].rpartition("/")[0] == directory:
            try:
                if disk.exists(doomed[0]):
                    disk.unlink(doomed[0])
                    self._has_deleted = True
                    disk.sync_directory(directory)
            except OSError as error:
                if not self._could_not_delete:
                    log.error("file not deleted", file=doomed[0], reason=str(error))
                self._could_not_delete = True
                return False
            doomed.popleft()
        self._could_not_delete = False
        return True

    # --- on request

    @serves(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def on_delete_expired(self, request: Request) -> RemotingCommand:
        """Old files go in the next rounds, whatever the hour."""
        self.begin_change()
        self._cleaning.request()
        log.info("old log files go on request", peer=request.peer.remote)
        return request.command.answer()

    @serves(RequestCode.LEASE_LOG)
    def on_lease(self, request: Request) -> RemotingCommand:
        """A reader needs old files for a while."""
        owner = "" if request.grant is None else request.grant.owner
        self.begin_change()
        return self._keeping.answer(request.command, owner)

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def on_clean_expired_queues(self, request: Request) -> None:
        """Removes the queues all of whose messages are gone from the log."""
        self._remove_queues(request, None)

    @serves(RequestCode.CLEAN_UNUSED_TOPIC)
    def on_clean_unused_topics(self, request: Request) -> None:
        """Removes the queues of topics that are in no table."""
        self._remove_queues(request, frozenset(self._topics.value))

    @handles(RemoveTopic)
    def on_remove_topic(self, message: RemoveTopic) -> None:
        """Removes the queues of a topic that was deleted, unless it has come back meanwhile."""
        known = self._topics if message.queue_ids is None else None
        self._asked.append(message.request)
        self._to["reput"].tell(
            RemoveQueues(
                None, self.address, message.topic, known, message.before, message.queue_ids
            )
        )

    def _remove_queues(self, request: Request, topics: frozenset[str] | None) -> None:
        self.begin_change()
        self._asked.append(request)
        offsets = self._offsets if topics is None else None
        self._to["reput"].tell(RemoveQueues(topics, self.address, offsets=offsets))

    @handles(QueuesRemoved)
    def on_queues_removed(self, message: QueuesRemoved) -> None:
        """They are out of use: only when that is on the disk may their numbers begin anew."""
        request = self._asked.popleft()
        refused = self._put_away(message.removed, message.refused)
        if request is not None and refused is None:
            request.answer()
        elif request is not None and refused is not None:
            request.refuse(refused)

    @handles(QueuesBegunAnew)
    def on_queues_begun_anew(self, message: QueuesBegunAnew) -> None:
        """A slave's master has deleted them and made them again."""
        self._put_away(message.removed, None)
        self._to["slave_sync"].tell(message)

    def _put_away(self, removed: RemovedQueues, refused: str | None) -> str | None:
        """Deletes what is out of use; says why that is not for good, if it is not."""
        refused = refused or self._sync(removed.directories)
        if refused is not None:
            log.error("queues not removed for good", reason=refused)
        elif removed.queues:
            self._to["put_message"].tell(QueuesGone(removed.queues))
            self._to["flush_real_time"].tell(SyncSoon())
        for topic, queue_id, _ in removed.queues:
            log.info("queue removed", topic=topic, queue_id=queue_id)
        for topic in {each[0] for each in removed.queues} - self._topics.value.keys():
            self._to["consumer_offsets"].tell(ForgetTopic(topic))
        self._doom_removed()
        if not self._is_busy:
            self._go_on()
        return refused

    @handles(TablesComplete)
    def on_tables_complete(self, _: TablesComplete) -> None:
        """If this store was a slave's, its being a master's is whole now."""
        try:
            unmark(self._store.config, self.system.disk)
        except OSError as error:
            log.error("mark of a slave's store not deleted", reason=str(error))

    def _sync(self, directories: Iterable[str]) -> str | None:
        """Brings names to the disk; says what the disk did not take."""
        try:
            sync_directories(self.system.disk, directories)
        except StoreError as error:
            return str(error)
        return None

    def _doom_removed(self) -> None:
        """What lies in the folder of removed queues is to go."""
        directory = removed_dir(self._store.config)
        try:
            names = self.system.disk.listdir(directory)
        except OSError as error:
            raise store_error("cannot look for removed queues", error) from error
        self._doomed.extend(f"{directory}/{name}" for name in names)

    def on_stop(self) -> None:
        """What is out of use is not to come back at the next start."""
        while self._doomed and self._delete_lot():
            pass
        self._refuse_all("clean files stopped")

    def on_failure(self, *_: object) -> None:
        """Who waits for an answer gets one."""
        self._refuse_all("clean files restarted")

    def _refuse_all(self, remark: str) -> None:
        while self._asked:
            request = self._asked.popleft()
            if request is not None:
                request.refuse(remark)
