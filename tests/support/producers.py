"""A producer in simulation: one message after the other, each until it is acknowledged.

What has been acknowledged is written down in the world; what was under way when the broker died is
sent again, as a producer with retries does.

Source: client/impl/producer/DefaultMQProducerImpl.java.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageResponseHeader
from protocol.properties import DELAY, KEYS, TAGS
from protocol.properties import format as properties_text
from tests.support.brokers import send_command
from tests.support.seats import Client

if TYPE_CHECKING:
    from tests.support.world import World

HEARTBEAT_MS = 30_000.0
AGAIN_MS = 100.0


@dataclass(frozen=True, slots=True)
class Sent:
    """An acknowledged message: where it lies, of a delayed one where it waits."""

    body: bytes
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    at_ms: int
    """Time of the acknowledgement."""
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Parcel:
    """Bodies that are sent together: one message, or a batch."""

    bodies: list[bytes]
    topic: str
    queue_id: int
    properties: dict[str, str]
    sys_flag: int = 0

    def command(self, now_ms: int) -> RemotingCommand:
        """The send as a Java client makes it."""
        text = properties_text(self.properties)
        is_batch = len(self.bodies) > 1
        body = self.bodies[0]
        if is_batch:
            body = encode_batch(BatchMessage(body, text) for body in self.bodies)
        return send_command(
            body,
            topic=self.topic,
            queue_id=self.queue_id,
            properties="" if is_batch else text.decode(),
            batch=is_batch,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms,
        )


class Producer(Client):
    """Sends what it is given, in this order; `refused` has what the broker will never take."""

    def __init__(
        self, world: "World", client_id: str, place: int, *, group: str = "producers"
    ) -> None:
        self.group = group
        self.parcels: deque[Parcel] = deque()
        self.refused: list[tuple[Parcel, RemotingCommand]] = []
        self._under_way = False
        super().__init__(world, client_id, place)

    def send(
        self,
        *bodies: bytes,
        topic: str = "Topic",
        queue_id: int = 0,
        tag: str = "",
        level: int = 0,
        key: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Gives it a message, or a batch; goes out once everything before it is acknowledged."""
        own = {KEYS: key, TAGS: tag, DELAY: str(level) if level else "", **(properties or {})}
        own = {name: value for name, value in own.items() if value}
        self.parcels.append(Parcel([*bodies], topic, queue_id, own))
        self.do(self._go_on)

    @property
    def is_done(self) -> bool:
        """Whether everything is acknowledged."""
        return not self.parcels

    def on_connect(self) -> None:
        self._under_way = False
        self.heartbeat()
        self.every(HEARTBEAT_MS, self.heartbeat)
        self._go_on()

    def heartbeat(self) -> None:
        body = HeartbeatData(self.client_id, [ProducerData(self.group)]).encode()
        self.ask(RemotingCommand(RequestCode.HEART_BEAT, body=body), lambda _: None)

    def _go_on(self) -> None:
        if self._under_way or not self.parcels or self._link is None:
            return
        self._under_way = True
        self.ask(self.parcels[0].command(self.world.at_ms), self._answered)

    def _answered(self, answer: RemotingCommand | None) -> None:
        self._under_way = False
        if answer is not None and answer.code == 0:
            self._acknowledged(self.parcels.popleft(), answer)
            self._go_on()
        else:
            self.world.refusals.append(answer)
            self.after_linked(AGAIN_MS, self._go_on)

    def _acknowledged(self, parcel: Parcel, answer: RemotingCommand) -> None:
        """Writes down where each message lies."""
        header = SendMessageResponseHeader.decode(answer.fields)
        for number, (body, msg_id) in enumerate(
            zip(parcel.bodies, header.msg_id.split(","), strict=True)
        ):
            self.world.acknowledged[body] = Sent(
                body,
                parcel.topic,
                header.queue_id,
                header.queue_offset + number,
                int(msg_id[-16:], 16),
                self.world.at_ms,
                parcel.properties,
            )
