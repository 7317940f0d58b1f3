"""Messages of a broker's registration, and of the name server's registration reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import refuse
from actors.engine.messages import Message
from actors.network.messages import Request, RequestMessage
from protocol.bodies import QueueData
from protocol.bodies_tables import DataVersion
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader

# --- in a broker: between Registration and its NamesrvLinks


@dataclass(frozen=True, slots=True)
class Listening:
    """The broker now accepts connections at these ports; the server's start sends it."""

    port: int
    ha_port: int


@dataclass(frozen=True, slots=True)
class BarrierForRegistrations:
    """Answer `Sent` once all earlier messages have reached the name server."""

    serial: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Earlier messages were sent, or the name server is down."""

    serial: int


@dataclass(frozen=True, slots=True)
class Registered:
    """Answer of a name server to a registration; None if it did not answer or refused."""

    namesrv: str
    answer: RemotingCommand | None
    """Without its body."""
    ordered: frozenset[str] | None = None
    """Ordered topics among this broker's; None if the answer does not tell."""


@dataclass(frozen=True, slots=True)
class RegistrationFigures:
    """Figures of Registration."""

    known: Mapping[str, bool] = field(default_factory=dict)
    """Whether each name server has accepted the last registration."""


# --- in a broker: from Assignments to Registration and a NamesrvLink


@dataclass(frozen=True, slots=True)
class AskForRoute(Message):
    """Ask a name server for the queues of a topic at all brokers."""

    topic: str
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        self.reply_to.tell(RouteAnswered(self.topic, None, is_known=False))


@dataclass(frozen=True, slots=True)
class RouteAnswered:
    """Answer to AskForRoute."""

    topic: str
    queues: Sequence[tuple[str, int]] | None
    """Sorted broker names with numbers of readable queues; None if no broker has the topic."""
    is_known: bool = True
    """Whether a name server has answered."""


# --- in a slave: from Registration


@dataclass(frozen=True, slots=True)
class MasterHaAddress:
    """The master's HA address, as the name server reports it; to HaSlave."""

    address: str


@dataclass(frozen=True, slots=True)
class MasterClientAddress:
    """The master's address for clients; to SlaveSync. None if no master is registered."""

    address: str | None


# --- in a name server: between Namesrv and RegistrationReader


@dataclass(slots=True)
class ReadRegistration(Message):
    """Read a large registration and send it to `reply_to` in slices."""

    request: Request
    header: RegisterBrokerHeader
    reply_to: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        self.reply_to.tell(UnreadableRegistration(self.request, ResponseCode.SYSTEM_ERROR, remark))


@dataclass(slots=True)
class Began:
    """A registration is valid; `topics` topics follow in slices."""

    request: Request
    header: RegisterBrokerHeader
    version: DataVersion
    topics: int


@dataclass(slots=True)
class TopicSlice:
    """Some topics of the registration."""

    broker_name: str
    queues: Mapping[str, QueueData]


@dataclass(slots=True)
class Ended(RequestMessage):
    """All topics of the registration were sent."""

    request: Request
    header: RegisterBrokerHeader
    filter_servers: list[str] | None


@dataclass(slots=True)
class UnreadableRegistration(RequestMessage):
    """A registration is invalid and must be refused."""

    request: Request
    code: int
    remark: str


@dataclass(slots=True)
class PassOn(Message):
    """Return this message after the registrations before it were read."""

    message: object
    reply_to: ActorAddress
    held_bytes: int = 0

    def on_undelivered(self, _remark: str) -> None:
        self.reply_to.tell(PassedOn(self.message, self.held_bytes))


@dataclass(slots=True)
class PassedOn(Message):
    """Answer to PassOn: the message, now in its turn."""

    message: object
    held_bytes: int = 0

    def on_undelivered(self, remark: str) -> None:
        refuse(self.message, remark)


@dataclass(slots=True)
class FromReader(Message):
    """A message of the reader, of which Namesrv takes some in each round."""

    message: object

    def on_undelivered(self, remark: str) -> None:
        refuse(self.message, remark)


@dataclass(frozen=True, slots=True)
class RouteFigures:
    """Figures of Namesrv."""

    topics: int = 0
    brokers: int = 0
    """Registered addresses of brokers."""
    clusters: int = 0
    registered: int = 0
    """Registrations since the start."""
    expired: int = 0
    """Brokers removed because they did not register again in time."""
    gone: int = 0
    """Brokers removed because their connection closed."""
