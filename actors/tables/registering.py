"""Messages between the topic table and Registration, which tells the name servers."""

from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.network.request import Request
from protocol.bodies import DataVersion, TopicConfig


@dataclass(frozen=True, slots=True)
class RegisterTopic:
    """An administrator has changed one topic; `version` is that of the table with it."""

    config: TopicConfig
    version: DataVersion


@dataclass(frozen=True, slots=True)
class RegisterAll:
    """Topics have come: tell the name servers soon, without waiting for their answers."""


@dataclass(frozen=True, slots=True)
class WhenRegistered(Message):
    """Tell `message` to `to` when the name servers have been sent the topics that came before."""

    message: object
    to: ActorAddress

    def pass_on(self) -> None:
        """Now."""
        self.to.tell(self.message)

    def on_undelivered(self, _remark: str) -> None:
        """Nobody registers anything any more."""
        self.pass_on()


@dataclass(frozen=True, slots=True)
class SetOrderTopics:
    """Exactly these topics are ordered, says the name server."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class NameServersTold(Message):
    """They know of the topic of this request, or have been given time enough."""

    request: Request
    refusal: str
    """Why the disk has refused the change, if it has."""

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)
