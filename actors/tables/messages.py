"""Messages of the table actors, in the order of each conversation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.network.messages import Encodable, Peer, Request, RequestMessage
from actors.network.request import check_waiting, short_body
from protocol.bodies import ConsumerData
from protocol.bodies_assignment import RequestModeTable
from protocol.bodies_tables import (
    ConsumerOffsetTable,
    DataVersion,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from protocol.frame import RemotingCommand
from protocol.json_body import Body
from storage.tables.skipped_entry import SkippedEntry

Read = TypeVar("Read", bound=Body)
Answer: TypeAlias = tuple[Request, RemotingCommand]
"""Request and its response, which is sent later."""

# --- every table


@dataclass(frozen=True, slots=True)
class WriteFile(Message):
    """Write `text` to the file at `path`; a function is called on the writer's thread.

    `serial` increases with every text of one file.
    """

    path: str
    text: str | Callable[[], str]
    serial: int = 0
    reply_to: ActorAddress | None = None
    broken: tuple[str, ...] = ()
    """Unusable files found at the start, kept aside instead of as .bak."""
    left_out: tuple[SkippedEntry, ...] = ()
    """Unusable entries, kept in the side file."""

    def on_undelivered(self, remark: str) -> None:
        """Report that the writer has failed."""
        self.done(remark)

    def done(self, refusal: str = "") -> None:
        if self.reply_to is not None:
            self.reply_to.tell(FileWritten(self.path, self.serial, refusal))


@dataclass(frozen=True, slots=True)
class FileDamaged:
    """The start found `versions` of the file at `path` damaged."""

    path: str
    versions: int


@dataclass(frozen=True, slots=True)
class FileWritten:
    """Result of WriteFile: text `serial` or a later one is on disk, or `refusal` says why not.

    A refused text is retried. Its answers go out at once, so that no client waits for a broken
    disk.
    """

    path: str
    serial: int
    refusal: str = ""
    """Reason why the text is not on disk."""


@dataclass(frozen=True, slots=True)
class EncodeAnswer(RequestMessage):
    """Answer with `body`, which must not change any more, and these fields."""

    request: Request
    body: Encodable
    fields: dict[str, str] | None = None


_ENTRY_BYTES = 100
"""Memory of an entry in a copy of a table."""


def encode_later(encoder: ActorAddress, answer: EncodeAnswer, entries: int) -> None:
    """Have TableEncoder answer with a body of so many entries. Raises LimitReached."""
    check_waiting(encoder.waiting, answer.request.command, entries * _ENTRY_BYTES)
    encoder.tell(answer)


@dataclass(frozen=True, slots=True)
class ReadBody(RequestMessage):
    """Read the body of a request, note its value there, and send the request to `reply_to`."""

    request: Request
    kind: type[Body]
    reply_to: ActorAddress


READ_HERE_BYTES_MAX = 16 << 10
"""Maximum body with many objects that is read on the loop: 150 subscriptions, 2 ms."""


def read_body(
    request: Request, kind: type[Read], encoder: ActorAddress, reply_to: ActorAddress
) -> Read | None:
    """Return the value of a request's body; None: the request comes back with the value.

    Raises RemoteError. A long body is read by TableEncoder, so later requests may overtake it, as
    in 4.9.7, which has several threads.
    """
    if isinstance(request.read, kind):
        return request.read
    body = short_body(request.command)
    if len(body or b"") <= READ_HERE_BYTES_MAX:
        return kind.decode(body)
    check_waiting(encoder.waiting, request.command)
    encoder.tell(ReadBody(request, kind, reply_to))
    return None


# --- topics


@dataclass(frozen=True, slots=True)
class CreateTopicOnSend(Message):
    """Create a missing topic for a send, if its default topic allows that."""

    topic: str
    default_topic: str
    queue_nums: int
    unit_mode: bool
    producer: str
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """Answer that the topic is unavailable: the table has failed."""
        self.reply_to.tell(TopicReady(self.topic, None))


@dataclass(frozen=True, slots=True)
class CreateSystemTopic(Message):
    """Create a retry or dead-letter topic unless it exists."""

    topic: str
    queue_nums: int
    reply_to: ActorAddress | None = None
    topic_sys_flag: int = 0

    def on_undelivered(self, _remark: str) -> None:
        """Answer that the topic is unavailable: the table has failed."""
        if self.reply_to is not None:
            self.reply_to.tell(TopicReady(self.topic, None))


@dataclass(frozen=True, slots=True)
class TopicReady:
    """Answer to a create message: the topic's settings, or None if it must not be created."""

    topic: str
    config: TopicConfig | None


@dataclass(frozen=True, slots=True)
class PermissionChanged:
    """The permission of the whole broker has changed."""


@dataclass(frozen=True, slots=True)
class ReplaceTopics:
    """The master's topic table, which replaces a slave's own."""

    table: TopicConfigTable
    log_end: int = 0
    """End of this slave's log before it requested the table, in bytes.

    A topic that is missing in the table has no live record below it.
    """
    has_all: bool = False
    """Whether the log has all that the master had when it sent the table before."""
    continues: bool = True
    """Whether the table before came from the same master."""


# --- topics and name servers


@dataclass(frozen=True, slots=True)
class RegisterTopic:
    """A changed topic; `version` is that of the table including it."""

    config: TopicConfig
    version: DataVersion


@dataclass(frozen=True, slots=True)
class RegisterAll:
    """Topics have changed: register all soon, without waiting for answers."""


