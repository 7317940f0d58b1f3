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
from actors.engine.address import Address
from actors.engine.inbox import refuse
from actors.naming.ceilings import check_topics
from actors.naming.route_table import queues_of
from actors.network.request import Request
from protocol.bodies import DataVersion, QueueData
from protocol.checksum import body_crc
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.namesrv import RegisterBrokerHeader
from protocol.registration import read_registration


@dataclass(slots=True)
class ReadRegistration:
    """Read this; tell `reply_to` piece by piece."""

    request: Request
    header: RegisterBrokerHeader
    reply_to: Address

    def refuse(self, remark: str) -> None:
        """The reader died with it."""
        self.reply_to.tell(UnreadableRegistration(self.request, ResponseCode.SYSTEM_ERROR, remark))


@dataclass(slots=True)
class PassOn:
    """Give this back, behind what is being read."""

    message: object
    reply_to: Address

    def refuse(self, _remark: str) -> None:
        """The reader died with it."""
        self.reply_to.tell(PassedOn(self.message))


@dataclass(slots=True)
class PassedOn:
    """What came before this has been told."""

    message: object

    def refuse(self, remark: str) -> None:
        """It was for who is gone."""
        refuse(self.message, remark)


@dataclass(slots=True)
class Began:
    """A registration that can be read; its topics follow."""

    request: Request
    header: RegisterBrokerHeader
    version: DataVersion


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
    version: DataVersion
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


class RegistrationReader(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(ReadRegistration)
    def on_read(self, message: ReadRegistration) -> None:
        """Tells what it holds, in order."""
        request, header, to = message.request, message.header, message.reply_to
        command = request.command
        body = bytes(command.body or b"")
        try:
            check_crc(header, body)
            found = read_registration(
                body, command.version, compressed=header.compressed, check_count=check_topics
            )
            slices = [
                TopicSlice(header.broker_name, queues_of(header.broker_name, topics.values()))
                for topics in found.slices
            ]
            check_topics(sum(len(each.queues) for each in slices))
        except RemoteError as error:
            to.tell(UnreadableRegistration(request, error.code, error.remark))
            return
        to.tell(Began(request, header, found.version))
        for each in slices:
            to.tell(each)
        to.tell(Ended(request, header, found.version, found.filter_servers))

    @handles(PassOn)
    def on_pass_on(self, message: PassOn) -> None:
        """Now it is its turn."""
        message.reply_to.tell(PassedOn(message.message))


def check_crc(header: RegisterBrokerHeader, body: bytes) -> None:
    """Raises RemoteError for a body that is not the one that was sent."""
    if header.body_crc and header.body_crc != body_crc(body):
        raise RemoteError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
