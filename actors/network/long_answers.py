"""Writes out the bodies of long answers, so that the loop does not stand still for them.

Owns: nothing.   Told by: whoever has a long answer (`LongAnswer`).   Tells: who asked.
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.request import Request
from protocol.json_body import Body


@dataclass(slots=True)
class LongAnswer:
    """Answer this request with this body, which nobody changes any more."""

    request: Request
    body: Body

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


class LongAnswers(Actor):
    """Runs on a thread: a megabyte of JSON takes a tenth of a second."""

    where: ClassVar[Where] = "thread"

    @handles(LongAnswer)
    def on_answer(self, message: LongAnswer) -> None:
        """Encodes and answers."""
        message.request.answer(body=message.body.encode())
