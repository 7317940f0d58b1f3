"""Messages of a slave: its copy of the commit log, and topics that it lacks."""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message


@dataclass(slots=True)
class AppendReplica(Message):
    """Append the master's bytes at `offset`, which directly follow the earlier ones."""

    offset: int
    data: bytes
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        """Report a failure, so that HaSlave requests the bytes again."""
        self.reply_to.tell(Replicated(1, remark))


@dataclass(slots=True)
class Replicated:
    """Answer to `count` AppendReplica messages, with the reason of a failure."""

    count: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownTopics:
    """The commit log has messages of topics that the slave lacks; PutReplica to SlaveSync."""

    topics: Sequence[str]
