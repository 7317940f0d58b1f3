"""Writes large tables into answers, off the loop: 60,000 topics take more than half a second.

Owns: nothing.   Told by: the table actors (`EncodeAnswer`).   Tells: whoever asked.
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.messages import Message
from actors.network.long_answers import answer_with
from actors.network.messages import Encodable
from actors.network.request import Request


@dataclass(frozen=True, slots=True)
class EncodeAnswer(Message):
    """Answer with `body`, which nobody changes any more, and these fields."""

    request: Request
    body: Encodable
    fields: dict[str, str] | None = None

    def on_undelivered(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


class TableEncoder(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(EncodeAnswer, reads_only=True)
    def on_encode(self, message: EncodeAnswer) -> None:
        """Encodes and answers."""
        answer_with(message.request, message.body, message.fields)
