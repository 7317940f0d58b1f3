"""Writes out the bodies of long answers, so that the loop does not stand still for them.

Owns: nothing.   Told by: whoever has a long answer (`LongAnswer`).   Tells: who asked.
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.request import Request
from protocol.codes import ResponseCode
from protocol.frame import FRAME_BYTES_MAX
from protocol.json_body import Body

_HEADER_BYTES = 1024


@dataclass(frozen=True, slots=True)
class LongAnswer:
    """Answer this request with this body, which nobody changes any more, and these fields."""

    request: Request
    body: Body
    fields: dict[str, str] | None = None

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


class LongAnswers(Actor):
    """Runs on a thread: a megabyte of JSON takes a tenth of a second, 60,000 topics half a one."""

    where: ClassVar[Where] = "thread"

    @handles(LongAnswer)
    def on_answer(self, message: LongAnswer) -> None:
        """An answer that fits into no frame would cost the peer its connection without a word."""
        body = message.body.encode()
        if len(body) + _HEADER_BYTES > FRAME_BYTES_MAX:
            remark = f"the answer has {len(body)} bytes; a frame holds {FRAME_BYTES_MAX}"
            message.request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        else:
            message.request.answer(fields=message.fields, body=body)
