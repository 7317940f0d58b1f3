"""The end of the log for the actor that writes there: room, leave to write, word to Reput.

A plain class; PutMessage holds the one there is, or PutReplica on a slave.
"""

from collections.abc import Mapping

from structlog import get_logger

from actors.dispatching.reput import Appended, WritesForbidden
from actors.engine.actor_address import ActorAddress
from actors.retention.messages import DropFiles, FilesDropped
from actors.sending.allocate_file import FilePrepared, PrepareFile
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
    """Asks for the next file, knows who forbids to write, passes on what was written."""

    def __init__(
        self,
        commit_log: CommitLog,
        config: StoreConfig,
        disk: Disk,
        *,
        addresses: Mapping[str, ActorAddress],
        owner: ActorAddress,
    ) -> None:
        """`owner` gets the files."""
        self._log = commit_log
        self._config, self._disk = config, disk
        self._allocate_file, self._reput = addresses["allocate_file"], addresses["reput"]
        self._owner = owner
        self._file_wanted = -1
        self._forbidden: dict[str, WritesForbidden] = {}
        self.is_forbidden = False
        """Whether anybody forbids to write."""
        self.waits_for_file = False
        """What was to be written finds no room; set by the owner."""

    # --- room

    def want_file(self) -> None:
        """Has the next file made in advance."""
        offset = self._log.next_file_offset_to_prepare()
        if offset is not None and offset != self._file_wanted:
            self._file_wanted = offset
            self._allocate_file.tell(PrepareFile(offset, self._owner))

    def adopt(self, message: FilePrepared) -> bool:
        """Whether the log has room again: not if this file came to the owner before this one."""
        if message.offset != self._log.queue.capacity_end:
            return False
        self._log.adopt(message.file)
        self.waits_for_file = False
        return True

    def give_up_file(self) -> bool:
        """It could not be made, and will be asked for again; whether somebody waited for it."""
        self._file_wanted = -1
        waited, self.waits_for_file = self.waits_for_file, False
        return waited

    def drop_files(self, message: DropFiles) -> None:
        """The log begins behind these from now on; its last file stays."""
        message.reply_to.tell(FilesDropped(self._log.drop_before(message.offset)))

    # --- leave to write

    def forbid(self, message: WritesForbidden) -> None:
        """The disk failed, or is well again, in somebody's word."""
        before = self._forbidden.get(message.source)
        if before is not None and before.final:
            return
        if message.reason is not None:
            self._forbidden[message.source] = message
            if before is None:
                log.error("no more messages are taken", reason=message.reason)
        elif self._forbidden.pop(message.source, None) is not None and not self._forbidden:
            log.info("messages are taken again")
        self.is_forbidden = bool(self._forbidden)

    def is_forbidden_but_by(self, source: str) -> bool:
        """Whether anybody else than this one does."""
        return any(each != source for each in self._forbidden)

    def not_available(self) -> RefusedError:
        """The answer to what is not written."""
        used = disk_use(self._config, self._disk)
        return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPPED % used)

    # --- what was written

    def dispatch(self, entries: list[Dispatched]) -> None:
        """Tells Reput of these records, up to the end of the log."""
        self._reput.tell(Appended(self._log.end_offset, entries))
