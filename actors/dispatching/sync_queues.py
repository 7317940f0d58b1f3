"""The messages between Reput, who knows what was written, and FlushRealTime, who syncs it."""

from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from storage.dispatching.sink_table import SinkCopy
from storage.index.index import FullFiles
from storage.queues.unsynced import UnsyncedQueues
from storage.transactions.table import UnsyncedTable


@dataclass(slots=True)
class WriteOutQueues:
    """Say what a sync of the queues has to cover; with 0 pages everything, written out first."""

    least_pages: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Reput died with it: this time nothing is synced, and nothing is vouched for."""
        self.reply_to.tell(QueuesWritten(UnsyncedQueues(None), None))


@dataclass(slots=True)
class QueuesWritten:
    """These files want a sync, of the index those that are full; their owner is told afterwards."""

    unsynced: UnsyncedQueues
    full_index: FullFiles | None
    table: UnsyncedTable | None = None
    sinks: SinkCopy | None = None


@dataclass(slots=True)
class QueuesSynced:
    """What QueuesWritten named is on the disk."""

    unsynced: UnsyncedQueues
    full_index: FullFiles | None
    table: UnsyncedTable | None = None
    sinks: SinkCopy | None = None
