"""Sends on their way from a connection to the commit log, and their answers on the way back.

One Sends holds all sends of one read of a socket, so that a hundred producer threads cost one
message. It counts its unanswered sends. The connection thus knows its in-flight bytes, and if the
actor of the message fails, the rest can be answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from actors.engine.messages import Message
from actors.network.request import Peer
from protocol.codes import ResponseCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.frame import encode
from protocol.send_values import Send

Buffer = bytes | memoryview


class StreamPeer(Peer, Protocol):
    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Queue whole frames, in order; `released_bytes` of its requests have been answered."""


@dataclass(slots=True, eq=False)
class Sends(Message):
    """Sends of one peer, in the order of its stream, for PutMessage."""

    peer: StreamPeer
    sends: list[Send]
    request_bytes: int
    owed: int = -1
    """Number of unanswered sends; below 0 until PutMessage has taken the message."""

    frames: list[bytes] = field(default_factory=list)

    def done(self, frame: bytes | None) -> None:
        """Record the answer of one send; None for a one-way send."""
        self.owed -= 1
        if frame is not None:
            self.frames.append(frame)

    def hand_over(self) -> None:
        released = 0
        if self.owed == 0:
            released, self.request_bytes = self.request_bytes, 0
        if self.frames or released:
            self.peer.write((b"".join(self.frames),) if self.frames else (), released)
            self.frames = []

    def on_undelivered(self, remark: str) -> None:
        """Answer everything with an error: the actor of this message has failed."""
        self.owed = 0
        self.frames = [
            frame for send in self.sends if (frame := failure(send, remark=remark)) is not None
        ]
        self.hand_over()


def answer_of(send: Send) -> RemotingCommand:
    """Return a command with this send's header values, to make a response from."""
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
    """Return the frame of an error answer; None for a one-way send."""
    if send.flag & ONEWAY_FLAG:
        return None
    return encode(answer_of(send).answer(code, fields, remark=remark))
