"""Tail of the commit log for its writer: next file, write permission, dispatch.

This is a plain class, owned by PutMessage, or by PutReplica on a slave.
"""

from collections.abc import Mapping

from structlog import get_logger

from actors.dispatching.messages import Appended, WritesForbidden
from actors.engine.actor_address import ActorAddress
from actors.retention.messages import DropFiles, FilesDropped
from actors.sending.messages import FilePrepared, PrepareFile
from actors.sending.send_rules import RefusedError
from protocol.codes import ResponseCode
from storage.config import StoreConfig
from storage.files.disk import Disk
from storage.log.commit_log import CommitLog
from storage.queues.dispatch_entry import Dispatched
from storage.retention.cleaning import disk_use

log = get_logger(__name__)

CREATE_FAILED = "create mapped file failed, server is busy or broken."
_STOPPED = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full [%s], messages are put to the slave, "
    "message store has been shut down, etc."
)


class LogTail:
    def __init__(
        self,
        commit_log: CommitLog,
        config: StoreConfig,
        disk: Disk,
        *,
        addresses: Mapping[str, ActorAddress],
        owner: ActorAddress,
    ) -> None:
        """`owner` receives the files."""
        self._log = commit_log
        self._config, self._disk = config, disk
        self._allocate_file, self._reput = addresses["allocate_file"], addresses["reput"]
        self._owner = owner
        self._file_wanted = -1
        self._forbidden: dict[str, WritesForbidden] = {}
        self.is_forbidden = False
        """Whether any source forbids writes."""
        self.waits_for_file = False
        """Whether records wait for the next file; set by the owner."""

    # --- room

    def want_file(self) -> None:
        offset = self._log.next_file_offset_to_prepare()
        if offset is not None and offset != self._file_wanted:
            self._file_wanted = offset
            self._allocate_file.tell(PrepareFile(offset, self._owner))

    def adopt(self, message: FilePrepared) -> bool:
        """Adopt the file and return True.

        Return False if the log already has it, from an earlier instance of the owner.
        """
        if message.offset != self._log.queue.capacity_end:
            return False
        self._log.adopt(message.file)
        self.waits_for_file = False
        return True

    def give_up_file(self) -> bool:
        """Allow another request for the failed file; return whether records waited for it."""
        self._file_wanted = -1
        waited, self.waits_for_file = self.waits_for_file, False
        return waited

    def drop_files(self, message: DropFiles) -> None:
        """Drop the files before an offset, but never the last one."""
        message.reply_to.tell(FilesDropped(self._log.drop_before(message.offset)))

    # --- write permission

    def forbid(self, message: WritesForbidden) -> None:
        """Apply a ban of its source, or its end."""
        before = self._forbidden.get(message.source)
        if before is not None and before.final:
            return
        if message.reason is not None:
            self._forbidden[message.source] = message
            if before is None:
                log.error("writes disabled", reason=message.reason)
        elif self._forbidden.pop(message.source, None) is not None and not self._forbidden:
            log.info("writes enabled")
        self.is_forbidden = bool(self._forbidden)

    def is_forbidden_but_by(self, source: str) -> bool:
        """Return whether another source than `source` forbids writes."""
        return any(each != source for each in self._forbidden)

    def not_available(self) -> RefusedError:
        """Return the refusal of a message while writes are disabled."""
        used = disk_use(self._config, self._disk)
        return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPPED % used)

    # --- dispatch

    def dispatch(self, entries: list[Dispatched]) -> None:
        """Send Reput these records, up to the end of the log."""
        self._reput.tell(Appended(self._log.end_offset, entries))
