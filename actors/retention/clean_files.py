"""Deletion of old files, or of files for which the disk has no room.

Owns: the files that are out of use and not deleted yet.
Receives: Request (connections); RemoveTopic (TopicTable, SlaveSync); TablesComplete (TopicTable);
FilesDropped (PutMessage); Trimmed, QueuesRemoved, QueuesBegunAnew (Reput).
Sends: DropFiles, QueuesGone, WritesForbidden (PutMessage); TrimBefore, RemoveQueues (Reput);
SyncSoon (FlushRealTime); CopyOut (Connections); QueuesBegunAnew (SlaveSync); ForgetTopic
(ConsumerOffsets), for queues of a topic that is in no table.

Files that readers have leased, or that no archive has yet, are retained (retention_holds.py).

The owner of a file takes it out of use, on the loop. The deletion may take long and happens here. A
log file is deleted first, from memory and from the disk, then the files derived from it. After a
crash in between, queues have more units than the log has records, which the start corrects. The
oldest file is always deleted first, and durably, so that a power failure leaves no hole.

Source: store/DefaultMessageStore.java (CleanCommitLogService, CleanConsumeQueueService,
cleanExpiredConsumerQueue, cleanUnusedTopic).
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

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
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.engine.short_collections import end_unreferenced
from actors.network.messages import CopyOut, Request
from actors.network.request import Responder, serves
from actors.retention.messages import DropFiles, FilesDropped, QueuesGone, SyncSoon
from actors.retention.retention_holds import KeepingReport, RetentionHolds
from actors.tables.messages import ForgetTopic, RemoveTopic, TablesComplete
from protocol.bodies_tables import TopicConfig
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from storage.errors import StoreError, store_error
from storage.message_store import MessageStore
from storage.queues.unsynced import sync_directories
from storage.replica.replica_mark import unmark
from storage.retention.cleaning import Cleaning, Expired, disk_use
from storage.retention.trimming import RemovedQueues, removed_dir, unused_files

log = get_logger(__name__)

DISK_USE = "disk use"
"""Source that forbids writes when the disk fills up."""

FIRST_ROUND_MS = 60_000
DISK_CHECK_MS = 10_000
FIRST_DISK_CHECK_MS = 1_000


@dataclass(slots=True)
class _CheckDisk:
    """Timer tick: check the disk space."""


@dataclass(slots=True)
class _Round:
    """Timer tick: start a round of deletions."""


@dataclass(slots=True)
class _Next:
    """The pause after a file is over: delete the next one."""


class CleanFiles(Responder):
    """Deletion of files. Runs on a thread, because deleting 1 GiB may take long."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        following: DispatchProgress,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        addresses: Mapping[str, ActorAddress],
        kept: SnapshotRef[KeepingReport],
    ) -> None:
        super().__init__()
        self._kept = kept
        self._store, self._following = store, following
        self._topics, self._to = topics, addresses
        self._is_busy = False
        """Whether a round waits for an answer or a pause."""
        self._is_full: bool | None = None
        self._could_not_delete = self._found_nothing = self._has_deleted = False
        self._expired: deque[Expired] = deque()
        self._doomed: deque[str] = deque()
        self._trimmed_before = 0

    def on_start(self) -> None:
        store = self._store
        self._cleaning = Cleaning(store.config, self.system.disk, self.system.clock)
        self._keeping = RetentionHolds(store, self.system.disk, self.system.clock, self._kept)
        if self.incarnation > 1:  # the failed actor may have left files, oldest first
            self._doomed.extend(unused_files(store))
        self._doom_removed()
        self.after(FIRST_DISK_CHECK_MS, _CheckDisk())
        self.after(FIRST_ROUND_MS, _Round())

    # --- disk space

    @handles(_CheckDisk)
    def on_check_disk(self, _: _CheckDisk) -> None:
        """Forbid or allow writes, depending on the disk space."""
        self._check_disk()
        self.after(DISK_CHECK_MS, _CheckDisk())

    def _check_disk(self) -> None:
        use = disk_use(self._store.config, self.system.disk)
        if (
            use.is_full or use.is_full != self._is_full
        ):  # repeated, as PutMessage may have restarted
            self._is_full = use.is_full
            reason = f"the disk is full ({use}): make room" if use.is_full else None
            self._to["put_message"].tell(WritesForbidden(reason, source=DISK_USE))

    # --- rounds

    @handles(_Round)
    def on_round(self, _: _Round) -> None:
        """Choose files to delete, unless the last round is still busy."""
        if not self._is_busy:
            try:
                self._decide()
            except OSError as error:
                log.warning("log file deletion failed", reason=str(error))
            self._go_on()
        self.after(self._store.config.clean_interval_ms, _Round())

    def _decide(self) -> None:
        if self._has_deleted:  # space held by a map would cost more files
            end_unreferenced()
            self._has_deleted = False
        commit_log = self._store.commit_log
        # Files that recovery would read are needed, however full the disk is.
        needed_from = min(
            commit_log.flushed_offset,
            self._following.dispatched_offset,
            self._store.checkpoint.durable_offset,
        )
        self._keeping.leased()  # publish the leases, drop expired ones
        decision = self._cleaning.decide(
            commit_log.queue.files, needed_from, held=self._keeping.holds
        )
        self._keeping.tell(decision)
        self._expired.extend(decision.expired)
        use = disk_use(self._store.config, self.system.disk)
        nothing = use.wants_room and not self._expired
        if nothing and not self._found_nothing:
            log.warning("disk filling up, no log file deletable", used=str(use))
        self._found_nothing = nothing

    @handles(_Next)
    def on_next(self, _: _Next) -> None:
        self._go_on()

    def _go_on(self) -> None:
        """Delete files out of use; then drop one log file; then trim what is derived from it."""
        self._is_busy = True
        config = self._store.config
        if self._doomed:
            if not self._delete_lot():
                self._expired.clear()
                self._is_busy = False  # the next round retries before other deletions
            elif self._doomed:
                self.after(max(1, config.delete_queue_files_interval_ms), _Next())
            else:
                self.after(max(1, config.delete_log_files_interval_ms), _Next())
        elif self._expired and self._is_leased_since(self._expired[0]):
            self._expired.clear()
            self._is_busy = False  # the next round decides again
        elif self._expired:
            offset = self._expired[0].file.end_offset
            self._to["put_message"].tell(DropFiles(offset, self.address))
        elif self._store.commit_log.min_offset() > self._trimmed_before:
            self._trimmed_before = self._store.commit_log.min_offset()
            self._to["reput"].tell(TrimBefore(self._trimmed_before, self.address))
        else:
            self._is_busy = False

    def _is_leased_since(self, expired: Expired) -> bool:
        """Return whether a reader has leased this file since it was chosen."""
        losers = {hold.who for hold in expired.losers}
        return any(
            hold.offset < expired.file.end_offset and hold.who not in losers
            for hold in self._keeping.leased()
        )

    @handles(FilesDropped)
    def on_files_dropped(self, message: FilesDropped) -> None:
        """Queue the dropped files for deletion."""
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
        """Queue the trimmed files for deletion."""
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
        """Delete the files of the first directory; return False if the disk refuses."""
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

    # --- requests

    @serves(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def on_delete_expired(self, request: Request) -> RemotingCommand:
        """Delete expired files in the next rounds, whatever the hour."""
        self.begin_change()
        self._cleaning.request()
        log.info("log file deletion requested", peer=request.peer.remote)
        return request.command.answer()

    @serves(RequestCode.LEASE_LOG)
    def on_lease(self, request: Request) -> RemotingCommand:
        owner = "" if request.grant is None else request.grant.owner
        self.begin_change()
        return self._keeping.answer(request.command, owner)

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def on_clean_expired_queues(self, request: Request) -> None:
        """Remove the queues without a message in the log."""
        self._remove_queues(request, None)

    @serves(RequestCode.CLEAN_UNUSED_TOPIC)
    def on_clean_unused_topics(self, request: Request) -> None:
        """Remove the queues of topics that are in no table."""
        self._remove_queues(request, self._topics)

    @handles(RemoveTopic)
    def on_remove_topic(self, message: RemoveTopic) -> None:
        """Remove the queues of a deleted topic unless it exists again."""
        self._to["reput"].tell(
            RemoveQueues(
                self._topics if message.queue_ids is None else None,
                self.address,
                message.topic,
                message.before,
                message.queue_ids,
                request=message.request,
            )
        )

    def _remove_queues(
        self, request: Request, known: SnapshotRef[Mapping[str, TopicConfig]] | None
    ) -> None:
        self.begin_change()
        staying = self._topics if known is None else None
        message = RemoveQueues(known, self.address, staying=staying, request=request)
        self._to["reput"].tell(message)

    @handles(QueuesRemoved)
    def on_queues_removed(self, message: QueuesRemoved) -> None:
        """Delete the removed queues and answer; they may start again once that is durable."""
        request = message.request
        refused = self._put_away(message.removed, message.refused)
        if request is not None and refused is None:
            request.answer()
        elif request is not None and refused is not None:
            request.refuse(refused)

    @handles(QueuesBegunAnew)
    def on_queues_begun_anew(self, message: QueuesBegunAnew) -> None:
        """Delete queues that a slave's master deleted and created again."""
        self._put_away(message.removed, None)
        self._to["slave_sync"].tell(message)

    def _put_away(self, removed: RemovedQueues, refused: str | None) -> str | None:
        """Delete removed queues; return why that is not durable, or None."""
        refused = refused or self._sync(removed.directories)
        if refused is not None:
            log.error("queue removal not durable", reason=refused)
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
        """Remove the mark of a slave's store: it is a master's store now."""
        try:
            unmark(self._store.config, self.system.disk)
        except OSError as error:
            log.error("slave mark of the store not deleted", reason=str(error))

    def _sync(self, directories: Iterable[str]) -> str | None:
        try:
            sync_directories(self.system.disk, directories)
        except (OSError, StoreError) as error:
            return str(error)
        return None

    def _doom_removed(self) -> None:
        """Queue the content of the folder of removed queues for deletion."""
        directory = removed_dir(self._store.config)
        try:
            names = self.system.disk.listdir(directory)
        except OSError as error:
            raise store_error("cannot look for removed queues", error) from error
        self._doomed.extend(f"{directory}/{name}" for name in names)

    def on_stop(self) -> None:
        """Delete the files out of use, so that the next start does not find them."""
        while self._doomed and self._delete_lot():
            pass
