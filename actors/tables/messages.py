"""Messages about consumer offsets, in the order of a conversation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.network.request import Peer, Request
from protocol.bodies import ConsumerOffsetTable


@dataclass(slots=True)
class CommitOffset:
    """The group has consumed everything of this queue below `offset`."""

    group: str
    topic: str
    queue_id: int
    offset: int
    peer: Peer | None = None
    """Who says so; nobody for a group of the broker's own, which is believed."""


@dataclass(slots=True)
class ResetOffsets:
    """A group goes to other places of a topic; what its members say of the old ones is late."""

    group: str
    topic: str
    offsets: Mapping[int, int]


@dataclass(slots=True)
class TellOffsets(Message):
    """Say how far groups are: `OffsetsTold` to `reply_to`, with this request.

    Of one group, of one topic, or both; with neither everything.
    """

    request: Request
    reply_to: ActorAddress
    group: str | None = None
    topic: str | None = None

    def on_undelivered(self, remark: str) -> None:
        """Answers the request with an error."""
        self.request.refuse(remark)


@dataclass(slots=True)
class OffsetsTold(Message):
    """How far groups are, by topic and group, then by queue; a copy."""

    request: Request
    offsets: Mapping[tuple[str, str], Mapping[int, int]]

    def on_undelivered(self, remark: str) -> None:
        """Answers the request with an error."""
        self.request.refuse(remark)


@dataclass(frozen=True, slots=True)
class MergeOffsets:
    """The master's table: its groups go over a slave's own."""

    table: ConsumerOffsetTable


@dataclass(frozen=True, slots=True)
class GroupsGone:
    """A slave's master has deleted these groups; `there` are those it has."""

    gone: frozenset[str]
    there: frozenset[str]


@dataclass(frozen=True, slots=True)
class TopicsGone:
    """A slave's master has deleted these topics, or their queues; `there` are those it has."""

    gone: frozenset[str]
    there: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ForgetOffsets:
    """The group was deleted with its offsets."""

    group: str


@dataclass(frozen=True, slots=True)
class ForgetTopic(Message):
    """The topic was deleted: so are all offsets in it. `then` is called once the file says so."""

    topic: str
    then: Callable[[str], None] = lambda _: None

    def on_undelivered(self, remark: str) -> None:
        """The table died with it."""
        self.then(remark)
