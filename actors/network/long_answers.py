"""Encodes the bodies of long answers on a thread, so that they do not block the loop.

Owns: nothing.
Receives: LongAnswer (from any actor with a long answer).
Sends: the answer (to the request's peer).
"""

from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.messages import Encodable, LongAnswer, Request
from protocol.codes import ResponseCode
from protocol.frame import FRAME_BYTES_MAX

_HEADER_BYTES = 1024
ENCODED_HERE_MAX = 300
"""Maximum entries of a table that is encoded on the loop: 3 to 5 ms."""


class LongAnswers(Actor):
    """Actor that encodes bodies. Runs on a thread: a megabyte of JSON takes a tenth of a second."""

    where: ClassVar[Where] = "thread"

    @handles(LongAnswer, reads_only=True)
    def on_answer(self, message: LongAnswer) -> None:
        try:
            answer_with(message.request, message.body, remark=message.remark)
        finally:
            if message.done is not None:
                message.done()


def answer_with(
    request: Request,
    body: Encodable,
    fields: dict[str, str] | None = None,
    remark: str | None = None,
) -> None:
    """Encode a body and answer with it, or with an error if it exceeds a frame. Any thread.

    A longer frame would make the peer close its connection without a reason.
    """
    data = body.encode()
    if len(data) + _HEADER_BYTES > FRAME_BYTES_MAX:
        remark = f"the answer has {len(data)} bytes; a frame holds {FRAME_BYTES_MAX}"
        request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    else:
        request.answer(fields=fields, body=data, remark=remark)
