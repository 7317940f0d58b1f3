"""Bodies of long answers, written out on a thread so that the loop does not stand still for them.

Owns: nothing.   Told by: whoever has a long answer (`LongAnswer`).   Tells: who asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from actors.engine.actor import Actor, Where, handles
from actors.network.request import Request
from protocol.codes import ResponseCode
from protocol.frame import FRAME_BYTES_MAX

_HEADER_BYTES = 1024
ENCODED_HERE_MAX = 1_000
"""Entries of a table that is written on the loop: 10 to 15 ms."""


class Encodable(Protocol):
    """A body, or what one is made of on the thread."""

    def encode(self) -> bytes:
        """Return the body's bytes."""


@dataclass(slots=True)
class LongAnswer:
    """Answer this request with this body, which nobody changes any more."""

    request: Request
    body: Encodable
    done: Callable[[], None] | None = None
    """Called when it has been answered, whatever with. Any thread."""

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)
        if self.done is not None:
            self.done()


class LongAnswers(Actor):
    """Runs on a thread: a megabyte of JSON takes a tenth of a second."""

    where: ClassVar[Where] = "thread"

    @handles(LongAnswer, reads_only=True)
    def on_answer(self, message: LongAnswer) -> None:
        """Encodes and answers."""
        answer_with(message.request, message.body)
        if message.done is not None:
            message.done()


def answer_with(request: Request, body: Encodable, fields: dict[str, str] | None = None) -> None:
    """Encodes a body and answers with it; with an error if it fits into no frame.

    Such an answer would cost the peer its connection without a word. Any thread.
    """
    data = body.encode()
    if len(data) + _HEADER_BYTES > FRAME_BYTES_MAX:
        remark = f"the answer has {len(data)} bytes; a frame holds {FRAME_BYTES_MAX}"
        request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    else:
        request.answer(fields=fields, body=data)
