"""Encoder of large table answers, off the loop: 60,000 topics take over half a second.

Owns: nothing.
Receives: EncodeAnswer (table actors, Clients); ReadBody (Clients, Receipts).
Sends: the answer to the client; a request whose body it has read, to the requesting actor.
"""

from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.long_answers import answer_with
from actors.tables.messages import EncodeAnswer, ReadBody
from protocol.errors import RemoteError


class TableEncoder(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(EncodeAnswer, reads_only=True)
    def on_encode(self, message: EncodeAnswer) -> None:
        answer_with(message.request, message.body, message.fields)

    @handles(ReadBody, reads_only=True)
    def on_read(self, message: ReadBody) -> None:
        """Read a long body: 10,000 subscriptions of a heartbeat take 80 ms."""
        request = message.request
        try:
            request.read = message.kind.decode(request.command.body)
        except RemoteError as error:
            request.answer(error.code, remark=error.remark)
        else:
            message.reply_to.tell(request)
