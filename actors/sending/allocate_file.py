"""Allocation of the next commit log file, off the event loop.

Owns: nothing; PutMessage owns a file as soon as it is ready.
Receives: PrepareFile from PutMessage, BeginLogAt from PutReplica.
Sends: FilePrepared and FileFailed to the requester.
"""

from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.server_log import get_logger
from actors.sending.messages import BeginLogAt, FileFailed, FilePrepared, PrepareFile
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.mapped_file import MappedFile
from storage.log.commit_log import prepare_file

log = get_logger(__name__)


class AllocateFile(Actor):
    """Actor on a thread, because allocating 1 GiB can take the disk a while."""

    where: ClassVar[Where] = "thread"

    def __init__(self, config: StoreConfig) -> None:
        super().__init__()
        self._config = config
        self._last: MappedFile | None = None
        self._failing = False

    @handles(BeginLogAt)
    def on_begin(self, message: BeginLogAt) -> None:
        """Remove the unused files, then make the first file of the log.

        The removals are durable before the new file exists, so that no gap survives a crash.
        """
        disk = self.system.disk
        try:
            for file in reversed(message.unused):
                if disk.exists(file.path):
                    disk.unlink(file.path)
                    disk.sync_directory(self._config.commit_log_dir)
        except OSError as error:
            message.reply_to.tell(FileFailed(message.offset, str(error)))
            return
        self.on_prepare(PrepareFile(message.offset, message.reply_to))

    @handles(PrepareFile)
    def on_prepare(self, message: PrepareFile) -> None:
        """Allocate one file; report an error of the disk.

        A restarted PutMessage can request a file that its predecessor already uses. It gets the
        same file, without access to the disk.
        """
        if self._last is None or self._last.first_offset != message.offset:
            try:
                self._last = prepare_file(message.offset, self._config, self.system.disk)
            except (OSError, StoreError) as error:
                if not self._failing:
                    log.error("next file not allocated", offset=message.offset, reason=str(error))
                self._failing = True
                message.reply_to.tell(FileFailed(message.offset, str(error)))
                return
        if self._failing:
            log.info("next file allocated", offset=message.offset)
            self._failing = False
        message.reply_to.tell(FilePrepared(message.offset, self._last))
