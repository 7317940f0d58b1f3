"""Sends on their way from a connection to the log, and the answers on their way back.

One `Sends` holds every send of one read of a socket, so that a hundred producers' threads cost one
message.  It counts what it still owes, so that the connection knows what is in flight, and whoever
holds it when its actor dies can answer what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actors.network.request import Peer
from protocol.codes import ResponseCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.frame import encode
from protocol.send_values import Send

Buffer = bytes | memoryview


class StreamPeer(Peer, Protocol):
    """A peer that takes ready-made frames."""

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Queues whole frames, in order; `released_bytes` of its requests are dealt with."""


@dataclass(slots=True, eq=False)
class Sends:
    """Sends of one peer, in the order of its stream; told to PutMessage."""

    peer: StreamPeer
    sends: list[Send]
    request_bytes: int
    owed: int = -1
    """How many of `sends` are not dealt with yet; below 0 until PutMessage took the message."""

    frames: list[bytes] = field(default_factory=list)
    """Answers made and not handed to the peer yet."""

    def done(self, frame: bytes | None) -> None:
        """One send is dealt with; None where a one-way send gets no answer."""
        self.owed -= 1
        if frame is not None:
            self.frames.append(frame)

    def hand_over(self) -> None:
        """Gives the peer the answers made so far."""
        released = 0
        if self.owed == 0:
            released, self.request_bytes = self.request_bytes, 0
        if self.frames or released:
            self.peer.write((b"".join(self.frames),) if self.frames else (), released)
            self.frames = []

    def refuse(self, remark: str) -> None:
        """Answers everything with an error: the actor that held this message died."""
        self.owed = 0
        self.frames = [
            frame for send in self.sends if (frame := failure(send, remark=remark)) is not None
        ]
        self.hand_over()


def answer_of(send: Send) -> RemotingCommand:
    """A command that stands for this send's request, to make a response from."""
    shape = send.shape
    return RemotingCommand(
        shape.code, opaque=send.opaque, flag=send.flag, serialize_type=shape.serialize_type
    )


def failure(
    send: Send,
    code: int = ResponseCode.SYSTEM_ERROR,
    *,
    remark: str | None,
    fields: dict[str, str] | None = None,
) -> bytes | None:
    """The frame that tells a producer why not; None for a one-way send."""
    if send.flag & ONEWAY_FLAG:
        return None
    return encode(answer_of(send).answer(code, fields, remark=remark))
