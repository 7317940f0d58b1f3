"""Messages to and from Reput and CatchUp, and the checks of single units and records."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.messages import Message
from actors.network.messages import Request, RequestMessage
from protocol.bodies_tables import TopicConfig
from storage.dispatching.dispatch import Follower
from storage.dispatching.sink_table import SinkCopy
from storage.index.index import FullFiles
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.dispatch_entry import Dispatched
from storage.queues.unsynced import UnsyncedQueues
from storage.reading.record_place import RecordPlace
from storage.retention.trimming import RemovedQueues
from storage.scrub.units import UnitRepair
from storage.transactions.table import UnsyncedTable

# --- dispatch: PutMessage to Reput, Reput to PullHold


@dataclass(slots=True)
class Appended:
    """The commit log holds all bytes below `end_offset`; `entries` are its new records, in order.

    The receiver owns the list.
    """

    end_offset: int
    entries: list[Dispatched]


@dataclass(slots=True)
class Arrived:
    """Queues hold more messages; `entries` are these records, in order."""

    entries: Sequence[Dispatched]


@dataclass(slots=True)
class CaughtUp:
    """Reput has restarted from the commit log: any queue may hold unannounced messages."""


@dataclass(slots=True)
class WritesForbidden:
    """The disk failed, so PutMessage must reject sends; reason None permits them again."""

    reason: str | None
    source: str = "reput"
    """Component that forbids writes; only the same source may permit them again."""
    final: bool = False
    """Forbidden until the store is reopened: the commit log cannot be trusted."""


# --- waiting for dispatch: to Reput


@dataclass(slots=True)
class AwaitDispatch(Message):
    """Send `then` to `reply_to` once all records below `end_offset` have units.

    The next tick sends it in any case, even if units are missing.
    """

    end_offset: int
    then: Message
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Send `then` at once: Reput has failed, so the present units must do."""
        self.reply_to.tell(self.then)


@dataclass(slots=True)
class WriteOutIndex(Message):
    """Write index entries that are in memory only, so that a query finds them."""

    request: Request
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Answer the query from the files alone: Reput has failed."""
        self.reply_to.tell(IndexWritten(self.request))


@dataclass(slots=True)
class IndexWritten(RequestMessage):
    """Every key dispatched before WriteOutIndex is in a file, unless the disk failed."""

    request: Request


# --- ownership of followers: between Reput and CatchUp (see reput.py)


@dataclass(slots=True)
class FollowerBehind:
    """Rebuild a follower named in `Lagging.behind`; Reput sends it to CatchUp."""

    paths: Sequence[str]
    """Files to remove first, in this order."""


@dataclass(slots=True)
class FollowersCaughtUp:
    """Reput now owns these followers, which have read nearly all of the commit log."""

    followers: Sequence[Follower]
    position: int
    """Physical offset of the next record to read."""


@dataclass(slots=True)
class RebuildIndex:
    """Rebuild an invalid index file and all newer ones.

    The scrubber sends it to Reput. Reput and CatchUp pass it on to the owner of the index.
    """

    path: str
    reason: str


@dataclass(slots=True)
class RebuildTable:
    """Rebuild the invalid transaction table; same route as RebuildIndex."""

    reason: str


# --- index files of the checkpoint: CatchUp to FlushRealTime


@dataclass(slots=True)
class LowerIndexTime(Message):
    """Lower the checkpoint's index time to `index_ms`, because newer index files were dropped.

    A higher time would vouch for their unsynced successors.
    """

    index_ms: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        self.reply_to.tell(IndexTimeLowered(False))


@dataclass(slots=True)
class IndexTimeLowered:
    """Answer to LowerIndexTime."""

    done: bool
    """Whether the checkpoint on disk has the lower time."""


@dataclass(slots=True)
class IndexSynced:
    """Full index files up to the store timestamp `index_ms` are synced."""

    index_ms: int


# --- syncs of derived files: between FlushRealTime and Reput


@dataclass(slots=True)
class WriteOutQueues(Message):
    """Reply with the files that a sync must cover.

    With `least_pages` 0 these are all files, after a write of everything in memory.
    """

    least_pages: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Report no files and no checkpoint time: Reput has failed."""
        self.reply_to.tell(QueuesWritten(UnsyncedQueues(None), None))


@dataclass(slots=True)
class QueuesWritten:
    """Files to sync, of the index only full ones; QueuesSynced must follow."""

    unsynced: UnsyncedQueues
    full_index: FullFiles | None
    table: UnsyncedTable | None = None
    sinks: SinkCopy | None = None


@dataclass(slots=True)
class QueuesSynced:
    """The files of a QueuesWritten are synced."""

    unsynced: UnsyncedQueues
    full_index: FullFiles | None
    table: UnsyncedTable | None = None
    sinks: SinkCopy | None = None


