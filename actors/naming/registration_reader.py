"""Reader of large registrations, on a thread, while the name server answers clients.

Owns: nothing.
Receives: ReadRegistration and PassOn from Namesrv.
Sends: FromReader with Began, TopicSlice, Ended, UnreadableRegistration and PassedOn to Namesrv.

Other requests of a broker must not overtake its registration. They travel through this actor
unchanged, as PassOn and PassedOn.
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.naming.messages import (
    Began,
    Ended,
    FromReader,
    PassedOn,
    PassOn,
    ReadRegistration,
    TopicSlice,
    UnreadableRegistration,
)
from actors.naming.route_table import queues_of
from actors.naming.table_limits import READING_BYTES_MAX, check_filter_servers, check_topics
from protocol.codes import ResponseCode
from protocol.compression import unfolds_beyond
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from protocol.message import body_crc
from protocol.registration import read_registration

LARGE_BODY_BYTES = 32 << 10
"""Registrations past this size, some 200 topics, take longer than 3 ms and are read here.

A text that is no standard JSON takes 30 ms.
"""
LARGE_COMPRESSED_BYTES = 2 << 10
LARGE_UNFOLDED_BYTES = 32 << 10

WAITING_REQUEST_BYTES = 4 << 10
"""Memory of a waiting request besides its texts, some 2 KiB, and of its answer."""


@dataclass(slots=True)
class ReaderBacklog:
    """Messages that Namesrv has sent to the reader and not received back."""

    count: int = 0
    _bytes: int = 0

    def gives(self, held_bytes: int) -> None:
        """Count a message. Raises LimitReached if it exceeds READING_BYTES_MAX."""
        if self._bytes + held_bytes > READING_BYTES_MAX:
            remark = "registration backlog full"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, remark)
        self._bytes += held_bytes
        self.count += 1

    def has_back(self, held_bytes: int) -> None:
        """Uncount a message; those from before a restart were never counted."""
        self._bytes = max(0, self._bytes - held_bytes)
        self.count = max(0, self.count - 1)


class RegistrationReader(Actor):
    where: ClassVar[Where] = "thread"

    @handles(ReadRegistration, reads_only=True)
    def on_read(self, message: ReadRegistration) -> None:
        """Send the registration in slices, in order, or its refusal."""
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
            to.tell(FromReader(UnreadableRegistration(request, error.code, error.remark)))
            return
        count = sum(len(each.queues) for each in slices)
        to.tell(FromReader(Began(request, header, found.version, count)))
        for each in slices:
            to.tell(FromReader(each))
        to.tell(FromReader(Ended(request, header, found.filter_servers)))

    @handles(PassOn)
    def on_pass_on(self, message: PassOn) -> None:
        """Return the message, now in its turn."""
        message.reply_to.tell(FromReader(PassedOn(message.message, message.held_bytes)))


def held_bytes(command: RemotingCommand) -> int:
    """Return an upper estimate of a waiting request's memory."""
    texts = command.fields or {}
    chars = sum(map(len, texts)) + sum(map(len, texts.values()))
    return WAITING_REQUEST_BYTES + chars + len(command.remark or "") + len(command.body or b"")


def check_crc(header: RegisterBrokerHeader, body: bytes) -> None:
    """Raise RemoteError if the body was damaged on its way."""
    if header.body_crc and header.body_crc != body_crc(body):
        raise RemoteError(ResponseCode.SYSTEM_ERROR, "crc32 not match")


def is_large(body: bytes | memoryview, *, is_compressed: bool) -> bool:
    """Return whether a registration must be read on the thread."""
    if not is_compressed:
        return len(body) > LARGE_BODY_BYTES
    return len(body) > LARGE_COMPRESSED_BYTES or unfolds_beyond(bytes(body), LARGE_UNFOLDED_BYTES)
