"""Makes the next commit log file ready, off the loop.

Owns: nothing that lasts; a file belongs to PutMessage as soon as it is ready.
Told by: PutMessage (`PrepareFile`).   Tells: PutMessage (`FilePrepared`, `FileFailed`).
"""

from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.actor import Actor, Where, handles
from actors.address import Address
from storage.commit_log import prepare_file
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.mapped_file import MappedFile

log = get_logger(__name__)


@dataclass(slots=True)
class PrepareFile:
    """Make the file that starts at `offset`."""

    offset: int


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

    def __init__(self, config: StoreConfig, put_message: Address) -> None:
        super().__init__()
        self._config = config
        self._put_message = put_message

    @handles(PrepareFile)
    def on_prepare(self, message: PrepareFile) -> None:
        """Allocates one file; what the disk refuses is news, not a crash."""
        try:
            file = prepare_file(message.offset, self._config, self.system.disk)
        except (OSError, StoreError) as error:
            log.error("next file not allocated", offset=message.offset, reason=str(error))
            self._put_message.tell(FileFailed(message.offset, str(error)))
        else:
            self._put_message.tell(FilePrepared(message.offset, file))
