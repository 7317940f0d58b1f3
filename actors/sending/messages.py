"""Messages of the sending actors: files of the log, internal appends, durability, replication."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.network.messages import Request
from actors.sending.appender import InternalRecord
from actors.sending.put_answers import SendPut
from actors.tables.messages import CreateSystemTopic
from protocol.codes import ResponseCode
from storage.files.mapped_file import MappedFile


@dataclass(slots=True)
class PrepareFile(Message):
    """Request to make the file that starts at `offset`."""

    offset: int
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        """Report the failure: AllocateFile stopped before it answered."""
        self.reply_to.tell(FileFailed(self.offset, remark))


@dataclass(slots=True)
class BeginLogAt(Message):
    """Request to make the first file of a log, at `offset`.

    The `unused` empty files are removed first.
    """

    offset: int
    unused: Sequence[MappedFile]
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
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
class AppendResult(Message):
    """Result of an InternalAppend: its records, in order.

    Each requester has its own subclass, with fields for what it needs to go on.
    """

    results: Sequence[InternalRecord] = field(default=(), init=False)
    remark: str | None = field(default=None, init=False)
    """Reason why some records are not stored."""
    code: int = field(default=ResponseCode.SUCCESS, init=False)
    """Durability of everything appended before it; for an empty append, the only result."""


@dataclass(slots=True, eq=False)
class InternalAppend(Message):
    """Request to PutMessage to append `records`, and to send `result`, filled in, to `reply_to`.

    An empty one is answered when everything sent before it is.
    """

    records: Sequence[InternalRecord]
    reply_to: ActorAddress | None = None
    """Receiver of the result; None if no result is wanted."""
    result: AppendResult | None = None
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
    group_result: "GroupResult | None" = None
    """Message class for the results of its InternalAppendGroup; None outside of a group."""

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

    def on_undelivered(self, remark: str) -> None:
        answer_appends([self], ResponseCode.SYSTEM_ERROR, remark)


GroupResult: TypeAlias = Callable[[deque[Any]], object]
"""Message class with one field: the results of several appends, in order."""


@dataclass(slots=True)
class InternalAppendGroup(Message):
    """Several independent InternalAppends with the same `reply_to` for PutMessage, in order.

    Results that are known at the same time are sent as one `group_result`.
    """

    appends: Sequence[InternalAppend]
    group_result: GroupResult

    def on_undelivered(self, remark: str) -> None:
        answer_appends(self.appends, ResponseCode.SYSTEM_ERROR, remark)


def answer_appends(appends: Iterable[InternalAppend], code: int, remark: str | None = None) -> None:
    """Send the results of `appends`; records without a result get `code`."""
    messages: list[tuple[ActorAddress, object]] = []
    gathered: dict[tuple[ActorAddress, GroupResult], deque[AppendResult]] = {}
    for append in appends:
        append.settle(code, len(append.records) - append.done_count)
        reply_to, result, group_result = append.reply_to, append.result, append.group_result
        if reply_to is None or result is None:
            continue
        append.result = None  # after a failure, an append may be answered again
        result.results, result.remark, result.code = append.records, remark, code
        if group_result is None:
            messages.append((reply_to, result))
            continue
        key = reply_to, group_result
        results = gathered.get(key)
        if results is None:
            gathered[key] = results = deque()
            messages.append((reply_to, group_result(results)))
        results.append(result)
    for reply_to, message in messages:
        reply_to.tell(message)


def answer_flushed(appends: Sequence[InternalAppend], code: int) -> None:
    """Send the results of `appends` once the durability of their records is known."""
    for append in appends:
        for record in append.records:
            if record.is_stored:
                record.code = code
    answer_appends(appends, code)


@dataclass(slots=True, eq=False)
class HeldReturned(AppendResult):
    """Result of a ReturnHeld: the copy is stored, or why it is not."""

    held: Any = None
    """Message in flight, for the requester."""
    request: Request | None = None
    """Request of a client that waits for the copy."""
    is_move: bool = False
    """Whether the copy stays in flight."""
    is_gone: bool = False
    """Whether there is nothing to copy any more: the message or its group has been deleted."""

    @property
    def is_stored(self) -> bool:
        return bool(self.results) and self.results[0].is_stored

    @property
    def is_too_long(self) -> bool:
        """Whether no log takes the copy."""
        return bool(self.results) and self.results[0].code == ResponseCode.MESSAGE_ILLEGAL

    def on_undelivered(self, remark: str) -> None:
        if self.request is not None:
            self.request.refuse(remark)


@dataclass(slots=True)
class ReturnHeld(Message):
    """Request to SendBack to store a message in flight again: as a retry, or as a dead letter.

    A message that is moved keeps its number of tries; another one may have used them up.
    """

    group: str
    physical_offset: int
    delay_level: int | None
    """None: no delay; 0: chosen by the tries; below 0: the dead-letter queue."""
    result: HeldReturned
    reply_to: ActorAddress
    failure: str | None = None
    """Reason of the retry, as the client gave it; a message that is moved keeps its own."""

    def fail(self, remark: str | None, *, is_gone: bool = False) -> None:
        """Answer that nothing is stored."""
        result = self.result
        result.code, result.remark, result.is_gone = ResponseCode.SYSTEM_ERROR, remark, is_gone
        self.reply_to.tell(result)

    def on_undelivered(self, remark: str) -> None:
        self.fail(remark)


@dataclass(slots=True)
class TimersStored:
    """Report to a delay level that timers were stored: due time in ms, queue offset."""

    timers: Sequence[tuple[int, int]]


@dataclass(slots=True)
class CommitUpTo(Message):
    """Request to answer `stored` and `own` when the log is durable up to `offset`.

    With neither, it only wakes the flusher.
    """

    offset: int
    stored: Sequence[SendPut]
    own: Sequence[InternalAppend] = ()

    def on_undelivered(self, remark: str) -> None:
        """Report unknown durability to the internal appends.

        PutMessage answers the sends.
        """
        answer_flushed(self.own, ResponseCode.FLUSH_DISK_TIMEOUT)


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """Figures of GroupCommit."""

    waiting: int = 0
    """Batches that wait for the disk or a slave."""


@dataclass(slots=True)
class Sync(Message):
    """Request to sync everything below `offset`, answered by Synced."""

    offset: int
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
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