@dataclass(frozen=True, slots=True)
class WhenRegistered(Message):
    """Send `message` to `to` when the name servers have been sent all earlier topics."""

    message: object
    to: ActorAddress

    def pass_on(self) -> None:
        self.to.tell(self.message)

    def on_undelivered(self, _remark: str) -> None:
        """Send it nevertheless: registration has failed."""
        self.pass_on()


@dataclass(frozen=True, slots=True)
class NameServersTold(RequestMessage):
    """The name servers know the topic of this request, or their time is over."""

    request: Request
    refusal: str
    """Reason why the disk refused the change; empty if it is saved."""


@dataclass(frozen=True, slots=True)
class SetOrderTopics:
    """The ordered topics according to the name server."""

    topics: frozenset[str]


# --- deletion of topics


@dataclass(frozen=True, slots=True)
class ForgetTopic(Message):
    """Delete all offsets in a deleted topic, save the file, then call `then`."""

    topic: str
    then: Callable[[str], None] = lambda _: None

    def on_undelivered(self, remark: str) -> None:
        self.then(remark)


@dataclass(frozen=True, slots=True)
class TopicsGone:
    """Topics that a slave's master deleted, or their queues; `there` are those it has."""

    gone: frozenset[str]
    there: frozenset[str] = frozenset()
    has_restarted: bool = False
    """Whether the queues have records of a later topic of this name, which `there` may have."""


@dataclass(frozen=True, slots=True)
class RemoveTopic(Message):
    """Remove the queues of a topic that is in no table, then answer."""

    topic: str
    request: Request | None
    before: int | None = None
    """Remove only queues without a record at or after this offset of the log; None: all."""
    queue_ids: frozenset[int] | None = None
    """Remove only these queues, even if the table has the topic; None: all."""

    def on_undelivered(self, remark: str) -> None:
        if self.request is not None:
            self.request.refuse(remark)


@dataclass(frozen=True, slots=True)
class TablesComplete:
    """No table of this master lacks what the log has, even if the store was a slave's."""


# --- groups


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Create a group with default settings unless it exists."""

    group: str


@dataclass(frozen=True, slots=True)
class TakeGroups:
    """The master's group table, which replaces a slave's own."""

    table: SubscriptionGroupTable
    continues: bool = True
    """Whether the table before came from the same master."""


@dataclass(frozen=True, slots=True)
class ForgetOffsets:
    """Delete all offsets of a deleted group."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupsGone:
    """Groups that a slave's master has deleted; `there` are those it has."""

    gone: frozenset[str]
    there: frozenset[str]


# --- request modes


@dataclass(frozen=True, slots=True)
class TakeRequestModes:
    """The master's request modes, which replace a slave's own."""

    table: RequestModeTable


# --- consumer offsets


@dataclass(slots=True)
class CommitOffset:
    """The group has consumed this queue up to, but not including, `offset`."""

    group: str
    topic: str
    queue_id: int
    offset: int
    peer: Peer | None = None
    """The consumer; None for a group of the broker itself: always stored."""


@dataclass(slots=True)
class AdvanceOffset:
    """All messages of this queue below `offset` are settled; ignored unless `expected` is stored.

    Another stored offset is a reset that the sender does not know yet.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    expected: int | None
    """The offset before; None if there was none."""
    settled: Sequence[int] = ()
    """Offsets above `offset` that have been settled since the last message."""


@dataclass(slots=True)
class AdvanceOffsets(Message):
    """Store these offsets and send the answers; OffsetsAdvanced reports it.

    The answers leave when a kill of the process cannot undo the settlements any more.
    """

    commits: Sequence[AdvanceOffset]
    reply_to: ActorAddress
    answers: Sequence[Answer] = ()

    def on_undelivered(self, remark: str) -> None:
        """Report that all the same: the table shows what is stored. Refuse the settlements."""
        self.reply_to.tell(OffsetsAdvanced(self.commits))
        for request, _ in self.answers:
            request.refuse(remark)


def send_answers(answers: Iterable[Answer]) -> None:
    for request, response in answers:
        request.respond(response)


@dataclass(slots=True)
class OffsetsAdvanced:
    """Answer to AdvanceOffsets: its offsets are stored, unless the table has others."""

    commits: Sequence[AdvanceOffset]


@dataclass(slots=True)
class ResetOffsets:
    """Set a group's offsets in a topic, by queue; later commits of the old ones are stale."""

    group: str
    topic: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SearchOn:
    """Message of ConsumerOffsets to itself: search the next part of the table."""


@dataclass(frozen=True, slots=True)
class ChangeOn:
    """Message of ConsumerOffsets to itself: do the next piece of a change."""


@dataclass(frozen=True, slots=True)
class MergeOffsets:
    """The master's offsets, which override a slave's own."""

    table: ConsumerOffsetTable


@dataclass(slots=True)
class TellOffsets(RequestMessage):
    """Request for a copy of offsets: of a group, a topic, both, or, with neither, of all."""

    request: Request
    reply_to: ActorAddress
    group: str | None = None
    topic: str | None = None


@dataclass(slots=True)
class OffsetsTold(RequestMessage):
    """Answer to TellOffsets: offsets by topic and group, then by queue."""

    request: Request
    offsets: Mapping[tuple[str, str], Mapping[int, int]]


# --- filters


@dataclass(frozen=True, slots=True)
class RegisterFilters(RequestMessage):
    """Register the expressions of a heartbeat, then answer it."""

    consumers: Sequence[ConsumerData]
    request: Request


@dataclass(frozen=True, slots=True)
class UnregisterFilters:
    """The last consumer of the group has left."""

    group: str


@dataclass(frozen=True, slots=True)
class CompileFirst(Message):
    """Compile this SQL92 expression, then send `message` to `reply_to`."""

    expression: str
    message: Any
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        self.message.refuse(remark)
