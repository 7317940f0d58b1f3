"""Messages of CleanFiles to and from the owners of files, in the order of a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from storage.files.mapped_file import MappedFile


@dataclass(slots=True)
class DropFiles(Message):
    """Remove whole files below `offset` from the log; FilesDropped answers."""

    offset: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Answer that no file was removed: PutMessage has failed."""
        self.reply_to.tell(FilesDropped([]))


@dataclass(slots=True)
class FilesDropped:
    """Log files that are out of use; existing views of them remain valid."""

    files: Sequence[MappedFile]


@dataclass(slots=True)
class QueuesGone:
    """Queues deleted from the disk: topic, queue id, and the max offset they had."""

    queues: Sequence[tuple[str, int, int]]


@dataclass(slots=True)
class SyncSoon:
    """Sync soon instead of at the long interval."""