# --- retention: between CleanFiles and Reput


@dataclass(slots=True)
class TrimBefore(Message):
    """Take data derived from records below `offset` out of use: the commit log begins there."""

    offset: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        self.reply_to.tell(Trimmed([], is_complete=False))


@dataclass(slots=True)
class Trimmed:
    """Unused files to delete, oldest first within each directory."""

    paths: Sequence[str]
    is_complete: bool = True


@dataclass(slots=True)
class RemoveQueues(Message):
    """Remove queues of topics that `known` lacks by then; None selects queues without messages."""

    known: SnapshotRef[Mapping[str, TopicConfig]] | None
    reply_to: ActorAddress
    only: str | None = None
    """Select all queues of this topic alone, unless `known` has the topic again."""
    before: int | None = None
    """Select only queues without a message past this physical offset."""
    queue_ids: Collection[int] | None = None
    """Select only these queue ids."""
    staying: SnapshotRef[Mapping[str, TopicConfig]] | None = None
    """Topics that stay: their queues continue at their ends."""
    request: Request | None = None

    def on_undelivered(self, remark: str) -> None:
        self.reply_to.tell(QueuesRemoved(RemovedQueues(), self.request, remark))


@dataclass(slots=True)
class QueuesRemoved(Message):
    """Queues are out of use; their files are in a separate folder and must be deleted."""

    removed: RemovedQueues
    request: Request | None
    """Request to answer, if any."""
    refused: str | None = None
    """Reason why some or all queues were not removed."""

    def on_undelivered(self, remark: str) -> None:
        if self.request is not None:
            self.request.refuse(remark)


@dataclass(slots=True)
class QueuesBegunAnew:
    """A slave's master numbers these queues from 0 again; their old content is out of use.

    Reput sends it to CleanFiles, which passes it on to SlaveSync.
    """

    removed: RemovedQueues
    topics: Mapping[str, int]
    """Physical offset of the newest record with queue offset 0, by topic."""


@dataclass(slots=True)
class QueuesEmptied:
    """Queues are out of use, so held pulls must be answered; Reput sends it to PullHold."""

    queues: Sequence[tuple[str, int]]
    """(topic, queue id)."""


# --- checks of a single unit: PullMessage and Schedule to the scrubber


@dataclass(slots=True)
class VerifyUnit(Message):
    """Find the record of a consume queue unit that does not agree with the commit log.

    The sender has read the unit before the scrubber. The answer must follow the repair. Reput owns
    the units, so the answer travels with the repair through Reput.
    """

    topic: str
    queue_id: int
    queue_offset: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Do nothing: a held pull is answered at its deadline."""


@dataclass(slots=True)
class UnitVerified:
    """A unit is valid now, or its record is marked as damaged, or nothing more can be found."""

    topic: str
    queue_id: int
    queue_offset: int


# --- repairs: the scrubber to Reput


@dataclass(slots=True)
class RepairUnits(Message):
    """Write repaired units; if all writes succeed, record the verified parts; then send `answers`.

    A queue that is not the queue that was read is left alone: its topic was deleted meanwhile.
    """

    repairs: Sequence[tuple[ConsumeQueue, UnitRepair]]
    verified: Sequence[tuple[ConsumeQueue, int]]
    """(queue, queue offset): reads need not check units from this offset on."""
    scrubber: ActorAddress
    answers: Sequence[tuple[ActorAddress, UnitVerified]] = ()

    def on_undelivered(self, remark: str) -> None:
        """Make the scrubber start its round again: Reput has failed."""
        self.scrubber.tell(RepairsRefused(remark))
        self.tell_answers()

    def tell_answers(self) -> None:
        """Send the answers to the actors that wait for a unit."""
        for address, answer in self.answers:
            address.tell(answer)


@dataclass(slots=True)
class RepairsRefused:
    """Units were not repaired; Reput sends it to the scrubber."""

    reason: str


# --- checks of a single record: to RecordChecker


@dataclass(slots=True)
class CheckRecord(Message):
    """Check whether the record at an offset that a client named is what its queue has there.

    Defined in this room because lower rooms than RecordChecker's send it, too.
    """

    place: RecordPlace
    answer: "RecordChecked"
    """Message that is sent to `reply_to` with the result."""
    reply_to: ActorAddress
    reads: int = 0
    """Waits so far: 0 none, 1 for dispatch, 2 for a cold read."""

    def on_undelivered(self, remark: str) -> None:
        self.answer.on_undelivered(remark)


@dataclass(slots=True)
class RecordChecked(Message):
    """Answer to CheckRecord; each requester has its own subclass, with what it needs to go on."""

    is_own: bool = field(default=False, init=False)
    """Whether the offset is the start of a record, not part of a message body."""
