"""Reads large registrations for the name server, which has its clients to answer meanwhile.

Owns: nothing.
Told by: Namesrv (`ReadRegistration`, `PassOn`).
Tells: Namesrv (`Began`, `TopicSlice`, `Ended`, `UnreadableRegistration`; `PassedOn`).

What comes of a broker while its registration is read has to wait behind it: it goes through here,
too, and comes back as it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import refuse
from actors.naming.ceilings import READING_BYTES_MAX, check_filter_servers, check_topics
from actors.naming.route_table import queues_of
from actors.network.request import Request
from protocol.bodies import DataVersion, QueueData
from protocol.checksum import body_crc
from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from protocol.compression import unfolds_beyond
from protocol.errors import LimitReached, RemoteError
from protocol.headers.namesrv import RegisterBrokerHeader
from protocol.registration import read_registration

LARGE_BODY_BYTES = 64 << 10
"""Registrations from here on, some 400 topics, are read elsewhere: that takes longer than 5 ms."""
LARGE_COMPRESSED_BYTES = 2 << 10
LARGE_UNFOLDED_BYTES = 32 << 10

WAITING_REQUEST_BYTES = 4 << 10
"""What a request takes besides its texts, some 2 KiB, and its answer."""


@dataclass(slots=True)
class ReadRegistration:
    """Read this; tell `reply_to` piece by piece."""

    request: Request
    header: RegisterBrokerHeader
    reply_to: ActorAddress

    def refuse(self, remark: str) -> None:
        """The reader died with it."""
        self.reply_to.tell(UnreadableRegistration(self.request, ResponseCode.SYSTEM_ERROR, remark))


@dataclass(slots=True)
class PassOn:
    """Give this back, behind what is being read."""

    message: object
    reply_to: ActorAddress
    held_bytes: int = 0

    def refuse(self, _remark: str) -> None:
        """The reader died with it."""
        self.reply_to.tell(PassedOn(self.message, self.held_bytes))


@dataclass(slots=True)
class PassedOn:
    """What came before this has been told."""

    message: object
    held_bytes: int = 0

    def refuse(self, remark: str) -> None:
        """It was for who is gone."""
        refuse(self.message, remark)


@dataclass(slots=True)
class Began:
    """A registration that can be read; its topics follow."""

    request: Request
    header: RegisterBrokerHeader
    version: DataVersion
    topics: int
    """How many there are."""


@dataclass(slots=True)
class TopicSlice:
    """Some of its topics."""

    broker_name: str
    queues: Mapping[str, QueueData]


@dataclass(slots=True)
class Ended:
    """That was all of it."""

    request: Request
    header: RegisterBrokerHeader
    filter_servers: list[str] | None

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


@dataclass(slots=True)
class UnreadableRegistration:
    """It has to be refused."""

    request: Request
    code: int
    remark: str

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


@dataclass(slots=True)
class ReaderBacklog:
    """What the name server has given to the reader, and not got back."""

    count: int = 0
    _bytes: int = 0

    def gives(self, held_bytes: int) -> None:
        """One more. Raises LimitReached where so much waits that there is no room for it."""
        if self._bytes + held_bytes > READING_BYTES_MAX:
            remark = "too many registrations at a time"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, remark)
        self._bytes += held_bytes
        self.count += 1

    def has_back(self, held_bytes: int) -> None:
        """One less; those of before a restart of the name server were never counted."""
        self._bytes = max(0, self._bytes - held_bytes)
        self.count = max(0, self.count - 1)


class RegistrationReader(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(ReadRegistration, reads_only=True)
    def on_read(self, message: ReadRegistration) -> None:
        """Tells what it holds, in order."""
        request, header, to = message.request, message.header, message.reply_to
        command = request.command
        body = bytes(command.body or b"")
        try:
            check_crc(header, body)
            found = read_registration(
                body, command.version, compressed=header.compressed, check_topics=check_topics
            )
            check_filter_servers(found.filter_servers)
            slices = [
                TopicSlice(header.broker_name, queues_of(header.broker_name, topics.values()))
                for topics in found.slices
            ]
        except RemoteError as error:
            to.tell(UnreadableRegistration(request, error.code, error.remark))
            return
        count = sum(len(each.queues) for each in slices)
        to.tell(Began(request, header, found.version, count))
        for each in slices:
            to.tell(each)
        to.tell(Ended(request, header, found.filter_servers))

    @handles(PassOn)
    def on_pass_on(self, message: PassOn) -> None:
        """Now it is its turn."""
        message.reply_to.tell(PassedOn(message.message, message.held_bytes))


def held_bytes(command: RemotingCommand) -> int:
    """Some more than a request takes while it waits."""
    texts = command.fields or {}
    chars = sum(map(len, texts)) + sum(map(len, texts.values()))
    return WAITING_REQUEST_BYTES + chars + len(command.remark or "") + len(command.body or b"")


def check_crc(header: RegisterBrokerHeader, body: bytes) -> None:
    """Raises RemoteError for a body that is not the one that was sent."""
    if header.body_crc and header.body_crc != body_crc(body):
        raise RemoteError(ResponseCode.SYSTEM_ERROR, "crc32 not match")


def is_large(body: bytes, *, is_compressed: bool) -> bool:
    """Whether it takes so long to read that it is done here."""
    if not is_compressed:
        return len(body) > LARGE_BODY_BYTES
    return len(body) > LARGE_COMPRESSED_BYTES or unfolds_beyond(body, LARGE_UNFOLDED_BYTES)
