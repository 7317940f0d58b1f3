"""Messages of the sending actors: files of the log, internal appends, durability, replication."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from actors.engine.actor_address import ActorAddress
from actors.sending.put_answers import SendPut
from actors.sending.records import InternalRecord
from actors.tables.messages import CreateSystemTopic
from protocol.codes import ResponseCode
from storage.files.mapped_file import MappedFile


@dataclass(slots=True)
class PrepareFile:
    """Request to make the file that starts at `offset`."""

    offset: int
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """Report the failure: AllocateFile stopped before it answered."""
        self.reply_to.tell(FileFailed(self.offset, remark))


@dataclass(slots=True)
class BeginLogAt:
    """Request to make the first file of a log, at `offset`.

    The `unused` empty files are removed first.
    """

    offset: int
    unused: Sequence[MappedFile]
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """Report the failure: AllocateFile stopped before it answered."""
        self.reply_to.tell(FileFailed(self.offset, remark))


@dataclass(slots=True)
class FilePrepared:
    """Report that the file is allocated; the log can adopt it."""

    offset: int
    file: MappedFile


@dataclass(slots=True)
class FileFailed:
    """Report that the file could not be made; `reason` is a sentence with the error of the disk."""

    offset: int
    reason: str


@dataclass(slots=True, eq=False)
class InternalAppend:
    """Request to PutMessage to append `records`, answered by InternalAppended with the token.

    An empty one is answered when everything sent before it is.
    """

    records: Sequence[InternalRecord]
    reply_to: "ActorAddress | AppendResults | None"
    """Receiver of the result; None if no result is wanted."""
    token: object = None
    waits: bool = False
    """Whether the answer waits for the sync under SYNC_FLUSH, and for a slave of a SYNC_MASTER."""
    topics: Sequence[CreateSystemTopic] = ()
    """Topics to make first if they are missing.

    Records of a topic that is not made are still stored.
    """
    is_chain: bool = False
    """Whether a record that does not fit into the log also refuses all later ones."""
    done_count: int = 0
    """Number of leading records with a known result."""

    def answer(self, code: int, remark: str | None = None) -> None:
        """Send the results; records without one get `code`."""
        self.settle(code, len(self.records) - self.done_count)
        if self.reply_to is not None:
            self.reply_to.tell(InternalAppended(self.token, self.records, remark, code))

    def settle(self, code: int, count: int) -> None:
        """Set the result of the next `count` records."""
        done_count = self.done_count
        self.done_count = done_count + count
        for record in self.records[done_count : self.done_count]:
            record.code = code

    @property
    def first_offset(self) -> int:
        """Physical offset of the first stored record."""
        return self.records[0].physical_offset

    def flushed(self, code: int) -> None:
        """Send the results once the durability of the records is known."""
        for record in self.records:
            if record.is_stored:
                record.code = code
        self.answer(code)

    def refuse(self, remark: str) -> None:
        self.answer(ResponseCode.SYSTEM_ERROR, remark)


@dataclass(slots=True)
class InternalAppendGroup:
    """Several independent InternalAppends for PutMessage, in order."""

    appends: Sequence[InternalAppend]

    def refuse(self, remark: str) -> None:
        for append in self.appends:
            append.refuse(remark)


@dataclass(slots=True)
class InternalAppended:
    """Results of an InternalAppend: its records, in order.

    `remark` says why some are not stored.
    """

    token: object
    results: Sequence[InternalRecord]
    remark: str | None = None
    code: int = ResponseCode.SUCCESS
    """Durability of everything appended before it; for an empty append, the only result."""

    def refuse(self, remark: str) -> None:
        """Refuse the token: the requesting actor has stopped."""
        answer = getattr(self.token, "refuse", None)
        if answer is not None:
            answer(remark)


class AppendResults:
    """Results of several InternalAppends, sent as one message.

    Takes the place of their `reply_to`; used on the event loop.
    """

    __slots__ = ("_gathered", "_owner")

    def __init__(self, owner: ActorAddress) -> None:
        self._owner = owner
        self._gathered: deque[InternalAppended] = deque()

    def tell(self, outcome: InternalAppended) -> None:
        """Add one result; the first of a batch sends this object to the owner."""
        self._gathered.append(outcome)
        if len(self._gathered) == 1:
            self._owner.tell(self)

    def hand_out(self, take: Callable[[InternalAppended], None]) -> None:
        """Call `take` with each result, in order.

        If it raises, that result stays and is refused later.
        """
        gathered = self._gathered
        while gathered:
            take(gathered[0])
            gathered.popleft()

    def refuse(self, remark: str) -> None:
        """Refuse all results: the requesting actor has stopped."""
        while self._gathered:
            self._gathered.popleft().refuse(remark)


class WaitsForFlush(Protocol):
    """Internal append that is told the durability it has reached."""

    @property
    def first_offset(self) -> int:
        """Physical offset of the first record."""

    def flushed(self, code: ResponseCode) -> None:
        """Report the durability reached, as a response code."""


@dataclass(slots=True)
class CommitUpTo:
    """Request to answer `stored` and `own` when the log is durable up to `offset`.

    With neither, it only wakes the flusher.
    """

    offset: int
    stored: Sequence[SendPut]
    own: Sequence[WaitsForFlush] = ()

    def refuse(self, remark: str) -> None:
        """Report unknown durability to the internal appends.

        PutMessage answers the sends.
        """
        for put in self.own:
            put.flushed(ResponseCode.FLUSH_DISK_TIMEOUT)


@dataclass(slots=True)
class Sync:
    """Request to sync everything below `offset`, answered by Synced."""

    offset: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Answer that nothing more is synced: the flusher stopped; its successor can be asked."""
        self.reply_to.tell(Synced(0))


@dataclass(slots=True)
class Synced:
    """Report that everything below `flushed_offset` is synced.

    `failure` is the reason if the sync failed.
    """

    flushed_offset: int
    failure: str | None = None


@dataclass(slots=True)
class LogGrew:
    """Report to HaMaster that more can be transferred."""


@dataclass(slots=True)
class Acked:
    """Report to GroupCommit that `ReplicationProgress.acked_offset` has grown."""
