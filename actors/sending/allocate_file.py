"""Makes the next commit log file ready, off the loop.

Owns: nothing that lasts; a file belongs to PutMessage as soon as it is ready.
Told by: PutMessage (`PrepareFile`), PutReplica (`BeginLogAt`).
Tells: whoever asked (`FilePrepared`, `FileFailed`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.mapped_file import MappedFile
from storage.log.commit_log import prepare_file

log = get_logger(__name__)


@dataclass(slots=True)
class PrepareFile:
    """Make the file that starts at `offset`."""

    offset: int
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """AllocateFile died with it."""
        self.reply_to.tell(FileFailed(self.offset, remark))


@dataclass(slots=True)
class BeginLogAt:
    """Make the file that starts at `offset`, the first of a log, in the place of empty ones."""

    offset: int
    unused: Sequence[MappedFile]
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """AllocateFile died with it."""
        self.reply_to.tell(FileFailed(self.offset, remark))


@dataclass(slots=True)
class FilePrepared:
    """The file is allocated and can be adopted by the log."""

    offset: int
    file: MappedFile


@dataclass(slots=True)
class FileFailed:
    """The file could not be made: what the disk said, in a sentence."""

    offset: int
    reason: str


class AllocateFile(Actor):
    """Runs on a thread, for allocating 1 GiB may take the disk a while."""

    where: ClassVar[Where] = "thread"

    def __init__(self, config: StoreConfig) -> None:
        super().__init__()
        self._config = config
        self._last: MappedFile | None = None
        self._failing = False

    @handles(BeginLogAt)
    def on_begin(self, message: BeginLogAt) -> None:
        """The old names are gone for good before there is a new one: no gap survives a crash."""
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
        """Allocates one file; what the disk refuses is news, not a crash.

        A restarted PutMessage asks again for a file that the one before may have in use already:
        it gets the same one, and the disk is left alone.
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
